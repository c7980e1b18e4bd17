"""The vmap backend: many owners in one batched computation; best for dense networks on a CPU.

Owners of unequal sizes are padded; a padded example weighs nothing, and an owner whose steps are done stays put.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from shoal.core.layout import Layout
from shoal.data.federation import Shards
from shoal.data.storage import inputs, storage
from shoal.engine.local import LocalSGD
from shoal.engine.seat import Seat
from shoal.models.model import Model

_TRACE_AFTER = 100
"""Uses of one shape after which its computation is traced, which takes as long as it saves in about so many."""

_IN_CACHE = 2**21
"""Numbers in the rows of the owners of one computation (8 MB), for the caches to hold them between two steps."""


_Gradient = Callable[..., dict[str, Tensor]]


class Vmapped:
    """Trains owners many at a time."""

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        self._layout = model.layout
        self._gradients = Gradients(model, device, dtype)

    def units(self, shards: Shards, local: LocalSGD) -> list[Tensor]:
        """The owners (n,) in the parts that are computed together, of nearly equal sizes so that little is padded: as
        many as keep their rows in the caches, and at most 256 (a step's fixed cost is small by then).
        """
        sizes = shards.sizes
        queue = sizes.argsort(descending=True, stable=True)
        together = min(max(_IN_CACHE // self._layout.size, 4), 256)
        parts = list(queue.tensor_split(math.ceil(len(queue) / together))) if len(queue) else []
        example = storage(shards.x).shape[1:]
        for part in parts:
            shape = torch.Size((len(part), int(local.batches(sizes[part]).max()), *example))
            self._gradients.expect(shape, int(local.steps_each(sizes[part]).max()))
        return parts

    def train(self, seat: Seat, rows: Tensor, shards: Shards, owners: Tensor, orders: Tensor, local: LocalSGD) -> None:
        """As `Loop.train`; only the structure of the seat's network is used."""
        views, device = self._layout.views(rows), rows.device
        trainable = self._layout.trainable
        weights = {slot.name: views.pop(slot.name) for slot in self._layout.slots if slot.start < trainable}
        stored = storage(shards.x)
        seat.network.train()
        before, x, y, share = None, stored, shards.y, stored
        for picks, share_of_mean in _steps(shards, owners, orders, local):
            if picks is not before:
                before, there = picks, picks.to(stored.device)
                x, y = stored[there].to(device=device, dtype=seat.dtype), shards.y[there].to(device)
                share = share_of_mean.to(device)
            slopes = self._gradients(seat.network, weights, views, x, y, share)
            if local.weight_decay:
                active = (share > 0).any(dim=1).float()
                rows[:, :trainable].mul_(1 - local.learning_rate * local.weight_decay * active[:, None])
            for name, view in weights.items():
                view.sub_(slopes[name], alpha=local.learning_rate)


@dataclass(eq=False)
class Gradients:
    """Gradients of the loss of n owners, each at its own weights and on its own batch, in one computation.

    A shape that comes back often is traced into a plain sequence of tensor operations: the same operations in the
    same order, without the cost of finding them again (measured, 0.7 ms a step of a small network).
    """

    model: Model
    device: torch.device
    dtype: torch.dtype
    _uses: Counter[torch.Size] = field(default_factory=Counter)
    _traced: dict[torch.Size, _Gradient] = field(default_factory=dict)

    def expect(self, shape: torch.Size, uses: int) -> None:
        """Say that stored inputs of a shape (n, B, ...) are about to be used, while no other thread runs a network
        (PyTorch's tracing is not safe beside other threads).
        """
        self._uses[shape] += uses
        if self._uses[shape] < _TRACE_AFTER or shape in self._traced:
            return
        # Imported here because it takes a second, which short runs need not spend.
        from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415

        layout = self.model.layout
        views = layout.views(torch.zeros(shape[0], layout.size, device=self.device))
        weights = {slot.name: views.pop(slot.name) for slot in layout.slots if slot.start < layout.trainable}
        x = torch.zeros(shape, device=self.device, dtype=self.dtype)
        y = torch.zeros(shape[:2], device=self.device, dtype=torch.int64)
        network = self.model.network().to(self.device).train()
        traced = make_fx(self._of(network))(weights, views, x, y, torch.zeros(shape[:2], device=self.device))
        traced.graph.eliminate_dead_code()
        traced.recompile()
        self._traced[shape] = traced

    def __call__(
        self,
        network: nn.Module,
        weights: dict[str, Tensor],
        rest: dict[str, Tensor],
        x: Tensor,
        y: Tensor,
        share: Tensor,
    ) -> dict[str, Tensor]:
        """By name, (n, ...): the gradient of ``sum_b share[i, b] * loss(network(x[i, b]), y[i, b])``.

        Args:
            network: structure, not in use by another thread.
            weights: trainable tensors (n, ...).
            rest: the network's other tensors (n, ...).
            x: stored inputs (n, B, ...).
            y: labels (n, B).
            share: of each example in its owner's mean loss (n, B).
        """
        gradient = self._traced.get(x.shape) or self._of(network)
        return gradient(weights, rest, x, y, share)

    def _of(self, network: nn.Module) -> _Gradient:
        def loss(weights: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
            tensors = {name: tensor.to(self.dtype) for name, tensor in (weights | rest).items()}
            outputs = functional_call(network, tensors, (inputs(x),)).float()
            return (self.model.loss(outputs, y) * share).sum()

        return vmap(grad(loss))


def _steps(shards: Shards, owners: Tensor, orders: Tensor, local: LocalSGD) -> list[tuple[Tensor, Tensor]]:
    """For each step, the rows (n, batch) of the examples that the owners use and their shares of the mean loss.

    Steps on the same examples hand out the same tensors.
    """
    first, sizes = shards.offsets[owners], shards.sizes[owners]
    batches, steps = local.batches(sizes), local.steps_each(sizes)
    full = local.full(shards.sizes)
    step = torch.arange(1 if full else int(steps.max()))[:, None]
    per_pass = (sizes + batches - 1) // batches
    within = torch.arange(int(batches.max()))
    position = (step % per_pass * batches)[..., None] + within
    used = (within < batches[:, None]) & (position < sizes[:, None]) & (step < steps)[..., None]
    position = torch.where(used, position, 0)
    if not full:
        line = (step // per_pass).clamp(max=orders.shape[1] - 1)
        position = orders[owners[:, None], line[..., None], position]
    share = used / used.sum(dim=2, keepdim=True).clamp(min=1)
    plan = list(zip(shards.rows[first[:, None] + position], share, strict=True))
    return plan * int(steps.max()) if full else plan


def fits(layout: Layout, network: nn.Module) -> bool:
    """Whether a network is of the kind that trains faster here than in the loop, on a CPU: at most 500,000
    parameters, all of them in linear layers (measured in `docs/performance.md`).
    """
    owners = [module for module in network.modules() if any(True for _ in module.parameters(recurse=False))]
    return layout.size <= 500_000 and all(isinstance(module, nn.Linear) for module in owners)
