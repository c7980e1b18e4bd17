"""The vmap backend: many owners in one batched computation; best for dense networks on a CPU.

Owners of unequal sizes are padded; a padded example weighs nothing, and an owner whose steps are done stays as it is.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn

from shoal.core.layout import Layout
from shoal.data.memory_format import to_channels_last, to_compute_dtype
from shoal.data.shards import Shards
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.engine.backends.client_optimizer import CLIP_EPSILON, trained_names, trained_pieces
from shoal.engine.backends.gram_backend import GramTrainer, gram_trainer
from shoal.engine.backends.vmap_gradients import GradientInputs, VmapGradients, zero_labels
from shoal.engine.linear_term import LinearTerm
from shoal.engine.local_sgd import LocalRandomness, LocalSGD
from shoal.engine.step_rule import StepRule, in_groups
from shoal.models.model import Model

_IN_CACHE = 2**21
"""Numbers in the rows of the owners of one computation (8 MB), for the caches to hold them between two steps."""


class VmapBackend:
    """Trains owners many at a time."""

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        self._layout, self._device, self._dtype = model.layout, device, dtype
        self._gradients = VmapGradients(model.network, model.loss, dtype)
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
                self._gradients.expect(shape, names, steps, partial(self._example, shape, shards, local))
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
        """See `LoopBackend.train`; only the structure of ``bound``'s network is used."""
        plan = _steps(shards, owners, randomness.orders, local)
        if rule is not None:
            self._train_by_rule(bound, rows, shards, plan, local, rule)
            return
        x, y, share, weight = self._batch(shards, *plan[0])
        gram = self._gram_trainer(shards, local, x.shape[1], len(plan)) if term is None else None
        if gram is not None:
            gram.train(rows, x, y, weight, len(plan), local)
            return
        weights, rest = self._tensors(rows, local)
        bound.network.train()
        step, before = _BatchedStep(local, rows, weights, self._layout, term, owners), plan[0]
        for now in plan:
            if now is not before:
                x, y, share, weight = self._batch(shards, *now)
                before = now
            gradients = self._gradients(bound.network, weights, rest, x, y, weight)
            step(gradients, share)

    def _train_by_rule(
        self,
        bound: BoundNetwork,
        rows: Tensor,
        shards: Shards,
        plan: list[tuple[Tensor, Tensor]],
        local: LocalSGD,
        rule: StepRule,
    ) -> None:
        """Move rows (n, R) by steps of a rule."""
        bound.network.train()
        for group in in_groups(plan, rule.batches):
            batches = [self._batch(shards, *each) for each in _filled(group)]

            def gradient(
                parameters: Tensor, number: int, batches: list[tuple[Tensor, Tensor, Tensor, Tensor]] = batches
            ) -> Tensor:
                x, y, share, weight = batches[min(number, len(batches) - 1)]
                at = parameters.contiguous()
                weights, rest = self._tensors(at, local)
                flat = torch.zeros_like(at)
                views = self._layout.views(flat)
                for name, found in self._gradients(bound.network, weights, rest, x, y, weight).items():
                    views[name].copy_(found)
                if local.weight_decay:
                    trainable = self._layout.trainable
                    flat[:, :trainable].add_(at[:, :trainable] * _active(share), alpha=local.weight_decay)
                return flat

            rows.copy_(rule.step(rows, gradient, local.learning_rate))

    def _batch(self, shards: Shards, entries: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Stored inputs (n, B, ...), labels (n, B) or (n, B, d), shares (n, B) of a step, and the shares times the
        examples' weights, where they are used.
        """
        stored, there = to_channels_last(shards.x), shards.indices[entries].to(shards.y.device)
        x, share = to_compute_dtype(stored[there], self._dtype, self._device), share.to(self._device)
        weight = share if shards.weights is None else share * shards.weights[entries].to(share)
        return x, shards.y[there].to(self._device), share, weight

    def _gram_trainer(self, shards: Shards, local: LocalSGD, examples: int, steps: int) -> GramTrainer | None:
        """What trains full batches in the span of their inputs, where that is less work."""
        plain = local.momentum == 0 and local.clip_norm is None and local.tensors is None
        if self._gram is None or not plain or not local.full(shards.sizes):
            return None
        return self._gram if self._gram.pays(examples, steps) else None

    def _tensors(self, rows: Tensor, local: LocalSGD) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The views of rows (n, P) that ``local`` trains, and the others."""
        rest = self._layout.views(rows)
        return {name: rest.pop(name) for name in trained_names(local, self._layout)}, rest

    def _example(self, shape: torch.Size, shards: Shards, local: LocalSGD) -> GradientInputs:
        """Arguments of a gradient for stored inputs of a shape (n, B, ...), like those of ``shards`` but all zero."""
        weights, rest = self._tensors(torch.zeros(shape[0], self._layout.size, device=self._device), local)
        x = to_compute_dtype(torch.zeros(shape, dtype=shards.x.dtype), self._dtype, self._device)
        y = zero_labels(shape, shards.y, self._device)
        return weights, rest, x, y, torch.zeros(shape[:2], device=self._device)


class _BatchedStep:
    """The local step of n owners at once; an owner whose steps are done stays where it is.

    Args:
        local: at the learning rate of the round.
        rows: (n, P), changed in place.
        weights: the trainable views of ``rows`` by name.
        layout: of a row.
        term: of all owners; None: none.
        owners: (n,) of these rows.
    """

    def __init__(
        self,
        local: LocalSGD,
        rows: Tensor,
        weights: dict[str, Tensor],
        layout: Layout,
        term: LinearTerm | None,
        owners: Tensor,
    ) -> None:
        self._local, self._weights = local, weights
        # One piece of each row, or a few where only some tensors are trained.
        pieces = trained_pieces(local, layout)
        self._trained = [rows[:, piece] for piece in pieces]
        self._shrink: float | Tensor = local.weight_decay
        self._constants: list[Tensor] = []
        if term is not None:
            strength, constant = term.constants(owners)
            self._shrink = local.weight_decay + strength.to(rows)
            self._constants = [constant[:, piece].to(rows) for piece in pieces]
        velocity = torch.zeros_like(rows) if local.momentum else None
        self._velocity = [] if velocity is None else [velocity[:, piece] for piece in pieces]
        self._velocities = {} if velocity is None else layout.views(velocity)

    def __call__(self, gradients: dict[str, Tensor], share: Tensor) -> None:
        """One step by ``gradients`` (n, ...), by name; ``share`` (n, B) is 0 throughout for owners that are done."""
        rate = self._local.learning_rate
        if self._local.clip_norm is not None:
            self._clip(gradients, self._local.clip_norm)
        if self._velocity:
            self._step_with_momentum(gradients, _active(share))
            return
        if self._constants or self._local.weight_decay:
            for trained in self._trained:
                trained.mul_(1 - rate * self._shrink * _active(share))
        for trained, constant in zip(self._trained, self._constants, strict=False):
            trained.add_(constant * _active(share), alpha=rate)
        for name, view in self._weights.items():
            view.sub_(gradients[name], alpha=rate)

    def _step_with_momentum(self, gradients: dict[str, Tensor], active: Tensor) -> None:
        for velocity in self._velocity:
            velocity.mul_(self._local.momentum)
        for name in self._weights:
            self._velocities[name].add_(gradients[name])
        for velocity, trained in zip(self._velocity, self._trained, strict=True):
            if self._constants or self._local.weight_decay:
                velocity.add_(trained * self._shrink)
        for velocity, constant in zip(self._velocity, self._constants, strict=False):
            velocity.sub_(constant)
        for velocity, trained in zip(self._velocity, self._trained, strict=True):
            trained.sub_(velocity * active, alpha=self._local.learning_rate)

    def _clip(self, gradients: dict[str, Tensor], bound: float) -> None:
        squares = torch.stack([gradients[name].flatten(1).square().sum(dim=1) for name in self._weights]).sum(dim=0)
        kept = (bound / (squares.sqrt() + CLIP_EPSILON)).clamp(max=1)
        for name in self._weights:
            gradients[name] = gradients[name] * kept.view(-1, *[1] * (gradients[name].dim() - 1))


def _filled(group: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """The batches of one step, as `_steps`: an owner that has fewer left uses its last one again."""
    filled = group[:1]
    for rows, share in group[1:]:
        has = _active(share) > 0
        before = filled[-1]
        filled.append((torch.where(has, rows, before[0]), torch.where(has, share, before[1])))
    return filled


def _active(share: Tensor) -> Tensor:
    """(n, 1), 1 where an owner takes part in a step."""
    return (share > 0).any(dim=1).float()[:, None]


def _steps(shards: Shards, owners: Tensor, orders: Tensor, local: LocalSGD) -> list[tuple[Tensor, Tensor]]:
    """For each step, the entries (n, batch) of the shards that the owners use and their shares of the mean loss.

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
    plan = list(zip(first[:, None] + position, share, strict=True))
    return plan * int(steps.max()) if full else plan


def prefers_vmap(layout: Layout, network: nn.Module) -> bool:
    """Whether a network is of the kind that trains faster here than in the loop, on a CPU: at most 500,000
    parameters, all of them in linear layers (measured in `docs/performance.md`).
    """
    owners = [module for module in network.modules() if any(True for _ in module.parameters(recurse=False))]
    return layout.size <= 500_000 and all(isinstance(module, nn.Linear) for module in owners)
