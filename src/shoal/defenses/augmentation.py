"""Augmentation as a defence: clients train on randomly transformed images, never on an image as it is."""

import math
from dataclasses import field, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from shoal.core.errors import require
from shoal.core.settings import Flag, Fraction, Internal, NonNegativeFloat, Positive, settings
from shoal.defenses.defense import Scaled, TrainingSetup
from shoal.engine import ClusterRound, LocalSGD


@settings
class Augmentation(Scaled):
    """Random rotations, shifts, flips and crops of the images in every batch, bilinear, 0 outside the image.

    Each image gets its own transform in every pass, so DP-SGD's guarantee does not change. Examples must be images.

    Args:
        rotation: largest angle in degrees, in either direction; uniform.
        shift: largest shift in pixels, in each of the four directions; uniform, with parts of a pixel.
        flip: whether to mirror every second image left to right, at random.
        crop: largest share of height and width to cut off, in [0, 1), from a random place; the rest is resized to the
            whole; uniform.
        multiplicity: M, copies of each image in a step, each with its own transform. With DP-SGD the mean of their
            gradients is clipped once, so a step reads an image M times at the epsilon of one (De et al.).
        strength: the factor in [0, 1] on angles, shifts, crops and flips, set by `with_strength`.

    Source: on what it does against membership inference, Kaya and Dumitras, "When Does Data Augmentation Help With
    Membership Inference Attacks?", ICML 2021. Of ``multiplicity``: De, Berrada, Hayes, Smith, Balle 2022,
    arXiv:2204.13650, section 3.2.

    Example:
        >>> import torch, shoal
        >>> images, full = torch.eye(8).expand(4, 1, 8, 8), shoal.Augmentation(rotation=15.0, flip=True)
        >>> for strength in (0.0, 1.0):
        ...     changed = full.with_strength(strength).augmented(images, torch.Generator().manual_seed(0))
        ...     print(strength, changed.equal(images))
        ...
        0.0 True
        1.0 False
    """

    rotation: Annotated[float, Field(ge=0, le=180, strict=True)] = 15.0
    shift: NonNegativeFloat = 2.0
    flip: Flag = False
    crop: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    multiplicity: Positive = 1
    strength: Annotated[Fraction, Internal()] = field(default=1.0, kw_only=True)
    name: ClassVar[str] = "augmentation"
    title: ClassVar[str] = "Augmentation"

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """Return the setup with augmentation.

        Raises:
            InputError: the examples are not images, or images are transformed already.
        """
        require(
            setup.kind in (None, "images"),
            f"augmentation transforms images (channels, height, width), which these {setup.kind} are not",
        )
        require(setup.first_local().augmentation is None, "augmentation is applied, but images are augmented already")
        return setup.with_local_defense(self)

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        nothing = self.rotation == 0 and self.shift == 0 and not self.flip and self.crop == 0
        if nothing or self.strength == 0:
            return local
        return replace(local, augmentation=self, multiplicity=self.multiplicity)

    def draws(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw (count, 7) uniform numbers in [0, 1], always 7 so that one setting does not change another's draws."""
        return torch.rand(count, 7, generator=generator)

    def augmented(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Transform images (B, C, H, W) at random.

        >>> images = torch.zeros(2, 1, 4, 4)
        >>> Augmentation().augmented(images, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 1, 4, 4])
        """
        return self.transformed(images, self.draws(len(images), generator))

    @property
    def varied(self) -> tuple[int, ...]:
        """The columns of `transformed`'s draws that change something."""
        angle, flip, shifts, crop = (self.rotation, [0]), (self.flip, [2]), (self.shift, [3, 4]), (self.crop, [1, 5, 6])
        used = (columns for size, columns in (angle, crop, flip, shifts) if size and self.strength)
        return tuple(sorted(column for columns in used for column in columns))

    def transformed(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Transform images (B, C, H, W) by uniform draws (B, 7) in [0, 1].

        The columns: angle, share cut off, mirror, shift across and down, place of the crop across and down.
        """
        height, width = images.shape[2:]
        signed = self.strength * (2 * uniform - 1)
        angle = math.radians(self.rotation) * signed[:, 0]
        kept = 1 - self.strength * self.crop * uniform[:, 1]
        across = kept * torch.where(uniform[:, 2] < self.strength * self.flip / 2, -1.0, 1.0)
        cos, sin = angle.cos(), angle.sin()
        # Where each output pixel comes from, in units of half the width and half the height, about the centre.
        theta = torch.empty(len(images), 2, 3)
        theta[:, 0, 0], theta[:, 0, 1] = cos * across, sin * kept * (-height / width)
        theta[:, 1, 0], theta[:, 1, 1] = sin * across * (width / height), cos * kept
        theta[:, :, 2] = signed[:, 3:5] * torch.tensor([2 * self.shift / width, 2 * self.shift / height])
        theta[:, :, 2] += (1 - kept)[:, None] * (2 * uniform[:, 5:7] - 1)
        theta = theta.to(images.device)
        # A sum over columns and rows; `torch.nn.functional.affine_grid` takes ten times as long.
        across, down = _centres(width).to(theta.device), _centres(height).to(theta.device)[:, None]
        grid = (theta[:, :, 0, None, None] * across + theta[:, :, 2, None, None]) + theta[:, :, 1, None, None] * down
        moved = functional.grid_sample(images.float(), grid.permute(0, 2, 3, 1), align_corners=False)
        return moved.to(images.dtype)


def _centres(pixels: int) -> Tensor:
    """Return the centres (pixels,) of pixels in [-1, 1]."""
    return (2 * torch.arange(pixels) + 1) / pixels - 1
