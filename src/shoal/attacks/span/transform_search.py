"""A search for the transform with each record's smallest residual, for clients that train on transformed images.

A member lies in the span only after the transform that was applied in training. The attacker knows the family of
transforms, searches a grid, then takes Levenberg-Marquardt steps from the best grid points. Members and non-members are
searched in the same way.
"""

from itertools import product
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from shoal.attacks.span.row_space import RowSpace

_PER_COLUMN = {1: 25, 2: 13, 3: 7}
"""The number of grid points per varied column, by the number of varied columns; 3 for more columns."""

_STARTS, _BEST = 5, 2
"""The number of grid points that are improved by a few steps, and the number of the best that are improved further."""

_FIRST, _STEPS = 3, 10
"""The number of steps from each start, and then from each of the best."""

_IMAGES = 4096
"""The number of transformed images in memory at a time."""

_DIFFERENCE = 2e-3
"""The step size in draws for finite differences."""

_SEARCH_FLOOR = 1e-5
"""The residual that remains because draws and interpolation are rounded."""


@runtime_checkable
class TransformFamily(Protocol):
    """A family of transforms that an attacker can search, such as `shoal.Augmentation`."""

    @property
    def varied(self) -> tuple[int, ...]:
        """The columns of ``uniform`` that change the result of `transformed`."""
        ...

    def transformed(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Transform images (B, C, H, W) by draws ``uniform`` (B, 7) in [0, 1]."""
        ...


def search_residuals(
    space: RowSpace, images: Tensor, family: TransformFamily, *, bias: bool, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Search for the smallest residual of each image over a family's transforms.

    Args:
        space: the row space of a layer with images as inputs.
        images: the images, (M, C, H, W).
        family: the transforms.
        dtype: the precision of the inputs.

    Returns:
        The residuals and rounding floors, (M,) float64 each (`RowSpace.residuals`), and the draws (M, 7).
    """
    search = _Search(space, images.float(), family, dtype, bias=bias)
    columns = list(family.varied)
    points = torch.tensor(
        list(product(*[torch.linspace(0, 1, _PER_COLUMN.get(len(columns), 3)).tolist() for _ in columns]))
    )
    coarse = search.coarse(points)
    best = coarse.topk(min(_STARTS, len(points)), dim=1, largest=False).indices
    draws = points[best]
    draws, losses = search.improve(draws, _FIRST)
    best = losses.topk(min(_BEST, draws.shape[1]), dim=1, largest=False).indices
    draws, losses = search.improve(draws.gather(1, best[..., None].expand(-1, -1, len(columns))), _STEPS)
    chosen = draws[torch.arange(len(images)), losses.argmin(dim=1)]
    residual, floor = space.residuals(search.inputs(torch.arange(len(images)), chosen))
    return residual, floor + _SEARCH_FLOOR, search.full(chosen)


class _Search:
    """The residuals of transformed images as a function of the varied columns of draws."""

    def __init__(
        self, space: RowSpace, images: Tensor, family: TransformFamily, dtype: torch.dtype, *, bias: bool
    ) -> None:
        self.images, self.family, self.dtype, self.bias = images, family, dtype, bias
        self.basis = space.basis.float()
        self.columns = list(family.varied)

    def full(self, draws: Tensor) -> Tensor:
        """Extend draws (B, c) of the varied columns to all columns, (B, 7)."""
        whole = torch.full((len(draws), 7), 0.5)
        whole[:, self.columns] = draws
        return whole

    def inputs(self, which: Tensor, draws: Tensor) -> Tensor:
        """Return the layer's inputs (B, d) for the images ``which`` (B,), transformed by draws (B, c)."""
        pixels = self.family.transformed(self.images[which], self.full(draws)).to(self.dtype).float().flatten(1)
        return torch.cat([pixels, pixels.new_ones(len(pixels), 1)], dim=1) if self.bias else pixels

    def coarse(self, points: Tensor) -> Tensor:
        """Return the squared residuals (M, G) of all images at all grid points (G, c)."""
        losses, count = torch.empty(len(self.images), len(points)), max(1, _IMAGES // len(points))
        for begin in range(0, len(self.images), count):
            which = torch.arange(begin, min(begin + count, len(self.images)))
            inputs = self.inputs(which.repeat_interleave(len(points)), points.repeat(len(which), 1))
            inside = (inputs @ self.basis).square().sum(dim=1) / inputs.square().sum(dim=1).clamp(min=1e-30)
            losses[which] = (1 - inside).view(len(which), len(points))
        return losses

    def improve(self, draws: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Improve draws (M, s, c) by ``steps`` steps, and return the draws and their squared residuals (M, s)."""
        count, starts, columns = draws.shape
        which = torch.arange(count).repeat_interleave(starts)
        parts = torch.arange(len(which)).split(max(1, _IMAGES // (columns + 1)))
        ends = [self._descend(which[part], draws.view(-1, columns)[part], steps) for part in parts]
        return (
            torch.cat([end for end, _ in ends]).view(count, starts, columns),
            torch.cat([loss for _, loss in ends]).view(count, starts),
        )

    def _outside(self, which: Tensor, draws: Tensor) -> Tensor:
        """Return the part (B, d) of unit inputs outside the space."""
        inputs = self.inputs(which, draws)
        inputs = inputs / inputs.norm(dim=1, keepdim=True).clamp(min=1e-30)
        return inputs - (inputs @ self.basis) @ self.basis.T

    def _descend(self, which: Tensor, draws: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Take Levenberg-Marquardt steps; discard steps that do not reduce the residual, and increase their damping."""
        columns = draws.shape[1]
        damping = torch.full((len(draws),), 1e-3)
        outside = self._outside(which, draws)
        loss = outside.square().sum(dim=1)
        for _ in range(steps):
            slopes = []
            for column in range(columns):
                # Inwards at the end of the range.
                difference = torch.where(draws[:, column] > 0.5, -_DIFFERENCE, _DIFFERENCE)
                shifted = draws.clone()
                shifted[:, column] += difference
                slopes.append((self._outside(which, shifted) - outside) / difference[:, None])
            jacobian = torch.stack(slopes, dim=2)
            gradient = (jacobian.mT @ outside[:, :, None]).squeeze(2)
            normal = jacobian.mT @ jacobian
            scale = normal.diagonal(dim1=1, dim2=2)
            normal = normal + torch.diag_embed(damping[:, None] * scale + 1e-12)
            step = torch.linalg.solve(normal, gradient)
            next_draws = (draws - step).clamp(0, 1)
            next_outside = self._outside(which, next_draws)
            better = next_outside.square().sum(dim=1) < loss
            draws = torch.where(better[:, None], next_draws, draws)
            outside = torch.where(better[:, None], next_outside, outside)
            loss = outside.square().sum(dim=1)
            damping = torch.where(better, damping / 10, damping * 10).clamp(1e-9, 1e6)
        return draws, loss
