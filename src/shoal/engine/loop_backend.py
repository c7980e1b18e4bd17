"""The loop backend: one owner after another on a thread's own seat; best for convolutions on a CPU."""

from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.memory_format import gather, precise
from shoal.data.shards import Shards
from shoal.engine.bound_network import Seat
from shoal.engine.local_sgd import Draws, LocalSGD


class Loop:
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

    def train(self, seat: Seat, rows: Tensor, shards: Shards, owners: Tensor, draws: Draws, local: LocalSGD) -> None:
        """Train some owners: each of the ``rows`` (u, P) becomes what training from it on its owner's examples gives.

        Args:
            seat: of this thread.
            rows: changed in place.
            shards: everybody's examples.
            owners: (u,) int64.
            draws: of all owners, as `LocalSGD.draws`.
            local: at the learning rate of the round.
        """
        for row, owner in zip(rows, owners.tolist(), strict=True):
            seat.load(row)
            seat.network.train()
            seat.seed(int(draws.seeds[owner]))
            mine = shards.owned(owner)
            if local.private:
                _train_privately(seat, shards, mine, draws, owner, local)
            else:
                for x, y in _batches(seat, shards, mine, draws.orders[owner], local):
                    seat.step(x, y, local.learning_rate, local.weight_decay)
            row.copy_(seat.row)


def _train_privately(seat: Seat, shards: Shards, mine: Tensor, draws: Draws, owner: int, local: LocalSGD) -> None:
    """Train the seat's network on clipped gradients with the owner's own noise."""
    own = Stream(int(draws.seeds[owner]))
    noise = own("noise").generator()
    if local.privatizer is not None and local.privatizer.poisson:
        batches = _coins(seat, shards, mine, own("coins").generator(), local)
    else:
        batches = _batches(seat, shards, mine, draws.orders[owner], local)
    for x, y in batches:
        expected = local.batch(len(mine)) if local.privatizer is not None and local.privatizer.poisson else len(y)
        seat.private_step(x, y, expected, local, noise)


def _batches(
    seat: Seat, shards: Shards, mine: Tensor, orders: Tensor, local: LocalSGD
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of all steps on the examples ``mine`` (size,) of the shards, in ``orders`` (passes, size or more)."""
    size = len(mine)
    batch, left = local.batch(size), local.steps_of(size)
    if batch == size:
        x, y = _examples(seat, shards, mine)
        for _ in range(left):
            yield x, y
        return
    for order in orders[: local.passes_of(size)]:
        x, y = _examples(seat, shards, mine[order[:size]])
        for begin in range(0, min(size, left * batch), batch):
            yield x[begin : begin + batch], y[begin : begin + batch]
            left -= 1


def _coins(
    seat: Seat, shards: Shards, mine: Tensor, coins: torch.Generator, local: LocalSGD
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of all steps on the examples ``mine`` (size,), each example in each by a coin of its own."""
    share = local.batch(len(mine)) / len(mine)
    for _ in range(local.steps_of(len(mine))):
        yield _examples(seat, shards, mine[torch.rand(len(mine), generator=coins, dtype=torch.float64) < share])


def _examples(seat: Seat, shards: Shards, rows: Tensor) -> tuple[Tensor, Tensor]:
    chosen, device = rows.to(shards.y.device), seat.row.device
    return precise(gather(shards.x, chosen), seat.dtype, device), shards.y[chosen].to(device)
