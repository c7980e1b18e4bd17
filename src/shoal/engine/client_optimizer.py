"""The local step: from a gradient to new parameters, of one client in the loop backend."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from shoal.core.layout import Layout
from shoal.engine.local_sgd import LocalSGD

CLIP_EPSILON = 1e-6
"""Added to the norm by `torch.nn.utils.clip_grad_norm_`."""


class ClientOptimizer(Protocol):
    """Moves one client's parameters, from the start of its round to the end."""

    def step(self, gradients: Sequence[Tensor], batch: int = 1) -> None:
        """One step by ``gradients / batch``, by trainable tensor in the layout's order."""
        ...


def client_optimizer(
    local: LocalSGD, row: Tensor, weights: list[Tensor], layout: Layout, term: tuple[Tensor, Tensor] | None
) -> ClientOptimizer:
    """What steps of ``local`` do to a client's parameters.

    Args:
        local: at the learning rate of the round.
        row: (P,), changed in place.
        weights: the views of ``row`` that are trained.
        layout: of ``row``.
        term: (strength (1,), constant (P,)) as `LinearTerm.constants`; None: none.
    """
    if local.optimizer is not None:
        return _TorchStep(local, row, weights, layout, term)
    if local.momentum == 0:
        return _PlainStep(local, row, weights, layout, term)
    return _MomentumStep(local, row, weights, layout, term)


class _Step:
    """What the kinds of steps share."""

    def __init__(
        self, local: LocalSGD, row: Tensor, weights: list[Tensor], layout: Layout, term: tuple[Tensor, Tensor] | None
    ) -> None:
        self._local, self._weights, self._layout = local, weights, layout
        self._trained = row[: layout.trainable]
        self._shrink, self._constant = local.weight_decay, None
        if term is not None:
            strength, constant = term
            self._shrink += float(strength)
            self._constant = constant[: layout.trainable]

    def _scale(self, gradients: Sequence[Tensor], batch: int) -> float:
        """What gradients are multiplied by: 1 / batch, and less where their norm is above ``clip_norm``."""
        if self._local.clip_norm is None:
            return 1 / batch
        norm = float(torch.stack([each.float().norm() for each in gradients]).norm()) / batch
        return min(1.0, self._local.clip_norm / (norm + CLIP_EPSILON)) / batch


class _PlainStep(_Step):
    def step(self, gradients: Sequence[Tensor], batch: int = 1) -> None:
        rate = self._local.learning_rate
        if self._shrink:
            self._trained.mul_(1 - rate * self._shrink)
        if self._constant is not None:
            self._trained.add_(self._constant, alpha=rate)
        # Divided once, so that without clipping nothing is rounded twice.
        alpha = rate / batch if self._local.clip_norm is None else rate * self._scale(gradients, batch)
        for weights, gradient in zip(self._weights, gradients, strict=True):
            weights.add_(gradient, alpha=-alpha)


class _MomentumStep(_Step):
    def __init__(
        self, local: LocalSGD, row: Tensor, weights: list[Tensor], layout: Layout, term: tuple[Tensor, Tensor] | None
    ) -> None:
        super().__init__(local, row, weights, layout, term)
        self._velocity = torch.zeros_like(row)
        views = layout.views(self._velocity)
        self._velocities = [views[slot.name] for slot in layout.slots if slot.start < layout.trainable]

    def step(self, gradients: Sequence[Tensor], batch: int = 1) -> None:
        scale, velocity = self._scale(gradients, batch), self._velocity[: self._layout.trainable]
        velocity.mul_(self._local.momentum)
        for each, gradient in zip(self._velocities, gradients, strict=True):
            each.add_(gradient, alpha=scale)
        if self._shrink:
            velocity.add_(self._trained, alpha=self._shrink)
        if self._constant is not None:
            velocity.sub_(self._constant)
        self._trained.sub_(velocity, alpha=self._local.learning_rate)


class _TorchStep(_Step):
    def __init__(
        self, local: LocalSGD, row: Tensor, weights: list[Tensor], layout: Layout, term: tuple[Tensor, Tensor] | None
    ) -> None:
        super().__init__(local, row, weights, layout, term)
        assert local.optimizer is not None
        self._strength = self._shrink - local.weight_decay
        self._optimizer = local.optimizer.made(weights, local.learning_rate, local.weight_decay)
        self._constants: list[Tensor] = []
        if self._constant is not None and term is not None:
            views = layout.views(term[1])
            self._constants = [views[slot.name] for slot in layout.slots if slot.start < layout.trainable]

    def step(self, gradients: Sequence[Tensor], batch: int = 1) -> None:
        scale = self._scale(gradients, batch)
        for i, (weights, gradient) in enumerate(zip(self._weights, gradients, strict=True)):
            weights.grad = gradient.to(weights) * scale
            if self._constants:
                weights.grad.add_(weights, alpha=self._strength).sub_(self._constants[i])
        self._optimizer.step()
