"""Local steps, from gradients to new parameters: of one client in the loop backend, of many at once under vmap."""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.core.layout import Layout
from shoal.engine.local_sgd import LocalSGD
from shoal.engine.steps import LinearTerm

_CLIP_EPSILON = 1e-6
"""Added to the norm by `torch.nn.utils.clip_grad_norm_`."""


def trained_names(local: LocalSGD, layout: Layout) -> list[str]:
    """The tensors that ``local`` trains, in the layout's order."""
    return [name for name in layout.trainable_names if local.tensors is None or name in local.tensors]


def _trained_slices(local: LocalSGD, layout: Layout) -> list[slice]:
    """The places of these tensors in a row: one piece, or several where only some tensors are trained."""
    return [slice(layout.trainable)] if local.tensors is None else layout.slices(trained_names(local, layout))


class ClientOptimizer:
    """Moves one client's parameters from the start of its round to the end; the base of the kinds of steps.

    Args:
        local: at the learning rate of the round.
        row: (P,), changed in place.
        weights: the views of ``row`` that ``local`` trains.
        layout: of ``row``.
        term: (strength (1,), constant (P,)) as `LinearTerm.constants`; None: none.
    """

    def __init__(
        self, local: LocalSGD, row: Tensor, weights: list[Tensor], layout: Layout, term: tuple[Tensor, Tensor] | None
    ) -> None:
        self._local, self._weights = local, weights
        self._slices = _trained_slices(local, layout)
        self._trained = [row[piece] for piece in self._slices]
        self._shrink = local.weight_decay
        self._constants: list[Tensor] = []
        if term is not None:
            strength, constant = term
            self._shrink += float(strength)
            self._constants = [constant[piece] for piece in self._slices]

    def step(self, gradients: Sequence[Tensor], batch: int = 1) -> None:
        """One step by ``gradients / batch``, by trainable tensor in the layout's order."""
        raise NotImplementedError

    def _scale(self, gradients: Sequence[Tensor], batch: int) -> float:
        """The factor of the gradients: 1 / batch, and less where their norm is above ``clip_norm``."""
        if self._local.clip_norm is None:
            return 1 / batch
        norm = float(torch.stack([gradient.float().norm() for gradient in gradients]).norm()) / batch
        return min(1.0, self._local.clip_norm / (norm + _CLIP_EPSILON)) / batch


class _PlainStep(ClientOptimizer):
    def step(self, gradients: Sequence[Tensor], batch: int = 1) -> None:
        rate = self._local.learning_rate
        if self._shrink:
            for trained in self._trained:
                trained.mul_(1 - rate * self._shrink)
        for trained, constant in zip(self._trained, self._constants, strict=False):
            trained.add_(constant, alpha=rate)
        # Divided once, so that without clipping nothing is rounded twice.
        alpha = rate / batch if self._local.clip_norm is None else rate * self._scale(gradients, batch)
        for weights, gradient in zip(self._weights, gradients, strict=True):
            weights.add_(gradient, alpha=-alpha)


class _MomentumStep(ClientOptimizer):
    def __init__(
        self, local: LocalSGD, row: Tensor, weights: list[Tensor], layout: Layout, term: tuple[Tensor, Tensor] | None
    ) -> None:
        super().__init__(local, row, weights, layout, term)
        velocity = torch.zeros_like(row)
        views = layout.views(velocity)
        self._velocities = [velocity[piece] for piece in self._slices]
        self._velocity_views = [views[name] for name in trained_names(local, layout)]

    def step(self, gradients: Sequence[Tensor], batch: int = 1) -> None:
        scale = self._scale(gradients, batch)
        for velocity in self._velocities:
            velocity.mul_(self._local.momentum)
        for view, gradient in zip(self._velocity_views, gradients, strict=True):
            view.add_(gradient, alpha=scale)
        for velocity, trained in zip(self._velocities, self._trained, strict=True):
            if self._shrink:
                velocity.add_(trained, alpha=self._shrink)
        for velocity, constant in zip(self._velocities, self._constants, strict=False):
            velocity.sub_(constant)
        for velocity, trained in zip(self._velocities, self._trained, strict=True):
            trained.sub_(velocity, alpha=self._local.learning_rate)


class _TorchStep(ClientOptimizer):
    def __init__(
        self, local: LocalSGD, row: Tensor, weights: list[Tensor], layout: Layout, term: tuple[Tensor, Tensor] | None
    ) -> None:
        super().__init__(local, row, weights, layout, term)
        assert local.optimizer is not None
        self._strength = self._shrink - local.weight_decay
        self._optimizer = local.optimizer.made(weights, local.learning_rate, local.weight_decay)
        # One for each tensor, as the optimizer has them.
        views = {} if term is None else layout.views(term[1])
        self._constants = [views[name] for name in trained_names(local, layout) if name in views]

    def step(self, gradients: Sequence[Tensor], batch: int = 1) -> None:
        scale = self._scale(gradients, batch)
        for i, (weights, gradient) in enumerate(zip(self._weights, gradients, strict=True)):
            weights.grad = gradient.to(weights) * scale
            if self._constants:
                weights.grad.add_(weights, alpha=self._strength).sub_(self._constants[i])
        self._optimizer.step()


def client_optimizer(
    local: LocalSGD, row: Tensor, weights: list[Tensor], layout: Layout, term: tuple[Tensor, Tensor] | None
) -> ClientOptimizer:
    """The steps of ``local`` for one client; see `ClientOptimizer`."""
    kind = _TorchStep if local.optimizer is not None else _MomentumStep if local.momentum else _PlainStep
    return kind(local, row, weights, layout, term)


class BatchedStep:
    """The local step of n owners at once, whose rows (n, P) change in place; an owner whose steps are done stays.

    Args:
        local: at the learning rate of the round.
        rows: (n, P).
        weights: the views of ``rows`` that ``local`` trains, by name.
        layout: of a row.
        term: of all owners; None: none.
        owners: (n,) int64, the owners of the rows.
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
        slices = _trained_slices(local, layout)
        self._trained = [rows[:, piece] for piece in slices]
        self._shrink: float | Tensor = local.weight_decay
        self._constants: list[Tensor] = []
        if term is not None:
            strength, constant = term.constants(owners)
            self._shrink = local.weight_decay + strength.to(rows)
            self._constants = [constant[:, piece].to(rows) for piece in slices]
        velocity = torch.zeros_like(rows) if local.momentum else None
        self._velocities = [] if velocity is None else [velocity[:, piece] for piece in slices]
        self._velocity_views = {} if velocity is None else layout.views(velocity)

    def __call__(self, gradients: dict[str, Tensor], share: Tensor) -> None:
        """One step by ``gradients`` (n, ...), by name; ``share`` (n, B) is 0 throughout for owners that are done."""
        rate = self._local.learning_rate
        if self._local.clip_norm is not None:
            self._clip(gradients, self._local.clip_norm)
        if self._velocities:
            self._step_with_momentum(gradients, is_active(share))
            return
        if self._constants or self._local.weight_decay:
            for trained in self._trained:
                trained.mul_(1 - rate * self._shrink * is_active(share))
        for trained, constant in zip(self._trained, self._constants, strict=False):
            trained.add_(constant * is_active(share), alpha=rate)
        for name, view in self._weights.items():
            view.sub_(gradients[name], alpha=rate)

    def _step_with_momentum(self, gradients: dict[str, Tensor], active: Tensor) -> None:
        for velocity in self._velocities:
            velocity.mul_(self._local.momentum)
        for name in self._weights:
            self._velocity_views[name].add_(gradients[name])
        for velocity, trained in zip(self._velocities, self._trained, strict=True):
            if self._constants or self._local.weight_decay:
                velocity.add_(trained * self._shrink)
        for velocity, constant in zip(self._velocities, self._constants, strict=False):
            velocity.sub_(constant)
        for velocity, trained in zip(self._velocities, self._trained, strict=True):
            trained.sub_(velocity * active, alpha=self._local.learning_rate)

    def _clip(self, gradients: dict[str, Tensor], bound: float) -> None:
        squares = torch.stack([gradients[name].flatten(1).square().sum(dim=1) for name in self._weights]).sum(dim=0)
        factors = (bound / (squares.sqrt() + _CLIP_EPSILON)).clamp(max=1)
        for name in self._weights:
            gradients[name] = gradients[name] * factors.view(-1, *[1] * (gradients[name].dim() - 1))


def is_active(share: Tensor) -> Tensor:
    """(n, 1), 1 for owners that take part in a step, from the shares (n, B) of its examples; otherwise 0."""
    return (share > 0).any(dim=1).float()[:, None]
