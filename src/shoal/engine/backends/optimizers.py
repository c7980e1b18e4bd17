"""Local steps, from gradients to new parameters: of one client's row in the loop backend, of many rows under vmap."""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.core.layout import Layout
from shoal.engine.local_sgd import LocalSGD

_CLIP_EPSILON = 1e-6
"""Added to the norm by `torch.nn.utils.clip_grad_norm_`."""


def trained_names(local: LocalSGD, layout: Layout) -> list[str]:
    """The tensors that ``local`` trains, in the layout's order."""
    return [name for name in layout.trainable_names if local.tensors is None or name in local.tensors]


class LocalStep:
    """Moves parameters in place from the start of a round to its end, by SGD with momentum, weight decay and clipping.

    Args:
        local: at the learning rate of the round.
        rows: (P,) of one client, or (n, P) of n clients that step together.
        weights: the views of ``rows`` that ``local`` trains, in the layout's order.
        layout: of a row.
        term: strength and constant of `LinearTerm.constants`, (1,) and (P,), or (n, 1) and (n, P); None: none.
    """

    def __init__(
        self,
        local: LocalSGD,
        rows: Tensor,
        weights: list[Tensor],
        layout: Layout,
        term: tuple[Tensor, Tensor] | None,
    ) -> None:
        names = trained_names(local, layout)
        slices = [slice(layout.trainable)] if local.tensors is None else layout.slices(names)
        self._local, self._weights = local, weights
        self._trained = [rows[..., piece] for piece in slices]
        if local.momentum:
            velocity = torch.zeros_like(rows)
            views = layout.views(velocity)
            self._velocities, self._momenta = (
                [velocity[..., piece] for piece in slices],
                [views[name] for name in names],
            )
        self._shrink: float | Tensor = local.weight_decay
        self._constants: list[Tensor] = []
        if term is not None:
            strength, constant = term
            self._shrink = local.weight_decay + (float(strength) if rows.dim() == 1 else strength.to(rows))
            self._constants = [constant[..., piece].to(rows) for piece in slices]
        self._shrinks = isinstance(self._shrink, Tensor) or self._shrink > 0

    def step(self, gradients: Sequence[Tensor], batch: int = 1, active: Tensor | None = None) -> None:
        """One step by ``gradients / batch``, by trained tensor.

        ``active`` (n, 1) is 0 for clients whose steps are done, whose gradients are 0, and 1 for others; None: all are.
        """
        local, rate = self._local, self._local.learning_rate
        scale = 1 / batch
        if local.clip_norm is not None:
            gradients, scale = self._clipped(gradients, local.clip_norm, batch)
        if local.momentum:
            self._step_with_momentum(gradients, scale, active)
            return
        if self._shrinks:
            shrink = 1 - rate * (self._shrink if active is None else self._shrink * active)
            for trained in self._trained:
                trained.mul_(shrink)
        for trained, constant in zip(self._trained, self._constants, strict=False):
            trained.add_(constant if active is None else constant * active, alpha=rate)
        # Divided once, so that without clipping nothing is rounded twice.
        alpha = rate / batch if local.clip_norm is None else rate * scale
        for weights, gradient in zip(self._weights, gradients, strict=True):
            weights.sub_(gradient, alpha=alpha)

    def _step_with_momentum(self, gradients: Sequence[Tensor], scale: float, active: Tensor | None) -> None:
        for velocity in self._velocities:
            velocity.mul_(self._local.momentum)
        for view, gradient in zip(self._momenta, gradients, strict=True):
            view.add_(gradient, alpha=scale)
        for velocity, trained in zip(self._velocities, self._trained, strict=True):
            if isinstance(self._shrink, Tensor):
                velocity.add_(trained * self._shrink)
            elif self._shrinks:
                velocity.add_(trained, alpha=self._shrink)
        for velocity, constant in zip(self._velocities, self._constants, strict=False):
            velocity.sub_(constant)
        for velocity, trained in zip(self._velocities, self._trained, strict=True):
            trained.sub_(velocity if active is None else velocity * active, alpha=self._local.learning_rate)

    def _clipped(self, gradients: Sequence[Tensor], bound: float, batch: int) -> tuple[Sequence[Tensor], float]:
        """Gradients and the factor that brings ``gradients / batch`` of each client to a norm of at most ``bound``."""
        if self._trained[0].dim() == 1:
            norm = float(torch.stack([gradient.float().norm() for gradient in gradients]).norm()) / batch
            return gradients, min(1.0, bound / (norm + _CLIP_EPSILON)) / batch
        squares = torch.stack([gradient.flatten(1).square().sum(dim=1) for gradient in gradients]).sum(dim=0)
        factors = (bound / (squares.sqrt() + _CLIP_EPSILON)).clamp(max=1)
        return [gradient * factors.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients], 1.0


class TorchStep(LocalStep):
    """The step of an optimizer of `torch.optim`, of one client."""

    def __init__(
        self,
        local: LocalSGD,
        row: Tensor,
        weights: list[Tensor],
        layout: Layout,
        term: tuple[Tensor, Tensor] | None,
    ) -> None:
        super().__init__(local, row, weights, layout, None)
        assert local.optimizer is not None
        self._optimizer = local.optimizer.made(weights, local.learning_rate, local.weight_decay)
        self._strength = 0.0 if term is None else float(term[0])
        # One for each tensor, as the optimizer has them.
        views = {} if term is None else layout.views(term[1])
        self._constants = [views[name] for name in trained_names(local, layout) if name in views]

    def step(self, gradients: Sequence[Tensor], batch: int = 1, active: Tensor | None = None) -> None:
        """One step of the optimizer by ``gradients / batch``; ``active`` is None."""
        assert active is None
        scale = 1 / batch
        if self._local.clip_norm is not None:
            gradients, scale = self._clipped(gradients, self._local.clip_norm, batch)
        for i, (weights, gradient) in enumerate(zip(self._weights, gradients, strict=True)):
            weights.grad = gradient.to(weights) * scale
            if self._constants:
                weights.grad.add_(weights, alpha=self._strength).sub_(self._constants[i])
        self._optimizer.step()
