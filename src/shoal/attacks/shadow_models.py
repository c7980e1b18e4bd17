"""Shadow models: what the server trains on its own examples to learn how members look.

Source: Shokri et al. 2017, arXiv:1610.05820, section V-C; IFCA-MIR, Algorithm 2, lines 1 to 6.
"""

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.attacks.membership import Records
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data.federation import Examples, Federation
from shoal.data.shards import Shards
from shoal.engine import Engine, LocalSGD, State

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShadowModels:
    """How shadow models are trained. All of one evaluation train together, as clients of the engine do.

    Each shadow model of a cluster draws twice its size from the shadow set, trains on one half and leaves the
    other out.

    Args:
        number: shadow models of each cluster's model (IFCA-MIR: 3).
        size: examples each trains on; None: as many as the cluster's clients hold together (at least one
            average client's), since the risk could not depend on the cluster's size otherwise. At most half
            the shadow set either way.
        epochs: passes over them; None: as many as a client makes in a round.
        warm_start: start from the cluster's model; otherwise from a random one.

    Raises:
        InputError: a number below 1.
    """

    number: int = 3
    size: int | None = None
    epochs: int | None = None
    warm_start: bool = True

    def __post_init__(self) -> None:
        require(self.number >= 1, f"'red_team.shadow_models' must be at least 1; got {self.number}")
        require(self.size is None or self.size >= 1, f"'red_team.shadow_size' must be at least 1; got {self.size}")
        alone = self.number == 1 and self.size == 1
        require(not alone, "'red_team.shadow_size' must be at least 2 with one shadow model; got 1")
        require(
            self.epochs is None or self.epochs >= 1, f"'red_team.shadow_epochs' must be at least 1; got {self.epochs}"
        )

    def train(
        self, state: State, federation: Federation, engine: Engine, local: LocalSGD, stream: Stream
    ) -> list[Records]:
        """Shadow models of each of the K models of ``state``, and what they say: K records.

        Raises:
            InputError: the shadow set has fewer than two examples.
        """
        available = len(federation.shadow)
        require(available >= 2, "shadow models need a shadow set of at least 2 examples; set 'data.shadow_examples'")
        clusters = len(state.models)
        sizes = [self._size(state, federation, k) for k in range(clusters)]
        splits = [
            _split(available, sizes[k], stream("model", k, "shadow", s))
            for k in range(clusters)
            for s in range(self.number)
        ]
        shards = _shards(federation.shadow, [inside for inside, _ in splits])
        names = torch.arange(clusters * self.number)
        if self.warm_start:
            starts, which = state.models, names // self.number
        else:
            starts, which = torch.stack([engine.model.init(stream("start", int(i))) for i in names]), names
        passes = self.epochs if self.epochs is not None else local.passes_of(int(federation.clients.sizes.max()))
        training = replace(local.at(max(1, state.round)), epochs=passes, steps=None)
        randomness = training.randomness(shards, names, stream("batches"))
        collected: dict[int, Records] = {}
        for owners, ends in engine.train(starts, which, shards, randomness, training):
            for owner, end in zip(owners.tolist(), ends, strict=True):
                collected[owner] = _records(engine, end, federation.shadow, splits[owner], owner % self.number)
        return [join([collected[k * self.number + s] for s in range(self.number)]) for k in range(clusters)]

    def _size(self, state: State, federation: Federation, k: int) -> int:
        sizes = federation.clients.sizes
        if self.size is not None:
            wanted = self.size
        else:
            wanted = max(int(sizes[state.assignment == k].sum()), round(float(sizes.double().mean())))
        most = len(federation.shadow) // 2
        if wanted > most:
            LOG.info("shadow models of cluster %d train on %d examples, half the shadow set, not %d", k, most, wanted)
        return min(wanted, most)


def join(records: list[Records]) -> Records:
    """Records one after another."""
    return Records(
        torch.cat([each.outputs for each in records]),
        torch.cat([each.labels for each in records]),
        torch.cat([each.member for each in records]),
        torch.cat([each.shadow for each in records]),
    )


def _split(available: int, size: int, stream: Stream) -> tuple[Tensor, Tensor]:
    order = torch.randperm(available, generator=stream.generator())
    return order[:size], order[size : 2 * size]


def _shards(shadow: Examples, insides: list[Tensor]) -> Shards:
    sizes = torch.tensor([len(inside) for inside in insides])
    return Shards.from_indices(shadow.x, shadow.y, torch.cat(insides), sizes)


def _records(engine: Engine, row: Tensor, shadow: Examples, split: tuple[Tensor, Tensor], name: int) -> Records:
    both = torch.cat(split)
    seen = shadow.take(both.to(shadow.y.device))
    return Records(
        outputs=engine.outputs(row, seen.x).cpu(),
        labels=seen.y.cpu(),
        member=torch.arange(len(both)) < len(split[0]),
        shadow=torch.full((len(both),), name),
    )
