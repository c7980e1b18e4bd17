"""The vmap backend: many owners in one batched computation; best for dense networks on a CPU.

Owners of unequal sizes are padded; a padded example weighs nothing, and an owner whose steps are done stays as it is.
"""

import math
from functools import partial

import torch
from torch import Tensor

from shoal.data.memory_format import to_channels_last, to_compute_dtype
from shoal.data.shards import Shards
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.engine.backends.gram_backend import GramTrainer, gram_trainer
from shoal.engine.backends.optimizers import BatchedStep, is_active, trained_names
from shoal.engine.backends.vmap_gradients import GradientInputs, VmapGradients, zero_labels
from shoal.engine.local_sgd import LocalRandomness, LocalSGD
from shoal.engine.steps import LinearTerm, StepRule, in_groups
from shoal.models.model import Model

_IN_CACHE = 2**21
"""Elements in the rows of the owners of one computation (8 MB), for the caches to hold them between two steps."""

_Step = tuple[Tensor, Tensor]
"""The entries (n, B) of the shards that owners use in a step, and their shares (n, B) of the mean loss."""

_Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Stored inputs (n, B, ...), labels (n, B) or (n, B, d), shares (n, B), and shares times example weights."""


class VmapBackend:
    """Trains owners many at a time."""

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        self._layout, self._device, self._dtype = model.layout, device, dtype
        self._gradients = VmapGradients(partial(model.structure, device, dtype), model.loss, dtype)
        self._gram = gram_trainer(model, dtype)

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
            gram = self._gram_trainer(shards, local, shape[1], steps)
            if gram is not None:
                gram.expect(shape, steps, shards.y, self._device)
            else:
                names = trained_names(local, self._layout)
                self._gradients.expect(shape, names, steps, partial(self._zero_inputs, shape, shards, local))
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
        *,
        rule: StepRule | None = None,
    ) -> None:
        """Train some owners, as `LoopBackend.train`; only the structure of ``bound``'s network is used."""
        steps = _steps(shards, owners, randomness.orders, local)
        if rule is not None:
            self._train_by_rule(bound, rows, shards, steps, local, rule)
            return
        x, y, share, weight = self._batch(shards, *steps[0])
        gram = self._gram_trainer(shards, local, x.shape[1], len(steps)) if term is None else None
        if gram is not None:
            gram.train(rows, x, y, weight, len(steps), local)
            return
        weights, rest = self._tensors(rows, local)
        bound.network.train()
        optimizer, previous = BatchedStep(local, rows, weights, self._layout, term, owners), steps[0]
        for step in steps:
            if step is not previous:
                x, y, share, weight = self._batch(shards, *step)
                previous = step
            gradients = self._gradients(bound.network, weights, rest, x, y, weight)
            optimizer(gradients, share)

    def _train_by_rule(
        self, bound: BoundNetwork, rows: Tensor, shards: Shards, steps: list[_Step], local: LocalSGD, rule: StepRule
    ) -> None:
        """Move rows (n, R) by steps of a rule."""
        bound.network.train()
        for group in in_groups(steps, rule.batches):
            batches = [self._batch(shards, *step) for step in _filled(group)]

            def gradient(params: Tensor, number: int, batches: list[_Batch] = batches) -> Tensor:
                x, y, share, weight = batches[min(number, len(batches) - 1)]
                params = params.contiguous()
                weights, rest = self._tensors(params, local)
                flat = torch.zeros_like(params)
                views = self._layout.views(flat)
                for name, value in self._gradients(bound.network, weights, rest, x, y, weight).items():
                    views[name].copy_(value)
                if local.weight_decay:
                    trainable = self._layout.trainable
                    flat[:, :trainable].add_(params[:, :trainable] * is_active(share), alpha=local.weight_decay)
                return flat

            rows.copy_(rule.step(rows, gradient, local.learning_rate))

    def _batch(self, shards: Shards, entries: Tensor, share: Tensor) -> _Batch:
        stored, indices = to_channels_last(shards.x), shards.indices[entries].to(shards.y.device)
        x, share = to_compute_dtype(stored[indices], self._dtype, self._device), share.to(self._device)
        weight = share if shards.weights is None else share * shards.weights[entries].to(share)
        return x, shards.y[indices].to(self._device), share, weight

    def _gram_trainer(self, shards: Shards, local: LocalSGD, examples: int, steps: int) -> GramTrainer | None:
        """The trainer of full batches in the span of their inputs, where that is less work."""
        plain = local.momentum == 0 and local.clip_norm is None and local.tensors is None
        if self._gram is None or not plain or not local.full(shards.sizes):
            return None
        return self._gram if self._gram.is_cheaper(examples, steps) else None

    def _tensors(self, rows: Tensor, local: LocalSGD) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The views of rows (n, P) that ``local`` trains, and the others."""
        rest = self._layout.views(rows)
        return {name: rest.pop(name) for name in trained_names(local, self._layout)}, rest

    def _zero_inputs(self, shape: torch.Size, shards: Shards, local: LocalSGD) -> GradientInputs:
        """All-zero arguments of a gradient for stored inputs of a shape (n, B, ...)."""
        weights, rest = self._tensors(torch.zeros(shape[0], self._layout.size, device=self._device), local)
        x = to_compute_dtype(torch.zeros(shape, dtype=shards.x.dtype), self._dtype, self._device)
        y = zero_labels(shape, shards.y, self._device)
        return weights, rest, x, y, torch.zeros(shape[:2], device=self._device)


def _filled(group: list[_Step]) -> list[_Step]:
    """The batches of one step; an owner that has fewer left uses its last one again."""
    filled = group[:1]
    for entries, share in group[1:]:
        active = is_active(share) > 0
        last = filled[-1]
        filled.append((torch.where(active, entries, last[0]), torch.where(active, share, last[1])))
    return filled


def _steps(shards: Shards, owners: Tensor, orders: Tensor, local: LocalSGD) -> list[_Step]:
    """All steps of the owners. Steps on the same examples have the same tensors."""
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
    plan = list(zip(first[:, None] + position, share, strict=True))
    return plan * int(steps.max()) if full else plan
