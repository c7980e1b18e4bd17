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
        weights: the views of ``row`` that are trained: all, or those that ``local`` names.
        layout: of ``row``.
        term: (strength (1,), constant (P,)) as `LinearTerm.constants`; None: none.
    """
    if local.optimizer is not None:
        return _TorchStep(local, row, weights, layout, term)
    if local.momentum == 0:
        return _PlainStep(local, row, weights, layout, term)
    return _MomentumStep(local, row, weights, layout, term)


def trained_names(local: LocalSGD, layout: Layout) -> list[str]:
    """The tensors that ``local`` trains, in the layout's order."""
    trainable = [slot.name for slot in layout.slots if slot.start < layout.trainable]
    return trainable if local.tensors is None else [name for name in trainable if name in local.tensors]


def trained_pieces(local: LocalSGD, layout: Layout) -> list[slice]:
    """Their places in a row."""
    return [slice(layout.trainable)] if local.tensors is None else layout.slices(trained_names(local, layout))


class _Step:
    """What the kinds of steps share."""

    def __init__(
        self, local: LocalSGD, row: Tensor, weights: list[Tensor], layout: Layout, term: tuple[Tensor, Tensor] | None
    ) -> None:
        self._local, self._weights = local, weights
        # One piece of the row, or a few where only some tensors are trained.
        self._pieces = trained_pieces(local, layout)
        self._trained = [row[piece] for piece in self._pieces]
        self._shrink = local.weight_decay
        self._constants: list[Tensor] = []
        if term is not None:
            strength, constant = term
            self._shrink += float(strength)
            self._constants = [constant[piece] for piece in self._pieces]

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
            for trained in self._trained:
                trained.mul_(1 - rate * self._shrink)
        for trained, constant in zip(self._trained, self._constants, strict=False):
            trained.add_(constant, alpha=rate)
        # Divided once, so that without clipping nothing is rounded twice.
        alpha = rate / batch if self._local.clip_norm is None else rate * self._scale(gradients, batch)
        for weights, gradient in zip(self._weights, gradients, strict=True):
            weights.add_(gradient, alpha=-alpha)


class _MomentumStep(_Step):
    def __init__(
        self, local: LocalSGD, row: Tensor, weights: list[Tensor], layout: Layout, term: tuple[Tensor, Tensor] | None
    ) -> None:
        super().__init__(local, row, weights, layout, term)
        velocity = torch.zeros_like(row)
        views = layout.views(velocity)
        self._velocity = [velocity[piece] for piece in self._pieces]
        self._velocities = [views[name] for name in trained_names(local, layout)]

    def step(self, gradients: Sequence[Tensor], batch: int = 1) -> None:
        scale = self._scale(gradients, batch)
        for velocity in self._velocity:
            velocity.mul_(self._local.momentum)
        for each, gradient in zip(self._velocities, gradients, strict=True):
            each.add_(gradient, alpha=scale)
        for velocity, trained in zip(self._velocity, self._trained, strict=True):
            if self._shrink:
                velocity.add_(trained, alpha=self._shrink)
        for velocity, constant in zip(self._velocity, self._constants, strict=False):
            velocity.sub_(constant)
        for velocity, trained in zip(self._velocity, self._trained, strict=True):
            trained.sub_(velocity, alpha=self._local.learning_rate)


class _TorchStep(_Step):
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
