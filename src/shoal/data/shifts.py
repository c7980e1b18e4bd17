"""Shifts of the input distribution that make groups of clients differ: rotation and brightness."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from shoal.core.errors import require
from shoal.core.settings import Fraction, Range, settings

_CHUNK = 4096
"""Images rotated at a time, so that the sampling grid stays in tens of megabytes."""

RESERVED = ("overall", "total")
"""Names that no group may have: `accuracy.overall` and `violations.total` are of all groups."""


@settings
class Group:
    """A share of the clients whose images are shifted in the same way; with share 0, held-out images alone.

    Args:
        name: how configs, tables and summary keys call it.
        share: of the clients, in [0, 1]; 0: nobody's, but with its part of the test set.
        rotation: range of angles in degrees, counter-clockwise; one angle an image. None: no rotation.
        brightness: range of factors, at least 0; one factor an image. None: unchanged.

    Raises:
        InputError: a share outside [0, 1], or a range that is not two numbers in order.
    """

    name: str
    share: Fraction
    rotation: Range | None = None
    brightness: Range | None = None

    def __post_init__(self) -> None:
        where = f"data.groups.{self.name}"
        require(
            bool(self.name) and self.name not in RESERVED,
            f"'{where}' cannot be a group's name; {' and '.join(RESERVED)} stand for all groups in summary keys",
        )
        for key, bounds in (("rotation", self.rotation), ("brightness", self.brightness)):
            if bounds is not None:
                ordered = len(bounds) == 2 and all(map(math.isfinite, bounds)) and bounds[0] <= bounds[1]
                given = ", ".join(f"{bound:g}" for bound in bounds)
                require(ordered, f"'{where}.{key}' must be [low, high] with low <= high; got [{given}]")
        if self.rotation is not None:
            turns = max(map(abs, self.rotation))
            require(turns <= 360, f"'{where}.rotation' must be within -360 and 360 degrees; got {turns:g}")
        if self.brightness is not None:
            low, high = self.brightness
            require(low >= 0 and high <= 100, f"'{where}.brightness' must be within 0 and 100; got [{low:g}, {high:g}]")

    def shift(self, images: Tensor, draws: Tensor) -> Tensor:
        """Shifted copies of ``images`` (B, C, H, W) in [0, 1]; ``draws`` (B, 2) uniform in [0, 1) place each image
        in the ranges of angles and factors.
        """
        if self.rotation is not None:
            images = rotate(images, _within(self.rotation, draws[:, 0]))
        if self.brightness is not None:
            images = brighten(images, _within(self.brightness, draws[:, 1]))
        return images


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Turn each image counter-clockwise about its centre, bilinear, zero outside.

    Args:
        images: (B, C, H, W) float.
        degrees: (B,) angles.

    Returns:
        (B, C, H, W), a new tensor.

    >>> corner = torch.zeros(1, 1, 3, 3); corner[0, 0, 0, 2] = 1
    >>> rotate(corner, torch.tensor([90.0]))[0, 0].round(decimals=3)
    tensor([[1., 0., 0.],
            [0., 0., 0.],
            [0., 0., 0.]])
    """
    turned = torch.empty_like(images)
    height, width = images.shape[-2:]
    for start in range(0, len(images), _CHUNK):
        piece = slice(start, start + _CHUNK)
        angle = torch.deg2rad(degrees[piece].float())
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        # affine_grid asks where each output pixel comes from, in units of half the width and half the height.
        across = torch.stack([cos, -sin * height / width, zero], dim=1)
        down = torch.stack([sin * width / height, cos, zero], dim=1)
        theta = torch.stack([across, down], dim=1)
        grid = functional.affine_grid(theta, list(images[piece].shape), align_corners=False)
        turned[piece] = functional.grid_sample(images[piece], grid, padding_mode="zeros", align_corners=False)
    return turned


def brighten(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply each image (B, C, H, W) by its factor (B,), clipped to [0, 1]."""
    return (images * factors.float()[:, None, None, None]).clamp(0, 1)


def _within(bounds: tuple[float, float], uniform: Tensor) -> Tensor:
    low, high = bounds
    return low + (high - low) * uniform
