"""The loop backend: one owner after another on a thread's own network; best for convolutions on a CPU."""

from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.memory_format import gather, to_compute_dtype
from shoal.data.shards import Shards
from shoal.engine.bound_network import BoundNetwork
from shoal.engine.linear_term import LinearTerm
from shoal.engine.local_sgd import GradientPrivacy, LocalRandomness, LocalSGD


class LoopBackend:
    """Trains owners one at a time."""

    def units(self, shards: Shards, local: LocalSGD) -> list[Tensor]:  # noqa: ARG002
        """The owners (n,) in the parts in which threads take them: largest first, so that no thread is left with a
        large one at the end, and a few at a time while many are left.
        """
        queue = shards.sizes.argsort(descending=True, stable=True)
        parts, taken = [], 0
        while taken < len(queue):
            count = min(max((len(queue) - taken) // 32, 1), 16)
            parts.append(queue[taken : taken + count])
            taken += count
        return parts

    def train(
        self,
        bound: BoundNetwork,
        rows: Tensor,
        shards: Shards,
        owners: Tensor,
        randomness: LocalRandomness,
        local: LocalSGD,
        term: LinearTerm | None = None,
    ) -> None:
        """Train some owners: each of the ``rows`` (u, P) becomes the result of training it on its owner's examples.

        Args:
            bound: this thread's network.
            rows: changed in place.
            shards: everybody's examples.
            owners: (u,) int64.
            randomness: of all owners, as `LocalSGD.randomness`.
            local: at the learning rate of the round.
            term: of all owners; None: none.
        """
        constants = None if term is None else term.constants(owners)
        for i, (row, owner) in enumerate(zip(rows, owners.tolist(), strict=True)):
            added = None if constants is None else (constants[0][i], constants[1][i].to(row.device))
            bound.begin(row, local, added, int(randomness.seeds[owner]))
            mine = shards.owned(owner)
            if local.gradient_privacy is not None and local.private:
                _train_privately(bound, shards, mine, randomness, owner, local, local.gradient_privacy)
            else:
                for x, y in _batches(bound, shards, mine, randomness.orders[owner], local):
                    bound.step(x, y)
            row.copy_(bound.row)


def _train_privately(
    bound: BoundNetwork,
    shards: Shards,
    mine: Tensor,
    randomness: LocalRandomness,
    owner: int,
    local: LocalSGD,
    rule: GradientPrivacy,
) -> None:
    """Train on clipped gradients with the owner's own noise."""
    own = Stream(int(randomness.seeds[owner]))
    noise = own("noise").generator()
    if rule.poisson:
        batches = _poisson_batches(bound, shards, mine, own("coins").generator(), local)
    else:
        batches = _batches(bound, shards, mine, randomness.orders[owner], local)
    for x, y in batches:
        bound.private_step(x, y, local.batch(len(mine)) if rule.poisson else len(y), rule, noise)


def _batches(
    bound: BoundNetwork, shards: Shards, mine: Tensor, orders: Tensor, local: LocalSGD
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of all steps on the examples ``mine`` (size,) of the shards, in ``orders`` (passes, size or more)."""
    size = len(mine)
    batch, left = local.batch(size), local.steps_of(size)
    if batch == size:
        x, y = _examples(bound, shards, mine)
        for _ in range(left):
            yield x, y
        return
    for order in orders[: local.passes_of(size)]:
        x, y = _examples(bound, shards, mine[order[:size]])
        for begin in range(0, min(size, left * batch), batch):
            yield x[begin : begin + batch], y[begin : begin + batch]
            left -= 1


def _poisson_batches(
    bound: BoundNetwork, shards: Shards, mine: Tensor, generator: torch.Generator, local: LocalSGD
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of all steps on the examples ``mine`` (size,), each a Poisson subsample."""
    share = local.batch(len(mine)) / len(mine)
    for _ in range(local.steps_of(len(mine))):
        yield _examples(bound, shards, mine[torch.rand(len(mine), generator=generator, dtype=torch.float64) < share])


def _examples(bound: BoundNetwork, shards: Shards, rows: Tensor) -> tuple[Tensor, Tensor]:
    chosen, device = rows.to(shards.y.device), bound.row.device
    return to_compute_dtype(gather(shards.x, chosen), bound.dtype, device), shards.y[chosen].to(device)
