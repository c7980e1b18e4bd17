"""The transform of each record that lies most inside a span, where clients train on transformed images.

A member lies in the span as it was transformed in training, so the attacker searches the declared family: a grid, then
Levenberg-Marquardt steps on the residual from the best points of it. Non-members are searched for just as well.
"""

from itertools import product
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from shoal.attacks.span.row_space import RowSpace

_PER_COLUMN = {1: 25, 2: 13, 3: 7}
"""Points of the grid per column of draws that varies, by how many vary; of more columns three each."""

_STARTS, _KEPT = 5, 2
"""Points of the grid that are improved, and those of them that all steps are made from."""

_FIRST, _STEPS = 3, 10
"""Steps from all points, and then from those that are kept."""

_IMAGES = 4096
"""Transformed images in memory at a time."""

_DIFFERENCE = 2e-3
"""The difference of draws for derivatives."""


@runtime_checkable
class TransformFamily(Protocol):
    """A family of transforms that an attacker can search, as `shoal.Augmentation` is."""

    @property
    def varied(self) -> tuple[int, ...]:
        """The columns of `transformed`'s draws that change something."""
        ...

    def transformed(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Copies of images (B, C, H, W) as draws (B, 7) in [0, 1] say."""
        ...


def searched_residuals(
    space: RowSpace, images: Tensor, family: TransformFamily, *, bias: bool, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """The smallest residual over a family's transforms of each image, found by `grid, then local steps`.

    Args:
        space: of a layer that images come into as they are, with a bias one more input of 1.
        images: (M, C, H, W).
        family: of transforms.
        bias: whether there is that input.
        dtype: in whose precision inputs were computed.

    Returns:
        Residuals and their floors as `RowSpace.residuals` has them, (M,) float64 each, and the draws (M, 7).
    """
    search = _Search(space, images.float(), family, dtype, bias=bias)
    columns = list(family.varied)
    points = torch.tensor(
        list(product(*[torch.linspace(0, 1, _PER_COLUMN.get(len(columns), 3)).tolist() for _ in columns]))
    )
    coarse = search.coarse(points)
    best = coarse.topk(min(_STARTS, len(points)), dim=1, largest=False).indices
    draws = points[best]
    draws, losses = search.improved(draws, _FIRST)
    kept = losses.topk(min(_KEPT, draws.shape[1]), dim=1, largest=False).indices
    draws, losses = search.improved(draws.gather(1, kept[..., None].expand(-1, -1, len(columns))), _STEPS)
    first = losses.argmin(dim=1)
    found = draws[torch.arange(len(images)), first]
    residual, floor = space.residuals(search.inputs(torch.arange(len(images)), found))
    return residual, floor + _SEARCHED, search.full(found)


_SEARCHED = 1e-5
"""What the rounding of draws and of interpolation leaves of a residual."""


class _Search:
    """The residuals of transformed images, by the columns of draws that vary."""

    def __init__(
        self, space: RowSpace, images: Tensor, family: TransformFamily, dtype: torch.dtype, *, bias: bool
    ) -> None:
        self.images, self.family, self.dtype, self.bias = images, family, dtype, bias
        self.basis = space.basis.float()
        self.columns = list(family.varied)

    def full(self, draws: Tensor) -> Tensor:
        """Draws (B, 7) of those (B, c) in the columns that vary."""
        whole = torch.full((len(draws), 7), 0.5)
        whole[:, self.columns] = draws
        return whole

    def inputs(self, which: Tensor, draws: Tensor) -> Tensor:
        """The layer's inputs (B, d) of the images ``which`` (B,), transformed by draws (B, c)."""
        moved = self.family.transformed(self.images[which], self.full(draws)).to(self.dtype).float().flatten(1)
        return torch.cat([moved, moved.new_ones(len(moved), 1)], dim=1) if self.bias else moved

    def coarse(self, points: Tensor) -> Tensor:
        """The square of every image's residual at every point (G, c) of a grid: (M, G)."""
        losses, count = torch.empty(len(self.images), len(points)), max(1, _IMAGES // len(points))
        for begin in range(0, len(self.images), count):
            which = torch.arange(begin, min(begin + count, len(self.images)))
            inputs = self.inputs(which.repeat_interleave(len(points)), points.repeat(len(which), 1))
            inside = (inputs @ self.basis).square().sum(dim=1) / inputs.square().sum(dim=1).clamp(min=1e-30)
            losses[which] = (1 - inside).view(len(which), len(points))
        return losses

    def improved(self, draws: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Draws (M, s, c) after some steps, and the squares of their residuals (M, s)."""
        count, starts, columns = draws.shape
        which = torch.arange(count).repeat_interleave(starts)
        parts = torch.arange(len(which)).split(max(1, _IMAGES // (columns + 1)))
        ends = [self._improved(which[part], draws.view(-1, columns)[part], steps) for part in parts]
        return (
            torch.cat([end for end, _ in ends]).view(count, starts, columns),
            torch.cat([loss for _, loss in ends]).view(count, starts),
        )

    def _outside(self, which: Tensor, draws: Tensor) -> Tensor:
        """The part (B, d) of inputs outside of the space, in lengths of these inputs."""
        inputs = self.inputs(which, draws)
        inputs = inputs / inputs.norm(dim=1, keepdim=True).clamp(min=1e-30)
        return inputs - (inputs @ self.basis) @ self.basis.T

    def _improved(self, which: Tensor, draws: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Levenberg-Marquardt: a step is taken where it improves, and damped more where it does not."""
        columns = draws.shape[1]
        damping = torch.full((len(draws),), 1e-3)
        outside = self._outside(which, draws)
        loss = outside.square().sum(dim=1)
        for _ in range(steps):
            slopes = []
            for column in range(columns):
                # Inwards at the end of the range.
                difference = torch.where(draws[:, column] > 0.5, -_DIFFERENCE, _DIFFERENCE)
                moved = draws.clone()
                moved[:, column] += difference
                slopes.append((self._outside(which, moved) - outside) / difference[:, None])
            jacobian = torch.stack(slopes, dim=2)
            gradient = (jacobian.mT @ outside[:, :, None]).squeeze(2)
            normal = jacobian.mT @ jacobian
            scale = normal.diagonal(dim1=1, dim2=2)
            normal = normal + torch.diag_embed(damping[:, None] * scale + 1e-12)
            step = torch.linalg.solve(normal, gradient)
            tried = (draws - step).clamp(0, 1)
            fresh = self._outside(which, tried)
            better = fresh.square().sum(dim=1) < loss
            draws = torch.where(better[:, None], tried, draws)
            outside = torch.where(better[:, None], fresh, outside)
            loss = outside.square().sum(dim=1)
            damping = torch.where(better, damping / 10, damping * 10).clamp(1e-9, 1e6)
        return draws, loss
