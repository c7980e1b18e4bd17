"""Shadow models: models that the server trains on examples of its own, so that it knows their members.

Source: Shokri et al. 2017, arXiv:1610.05820, section V-C; IFCA-MIR, Algorithm 2, lines 1 to 6.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
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
        records: dict[int, Records] = {}
        for owner, model, examples in self._trained(state, federation, engine, local, stream):
            sampled = federation.shadow.take(examples.to(federation.shadow.y.device))
            outputs = engine.outputs(model, sampled.x).cpu()
            records[owner] = _records(outputs, sampled.y.cpu(), examples, owner % self.number)
        return [_joined([records[owner] for owner in self._of_cluster(k)]) for k in range(len(state.models))]

    def train(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> list[Records]:
        """The same records, with the shadow models themselves in `Records.reference`.

        The records' outputs are those of an evaluation on the whole shadow set, which may differ from those of
        `records` in the last bits.
        """
        trained = {
            owner: (model.cpu(), examples)
            for owner, model, examples in self._trained(state, federation, engine, local, stream)
        }
        clusters = [[trained[owner] for owner in self._of_cluster(k)] for k in range(len(state.models))]
        return [_with_reference(each, federation.shadow, engine) for each in clusters]

    def _trained(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Train the ``K * number`` shadow models; only a few are in memory at a time.

        Yields:
            The number of a shadow model among all, its parameters (P,), and the positions in the shadow set of the
            examples that it sampled; on the first half of these it was trained.
        """
        shadow, clusters = federation.shadow, len(state.models)
        require(len(shadow) >= 2, f"shadow models need a shadow set of at least 2 examples; got {len(shadow)}")
        samples, inside = [], []
        for k in range(clusters):
            size = self._size(state, federation, k)
            for r in range(self.number):
                generator = stream("model", k, "shadow", r).generator()
                samples.append(torch.randperm(len(shadow), generator=generator)[: 2 * size])
                inside.append(samples[-1][:size])
        shards = Shards.from_indices(
            shadow.x, shadow.y, torch.cat(inside), torch.tensor([len(each) for each in inside])
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
                    yield owner, end, samples[owner]

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


def _with_reference(trained: list[tuple[Tensor, Tensor]], shadow: Examples, engine: Engine) -> Records:
    """The records of one cluster's shadow models, from the parameters and the sampled examples of each."""
    models = torch.stack([model for model, _ in trained])
    outputs = torch.stack([engine.outputs(model, shadow.x).cpu() for model in models])
    trained_on = torch.zeros(outputs.shape[:2], dtype=torch.bool)
    labels, records = shadow.y.cpu(), []
    for r, (_, examples) in enumerate(trained):
        trained_on[r, examples[: len(examples) // 2]] = True
        records.append(_records(outputs[r, examples], labels[examples], examples, r))
    return replace(_joined(records), reference=ReferenceModels(models, trained_on, outputs))


def _records(outputs: Tensor, labels: Tensor, examples: Tensor, number: int) -> Records:
    """One shadow model's records: outputs (M, C), labels (M,) and positions (M,), of its members in the first half."""
    return Records(
        outputs=outputs,
        labels=labels,
        member=torch.arange(len(labels)) < len(labels) // 2,
        shadow=torch.full((len(labels),), number),
        example=examples,
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
