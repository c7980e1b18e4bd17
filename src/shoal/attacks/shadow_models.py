"""Shadow models: models that the server trains on examples of its own, so that it knows their members.

Source: Shokri et al. 2017, arXiv:1610.05820, section V-C; IFCA-MIR, Algorithm 2, lines 1 to 6.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from shoal.attacks.membership import Records, ReferenceModels
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Flag, Positive, settings
from shoal.data.federation import Examples, Federation
from shoal.data.shards import Shards
from shoal.engine import Engine, LocalSGD, State

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Split:
    """Positions in the shadow set of the examples that a shadow model is trained on, and of as many others."""

    inside: Tensor
    outside: Tensor

    @staticmethod
    def random(available: int, size: int, stream: Stream) -> "_Split":
        order = torch.randperm(available, generator=stream.generator())
        return _Split(order[:size], order[size : 2 * size])


@settings
class ShadowModels:
    """The training of shadow models. All of one evaluation are trained together, as clients of the engine.

    Each shadow model of a cluster samples twice its size from the shadow set, without replacement; it is trained on one
    half, and the other half are its non-members.

    Args:
        number: shadow models per model of the federation (IFCA-MIR: 3).
        size: examples that each is trained on; "cluster": as many as the cluster's clients have together (at least as
            many as an average client has), since the estimated risk could not depend on the cluster's size otherwise.
            At most half the shadow set either way.
        epochs: passes over these examples; "round": as many as a client makes in a round.
        warm_start: start from the federation's model; otherwise from random parameters.
    """

    number: Annotated[Positive, Field(alias="shadow_models")] = 3
    size: Annotated[Positive | Literal["cluster"], Field(alias="shadow_size")] = "cluster"
    epochs: Annotated[Positive | Literal["round"], Field(alias="shadow_epochs")] = "round"
    warm_start: Flag = True

    def __post_init__(self) -> None:
        require(self.number > 1 or self.size != 1, "a single shadow model must train on at least 2 examples; got 1")

    def records(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> list[Records]:
        """Train shadow models of each of the K models of ``state``, and record their outputs.

        A shadow model is dropped once its outputs are recorded.

        Returns:
            K records.

        Raises:
            InputError: the shadow set has fewer than two examples.
            DivergenceError: the training of a shadow model diverged.
        """
        found: dict[int, Records] = {}
        for owner, model, split in self._trained(state, federation, engine, local, stream):
            examples = federation.shadow.take(_both(split).to(federation.shadow.y.device))
            outputs = engine.outputs(model, examples.x).cpu()
            found[owner] = _records(outputs, examples.y.cpu(), split, owner % self.number)
        return [_joined([found[owner] for owner in self._of_cluster(k)]) for k in range(len(state.models))]

    def train(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> list[Records]:
        """The same records, with the shadow models themselves in `Records.reference`.

        The records' outputs are those of an evaluation on the whole shadow set, which may differ from those of
        `records` in the last bits.
        """
        shadow = federation.shadow
        trained = {
            owner: (model.cpu(), split)
            for owner, model, split in self._trained(state, federation, engine, local, stream)
        }
        clusters = [[trained[owner] for owner in self._of_cluster(k)] for k in range(len(state.models))]
        return [_with_reference(each, shadow, engine) for each in clusters]

    def _trained(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> Iterator[tuple[int, Tensor, _Split]]:
        """Each shadow model's number among all ``K * number``, parameters (P,) and split; few are in memory at once."""
        available = len(federation.shadow)
        require(available >= 2, f"shadow models need a shadow set of at least 2 examples; got {available}")
        clusters = len(state.models)
        sizes = [self._size(state, federation, k) for k in range(clusters)]
        splits = [
            _Split.random(available, sizes[k], stream("model", k, "shadow", s))
            for k in range(clusters)
            for s in range(self.number)
        ]
        inside = [split.inside for split in splits]
        shards = Shards.dealt(
            federation.shadow.x, federation.shadow.y, torch.cat(inside), torch.tensor([len(each) for each in inside])
        )
        owners = torch.arange(clusters * self.number)
        if self.warm_start:
            starts, which = state.models, owners // self.number
        else:
            starts, which = torch.stack([engine.model.init(stream("start", int(i))) for i in owners]), owners
        largest = int(federation.clients.sizes.max())
        # Clusters whose clients train in the same way are trained together; usually all.
        for alike in [each for i, each in enumerate(local) if each not in local[:i]]:
            some = owners[torch.tensor([local[k] == alike for k in (owners // self.number).tolist()])]
            passes = alike.passes_of(largest) if self.epochs == "round" else self.epochs
            training = replace(alike, epochs=passes, steps=None)
            randomness = training.randomness(shards, owners, stream("batches")).of(some)
            for trained, ends in engine.train(starts, which[some], shards.take(some), randomness, training):
                for owner, end in zip(some[trained].tolist(), ends, strict=True):
                    yield owner, end, splits[owner]

    def _of_cluster(self, k: int) -> range:
        """The numbers of the shadow models of model k among all."""
        return range(k * self.number, (k + 1) * self.number)

    def _size(self, state: State, federation: Federation, k: int) -> int:
        sizes = federation.clients.sizes
        if self.size == "cluster":
            wanted = max(int(sizes[state.assignment == k].sum()), round(float(sizes.double().mean())))
        else:
            wanted = self.size
        most = len(federation.shadow) // 2
        if wanted > most:
            LOG.info("shadow models of cluster %d train on %d examples, half the shadow set, not %d", k, most, wanted)
        return min(wanted, most)


def _with_reference(trained: list[tuple[Tensor, _Split]], shadow: Examples, engine: Engine) -> Records:
    """The records of one cluster's shadow models, kept as reference models."""
    models = torch.stack([model for model, _ in trained])
    outputs = torch.stack([engine.outputs(model, shadow.x).cpu() for model in models])
    trained_on = torch.zeros(outputs.shape[:2], dtype=torch.bool)
    labels, records = shadow.y.cpu(), []
    for r, (_, split) in enumerate(trained):
        trained_on[r, split.inside] = True
        examples = _both(split)
        records.append(_records(outputs[r, examples], labels[examples], split, r))
    return replace(_joined(records), reference=ReferenceModels(models, trained_on, outputs))


def _both(split: _Split) -> Tensor:
    return torch.cat([split.inside, split.outside])


def _records(outputs: Tensor, labels: Tensor, split: _Split, number: int) -> Records:
    """One shadow model's records: outputs (M, C) and labels (M,) of its members, then of its non-members."""
    return Records(
        outputs=outputs,
        labels=labels,
        member=torch.arange(len(labels)) < len(split.inside),
        shadow=torch.full((len(labels),), number),
        example=_both(split),
    )


def _joined(records: list[Records]) -> Records:
    """Records one after another."""
    return Records(
        outputs=torch.cat([each.outputs for each in records]),
        labels=torch.cat([each.labels for each in records]),
        member=torch.cat([each.member for each in records]),
        shadow=torch.cat([each.shadow for each in records]),
        example=torch.cat([each.example for each in records]),
    )
