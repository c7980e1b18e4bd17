"""The vmap backend: many owners in one batched computation; best for dense networks on a CPU.

Owners of unequal sizes are padded; a padded example weighs nothing, and an owner whose steps are done stays put.
"""

import math

import torch
from torch import Tensor, nn

from shoal.core.layout import Layout
from shoal.data.memory_format import to_channels_last, to_compute_dtype
from shoal.data.shards import Shards
from shoal.engine.bound_network import BoundNetwork
from shoal.engine.gram_backend import GramTrainer, spanned
from shoal.engine.local_sgd import LocalRandomness, LocalSGD
from shoal.engine.vmap_gradients import Given, Gradients
from shoal.models.model import Model

_IN_CACHE = 2**21
"""Numbers in the rows of the owners of one computation (8 MB), for the caches to hold them between two steps."""


class VmapBackend:
    """Trains owners many at a time."""

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        self._layout, self._device, self._dtype = model.layout, device, dtype
        self._gradients = Gradients(model.network, model.loss, dtype)
        self._spanned = spanned(model, dtype)

    def units(self, shards: Shards, local: LocalSGD) -> list[Tensor]:
        """The owners (n,) in the parts that are computed together, of nearly equal sizes so that little is padded: as
        many as keep their rows in the caches, and at most 256 (a step's fixed cost is small by then).
        """
        sizes = shards.sizes
        queue = sizes.argsort(descending=True, stable=True)
        together = min(max(_IN_CACHE // self._layout.size, 4), 256)
        parts = list(queue.tensor_split(math.ceil(len(queue) / together))) if len(queue) else []
        example = to_channels_last(shards.x).shape[1:]
        for part in parts:
            shape = torch.Size((len(part), int(local.batches(sizes[part]).max()), *example))
            steps = int(local.steps_each(sizes[part]).max())
            span = self._span(shards, local, shape[1], steps)
            if span is not None:
                span.expect(shape, steps, self._device)
            else:
                self._gradients.expect(shape, steps, lambda shape=shape: self._example(shape, shards.x.dtype))
        return parts

    def train(
        self,
        bound: BoundNetwork,
        rows: Tensor,
        shards: Shards,
        owners: Tensor,
        randomness: LocalRandomness,
        local: LocalSGD,
    ) -> None:
        """As `LoopBackend.train`; only the structure of the seat's network is used."""
        plan = _steps(shards, owners, randomness.orders, local)
        x, y, share = self._batch(shards, *plan[0])
        span = self._span(shards, local, x.shape[1], len(plan))
        if span is not None:
            span.train(rows, x, y, share, len(plan), local)
            return
        weights, rest = self._tensors(rows)
        bound.network.train()
        before = plan[0]
        for now in plan:
            if now is not before:
                x, y, share = self._batch(shards, *now)
                before = now
            slopes = self._gradients(bound.network, weights, rest, x, y, share)
            if local.weight_decay:
                active = (share > 0).any(dim=1).float()
                rows[:, : self._layout.trainable].mul_(1 - local.learning_rate * local.weight_decay * active[:, None])
            for name, view in weights.items():
                view.sub_(slopes[name], alpha=local.learning_rate)

    def _batch(self, shards: Shards, rows: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Stored inputs (n, B, ...), labels (n, B) and shares (n, B) of a step, where they are computed with."""
        stored, there = to_channels_last(shards.x), rows.to(shards.y.device)
        x = to_compute_dtype(stored[there], self._dtype, self._device)
        return x, shards.y[there].to(self._device), share.to(self._device)

    def _span(self, shards: Shards, local: LocalSGD, examples: int, steps: int) -> GramTrainer | None:
        """What trains full batches in the span of their inputs, where that is less work."""
        pays = self._spanned is not None and local.full(shards.sizes) and self._spanned.pays(examples, steps)
        return self._spanned if pays else None

    def _tensors(self, rows: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The trainable views of rows (n, P), and the others."""
        rest = self._layout.views(rows)
        trained = [slot.name for slot in self._layout.slots if slot.start < self._layout.trainable]
        return {name: rest.pop(name) for name in trained}, rest

    def _example(self, shape: torch.Size, kind: torch.dtype) -> Given:
        """Arguments of a gradient for stored inputs of a shape (n, B, ...) and dtype, all zero."""
        weights, rest = self._tensors(torch.zeros(shape[0], self._layout.size, device=self._device))
        zeros = torch.zeros(shape[:2], device=self._device)
        x = to_compute_dtype(torch.zeros(shape, dtype=kind), self._dtype, self._device)
        return weights, rest, x, zeros.long(), zeros


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
    plan = list(zip(shards.indices[first[:, None] + position], share, strict=True))
    return plan * int(steps.max()) if full else plan


def prefers_vmap(layout: Layout, network: nn.Module) -> bool:
    """Whether a network is of the kind that trains faster here than in the loop, on a CPU: at most 500,000
    parameters, all of them in linear layers (measured in `docs/performance.md`).
    """
    owners = [module for module in network.modules() if any(True for _ in module.parameters(recurse=False))]
    return layout.size <= 500_000 and all(isinstance(module, nn.Linear) for module in owners)
