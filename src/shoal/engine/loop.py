"""The loop backend: one owner after another on a thread's own seat; best for convolutions on a CPU."""

from torch import Tensor

from shoal.data.shards import Shards
from shoal.data.storage import gather, precise
from shoal.engine.local import Draws, LocalSGD
from shoal.engine.seat import Seat


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
            _train(seat, shards, shards.owned(owner), draws.orders[owner], local)
            row.copy_(seat.row)


def _train(seat: Seat, shards: Shards, mine: Tensor, orders: Tensor, local: LocalSGD) -> None:
    """Train the seat's network on the examples ``mine`` (size,) of the shards, in ``orders`` (passes, size or more)."""
    size = len(mine)
    batch, left = local.batch(size), local.steps_of(size)
    if batch == size:
        x, y = _examples(seat, shards, mine)
        for _ in range(left):
            seat.step(x, y, local.learning_rate, local.weight_decay)
        return
    for order in orders[: local.passes_of(size)]:
        x, y = _examples(seat, shards, mine[order[:size]])
        for begin in range(0, min(size, left * batch), batch):
            seat.step(x[begin : begin + batch], y[begin : begin + batch], local.learning_rate, local.weight_decay)
            left -= 1


def _examples(seat: Seat, shards: Shards, rows: Tensor) -> tuple[Tensor, Tensor]:
    chosen, device = rows.to(shards.y.device), seat.row.device
    return precise(gather(shards.x, chosen), seat.dtype, device), shards.y[chosen].to(device)
