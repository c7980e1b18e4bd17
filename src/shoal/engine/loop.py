"""The loop backend: one owner after another on a thread's own seat; best for convolutions on a CPU."""

import torch
from torch import Tensor

from shoal.data.federation import Shards
from shoal.data.storage import gather
from shoal.engine.local import LocalSGD
from shoal.engine.seat import Seat


def train_one(seat: Seat, start: Tensor, shards: Shards, owner: int, order: Tensor, local: LocalSGD) -> Tensor:
    """Train from ``start`` (P,) on one owner's examples; ``order`` (passes, size or more) is its random orders.

    Returns:
        (P,) the row where training ended, a new tensor.
    """
    seat.load(start)
    seat.network.train()
    rows = shards.owned(owner)
    size = len(rows)
    batch, left = local.batch(size), local.steps_of(size)
    for line in order:
        if left <= 0:
            break
        chosen = rows[line[:size]].to(shards.y.device)
        x = gather(shards.x, chosen).to(device=seat.row.device, dtype=seat.dtype)
        y = shards.y[chosen].to(seat.row.device)
        for begin in range(0, min(size, left * batch), batch):
            seat.step(x[begin : begin + batch], y[begin : begin + batch], local.learning_rate, local.weight_decay)
            left -= 1
    return seat.row.clone().to(torch.float32)
