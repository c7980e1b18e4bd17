"""Local steps, from gradients to new parameters: of one client in the loop backend, of many at once under vmap."""

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(eq=False)
class ClientOptimizer:
    """Moves one client's parameters from the start of its round to the end; the base of the kinds of steps.

    Args:
        local: at the learning rate of the round.
        row: (P,), changed in place.
        weights: the views of ``row`` that ``local`` trains.
        layout: of ``row``.
        term: (strength (1,), constant (P,)) as `LinearTerm.constants`; None: none.
    """

    local: LocalSGD
    row: Tensor
    weights: list[Tensor]
    layout: Layout
    term: tuple[Tensor, Tensor] | None

    def __post_init__(self) -> None:
        self._slices = _trained_slices(self.local, self.layout)
        self._trained = [self.row[piece] for piece in self._slices]
        self._shrink = self.local.weight_decay
        self._constants: list[Tensor] = []
        if self.term is not None:
            strength, constant = self.term
            self._shrink += float(strength)
            self._constants = [constant[piece] for piece in self._slices]

    def step(self, gradients: Sequence[Tensor], batch: int = 1) -> None:
        """One step by ``gradients / batch``, by trainable tensor in the layout's order."""
        raise NotImplementedError

    def _scale(self, gradients: Sequence[Tensor], batch: int) -> float:
        """The factor of the gradients: 1 / batch, and less where their norm is above ``clip_norm``."""
        if self.local.clip_norm is None:
            return 1 / batch
        norm = float(torch.stack([gradient.float().norm() for gradient in gradients]).norm()) / batch
        return min(1.0, self.local.clip_norm / (norm + _CLIP_EPSILON)) / batch


class _PlainStep(ClientOptimizer):
    def step(self, gradients: Sequence[Tensor], batch: int = 1) -> None:
        rate = self.local.learning_rate
        if self._shrink:
            for trained in self._trained:
                trained.mul_(1 - rate * self._shrink)
        for trained, constant in zip(self._trained, self._constants, strict=False):
            trained.add_(constant, alpha=rate)
        # Divided once, so that without clipping nothing is rounded twice.
        alpha = rate / batch if self.local.clip_norm is None else rate * self._scale(gradients, batch)
        for weights, gradient in zip(self.weights, gradients, strict=True):
            weights.add_(gradient, alpha=-alpha)


class _MomentumStep(ClientOptimizer):
    def __post_init__(self) -> None:
        super().__post_init__()
        velocity = torch.zeros_like(self.row)
        views = self.layout.views(velocity)
        self._velocities = [velocity[piece] for piece in self._slices]
        self._velocity_views = [views[name] for name in trained_names(self.local, self.layout)]

    def step(self, gradients: Sequence[Tensor], batch: int = 1) -> None:
        scale = self._scale(gradients, batch)
        for velocity in self._velocities:
            velocity.mul_(self.local.momentum)
        for view, gradient in zip(self._velocity_views, gradients, strict=True):
            view.add_(gradient, alpha=scale)
        for velocity, trained in zip(self._velocities, self._trained, strict=True):
            if self._shrink:
                velocity.add_(trained, alpha=self._shrink)
        for velocity, constant in zip(self._velocities, self._constants, strict=False):
            velocity.sub_(constant)
        for velocity, trained in zip(self._velocities, self._trained, strict=True):
            trained.sub_(velocity, alpha=self.local.learning_rate)


class _TorchStep(ClientOptimizer):
    def __post_init__(self) -> None:
        super().__post_init__()
        local = self.local
        assert local.optimizer is not None
        self._strength = self._shrink - local.weight_decay
        self._optimizer = local.optimizer.made(self.weights, local.learning_rate, local.weight_decay)
        # One for each tensor, as the optimizer has them.
        views = {} if self.term is None else self.layout.views(self.term[1])
        self._constants = [views[name] for name in trained_names(local, self.layout) if name in views]

    def step(self, gradients: Sequence[Tensor], batch: int = 1) -> None:
        scale = self._scale(gradients, batch)
        for i, (weights, gradient) in enumerate(zip(self.weights, gradients, strict=True)):
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


@dataclass(eq=False)
class BatchedStep:
    """The local step of n owners at once, whose rows change in place; an owner whose steps are done stays.

    Args:
        local: at the learning rate of the round.
        rows: (n, P).
        weights: the views of ``rows`` that ``local`` trains, by name.
        layout: of a row.
        term: of all owners; None: none.
        owners: (n,) int64, the owners of the rows.
    """

    local: LocalSGD
    rows: Tensor
    weights: dict[str, Tensor]
    layout: Layout
    term: LinearTerm | None
    owners: Tensor

    def __post_init__(self) -> None:
        slices = _trained_slices(self.local, self.layout)
        self._trained = [self.rows[:, piece] for piece in slices]
        self._shrink: float | Tensor = self.local.weight_decay
        self._constants: list[Tensor] = []
        if self.term is not None:
            strength, constant = self.term.constants(self.owners)
            self._shrink = self.local.weight_decay + strength.to(self.rows)
            self._constants = [constant[:, piece].to(self.rows) for piece in slices]
        velocity = torch.zeros_like(self.rows) if self.local.momentum else None
        self._velocities = [] if velocity is None else [velocity[:, piece] for piece in slices]
        self._velocity_views = {} if velocity is None else self.layout.views(velocity)

    def __call__(self, gradients: dict[str, Tensor], active: Tensor) -> None:
        """One step by ``gradients`` (n, ...), by name; ``active`` (n, 1) is 0 for owners that are done, else 1."""
        rate = self.local.learning_rate
        if self.local.clip_norm is not None:
            self._clip(gradients, self.local.clip_norm)
        if self._velocities:
            self._step_with_momentum(gradients, active)
            return
        if self._constants or self.local.weight_decay:
            for trained in self._trained:
                trained.mul_(1 - rate * self._shrink * active)
        for trained, constant in zip(self._trained, self._constants, strict=False):
            trained.add_(constant * active, alpha=rate)
        for name, view in self.weights.items():
            view.sub_(gradients[name], alpha=rate)

    def _step_with_momentum(self, gradients: dict[str, Tensor], active: Tensor) -> None:
        for velocity in self._velocities:
            velocity.mul_(self.local.momentum)
        for name in self.weights:
            self._velocity_views[name].add_(gradients[name])
        for velocity, trained in zip(self._velocities, self._trained, strict=True):
            if self._constants or self.local.weight_decay:
                velocity.add_(trained * self._shrink)
        for velocity, constant in zip(self._velocities, self._constants, strict=False):
            velocity.sub_(constant)
        for velocity, trained in zip(self._velocities, self._trained, strict=True):
            trained.sub_(velocity * active, alpha=self.local.learning_rate)

    def _clip(self, gradients: dict[str, Tensor], bound: float) -> None:
        squares = torch.stack([gradients[name].flatten(1).square().sum(dim=1) for name in self.weights]).sum(dim=0)
        factors = (bound / (squares.sqrt() + _CLIP_EPSILON)).clamp(max=1)
        for name in self.weights:
            gradients[name] = gradients[name] * factors.view(-1, *[1] * (gradients[name].dim() - 1))
