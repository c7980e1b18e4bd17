"""Augmentation as a defence: clients train on randomly transformed images."""

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
    """Random rotations, shifts, flips and crops of the training images.

    Each image gets a new random transform in every pass over the data. The transform interpolates bilinearly and fills
    with 0 outside the image. Augmentation does not change the guarantee of DP-SGD. The examples must be images.

    Args:
        rotation: the largest rotation in degrees; angles are uniform in [-rotation, rotation].
        shift: the largest shift in pixels; horizontal and vertical shifts are uniform in [-shift, shift].
        flip: whether images are mirrored horizontally with probability 1/2.
        crop: the largest fraction of height and width that is cut off, in [0, 1). The fraction and the position are
            drawn uniformly, and the remaining image is resized to the full size.
        multiplicity: the number of transformed copies of each image per step. With DP-SGD, the mean of the copies'
            gradients is clipped, so copies do not increase epsilon.
        strength: the factor in [0, 1] on rotations, shifts, crops and the probability of a flip, set by
            `with_strength`.

    Source: Kaya and Dumitras, "When Does Data Augmentation Help With Membership Inference Attacks?", ICML 2021; for
    ``multiplicity``: De et al. 2022, arXiv:2204.13650, section 3.2.

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
        """Return the setup with augmentation; raise `InputError` without images or with a second augmentation."""
        require(
            setup.kind in (None, "images"),
            f"'augmentation' needs images (got {setup.kind}); remove 'augmentation'",
        )
        require(setup.first_local().augmentation is None, "'augmentation' must not be applied twice; keep one")
        return setup.with_local_defense(self)

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        nothing = self.rotation == 0 and self.shift == 0 and not self.flip and self.crop == 0
        if nothing or self.strength == 0:
            return local
        return replace(local, augmentation=self, multiplicity=self.multiplicity)

    def draws(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw (count, 7) uniform numbers in [0, 1], independently of the settings."""
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
        """The indices of the uniform draws that affect `transformed`."""
        angle, flip, shifts, crop = (self.rotation, [0]), (self.flip, [2]), (self.shift, [3, 4]), (self.crop, [1, 5, 6])
        used = (columns for size, columns in (angle, crop, flip, shifts) if size and self.strength)
        return tuple(sorted(column for columns in used for column in columns))

    def transformed(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Transform images (B, C, H, W) by uniform draws (B, 7) in [0, 1].

        The seven columns determine the angle, the fraction cut off, the flip, the horizontal and vertical shift, and
        the horizontal and vertical position of the crop.
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
    """Return the positions (pixels,) of pixel centres along a side, from -1 to 1."""
    return (2 * torch.arange(pixels) + 1) / pixels - 1
