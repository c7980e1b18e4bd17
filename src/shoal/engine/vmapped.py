"""The vmap backend: many owners in one batched computation; best for small dense networks and many clients.

Owners of unequal sizes are padded; a padded example weighs nothing, and an owner whose steps are done stays put.
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from shoal.core.layout import Layout
from shoal.data.federation import Shards
from shoal.data.storage import inputs, storage
from shoal.engine.local import LocalSGD
from shoal.engine.seat import Seat


def train_many(seat: Seat, starts: Tensor, shards: Shards, orders: Tensor, local: LocalSGD) -> Tensor:
    """Train n owners at once: row i of ``starts`` (n, P) on owner i's examples in its ``orders[i]``.

    Args:
        seat: of this thread; only its network's structure is used.
        orders: (n, passes, largest size).

    Returns:
        (n, P) the rows where training ended, a new tensor.
    """
    model, network, dtype, rate = seat.model, seat.network, seat.dtype, local.learning_rate
    device = starts.device
    ends = starts.clone()
    views = model.layout.views(ends)
    trained = {slot.name for slot in model.layout.slots if slot.start < model.layout.trainable}
    stored = storage(shards.x)
    network.train()

    def loss(weights: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        tensors = {name: tensor.to(dtype) for name, tensor in (weights | rest).items()}
        outputs = functional_call(network, tensors, (inputs(x),)).float()
        return (model.loss(outputs, y) * mask).sum() / mask.sum().clamp(min=1)

    gradient = vmap(grad(loss))
    for picks, mask in _steps(shards, orders, local):
        rows, mask_here = picks.to(stored.device), mask.to(device)
        x, y = stored[rows].to(device=device, dtype=dtype), shards.y[rows].to(device)
        weights = {name: view for name, view in views.items() if name in trained}
        rest = {name: view for name, view in views.items() if name not in trained}
        slopes = gradient(weights, rest, x, y, mask_here)
        moving = mask_here.any(dim=1).float()
        for name, view in weights.items():
            active = moving.reshape(-1, *[1] * (view.dim() - 1))
            view.mul_(1 - rate * local.weight_decay * active)
            view.sub_(slopes[name] * (rate * active))
    return ends


def _steps(shards: Shards, orders: Tensor, local: LocalSGD) -> list[tuple[Tensor, Tensor]]:
    """For each step, the rows (n, batch) of the examples that the owners use, and the mask of those that count."""
    sizes = shards.sizes
    batches = torch.tensor([local.batch(int(size)) for size in sizes])
    steps = torch.tensor([local.steps_of(int(size)) for size in sizes])
    per_pass = (sizes + batches - 1) // batches
    within = torch.arange(int(batches.max()))
    planned = []
    for step in range(int(steps.max())):
        line, begin = step // per_pass, (step % per_pass) * batches
        position = begin[:, None] + within
        mask = (within < batches[:, None]) & (position < sizes[:, None]) & (step < steps)[:, None]
        line = line.clamp(max=orders.shape[1] - 1)
        position = position.clamp(max=orders.shape[2] - 1)
        picked = orders[torch.arange(len(sizes))[:, None], line[:, None], position]
        picked = torch.where(mask, picked, 0)
        planned.append((shards.rows[shards.offsets[:-1, None] + picked], mask))
    return planned


def fits(layout: Layout, network: nn.Module) -> bool:
    """Whether a network is of the kind that trains faster here than in the loop, on a CPU: at most 20,000
    parameters, all of them in linear layers (measured in `docs/performance.md`).
    """
    owners = [module for module in network.modules() if any(True for _ in module.parameters(recurse=False))]
    return layout.size <= 20_000 and all(isinstance(module, nn.Linear) for module in owners)
