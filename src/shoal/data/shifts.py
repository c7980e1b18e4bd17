"""Differences between clients: groups with shifted images or labels, and label skew.

Sources of label skew: Hsu, Qi, Brown 2019, arXiv:1909.06335, and Yurochkin et al. 2019, arXiv:1905.12022.
Source of balanced label skew: Wang et al. 2020, arXiv:2002.06440.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Count, Fraction, settings
from shoal.data.datasets import LabelledDataset, TableDataset, TextDataset
from shoal.data.names import require_group_name

_CHUNK = 4096
"""The number of images rotated at a time, which limits the sampling grid to tens of megabytes."""

_Angle = Annotated[float, Field(ge=-360, le=360, strict=True)]
_Factor = Annotated[float, Field(ge=0, le=100, strict=True)]


@settings
class Group:
    """A group of clients whose images or labels have the same shift.

    Args:
        name: the group's name in tables and summary keys.
        share: the fraction of all clients that belong to the group. A group with share 0 has only test images.
        rotation: the range [low, high] of rotation angles in degrees, counter-clockwise. Interpolation is bilinear, and
            pixels outside the image are 0.
        brightness: the range [low, high] of brightness factors. Changed pixel values are clipped to [0, 1].
        shift_per: whether each ``image`` or each ``client`` has its own angle and brightness factor. With ``client``, a
            client's training and hold-out images all have the same angle and factor. Test and shadow images always have
            their own angle and factor.
        label_shift: a number added to every label of the group, modulo the number of classes (concept shift).
        shadow_share: the group's weight in the server's shadow set; 0 excludes the group. The default is ``share``.

    Raises:
        InputError: a value is outside its allowed range, a range has low above high, the name is reserved, or
            ``shift_per`` is "client" without a range.
    """

    name: str
    share: Fraction
    rotation: Annotated[tuple[_Angle, _Angle], Field(strict=False)] | None = None
    brightness: Annotated[tuple[_Factor, _Factor], Field(strict=False)] | None = None
    shift_per: Literal["image", "client"] = "image"
    label_shift: Count | None = None
    shadow_share: Fraction | None = None

    def __post_init__(self) -> None:
        require_group_name(self.name)
        for name, bounds in (("rotation", self.rotation), ("brightness", self.brightness)):
            if bounds is not None:
                low, high = bounds
                require(low <= high, f"'{name}' must be [low, high] with low <= high (got [{low:g}, {high:g}])")
        require(
            self.shift_per == "image" or self.rotation is not None or self.brightness is not None,
            f"'shift_per' = \"client\" of group '{self.name}' requires 'rotation' or 'brightness'",
        )

    @property
    def shadow_weight(self) -> float:
        """The weight of the group in the shadow set."""
        return self.share if self.shadow_share is None else self.shadow_share

    def shift(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Return shifted copies of ``images`` (B, C, H, W) in [0, 1].

        ``uniform`` (B, 2) in [0, 1) selects each image's angle and factor from the group's ranges.
        """
        if self.rotation is not None:
            images = rotate(images, _interpolate(self.rotation, uniform[:, 0]))
        if self.brightness is not None:
            images = brighten(images, _interpolate(self.brightness, uniform[:, 1]))
        return images


def shift_inputs(
    dataset: LabelledDataset,
    indices: Tensor,
    groups: Sequence[Group],
    group: Tensor,
    stream: Stream,
    client: Tensor | None = None,
) -> Tensor:
    """Convert examples to network inputs: images are scaled to [0, 1] and shifted, texts and rows stay unchanged.

    An image's shift depends only on the image's index, its group and the stream. With ``shift_per = "client"`` the
    client's id replaces the index.

    Args:
        dataset: the data set.
        indices: the examples to convert, (m,) int64.
        groups: the groups.
        group: the index of each example's group in ``groups``, (m,) int64.
        stream: the random stream of angles and factors.
        client: the id of each image's client, (m,) int64, or None for a shift per image.

    Returns:
        Images (m, C, H, W) float32 with channels last in memory, words (m, L) int64, or rows (m, F) float32.
    """
    if isinstance(dataset, TextDataset):
        return dataset.words[indices]
    if isinstance(dataset, TableDataset):
        return dataset.rows[indices]
    by_image = torch.rand(len(dataset.labels), 2, generator=stream("shift").generator())[indices]
    by_client = by_image if client is None else _uniform_per_client(client, stream("shift"))
    _, channels, height, width = dataset.pixels.shape
    shifted = torch.empty(len(indices), height, width, channels).permute(0, 3, 1, 2)
    for g, shift in enumerate(groups):
        rows = torch.nonzero(group == g).squeeze(1)
        images = dataset.pixels[indices[rows]].float() / dataset.white
        shifted[rows] = shift.shift(images, (by_image if shift.shift_per == "image" else by_client)[rows])
    return shifted


def shift_labels(dataset: LabelledDataset, indices: Tensor, groups: Sequence[Group], group: Tensor) -> Tensor:
    """Return the labels (m,) int64 of the examples ``indices`` (m,), shifted by group."""
    shifts = torch.tensor([shift.label_shift or 0 for shift in groups])
    return (dataset.labels[indices] + shifts[group]) % dataset.classes


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each image (B, C, H, W) counter-clockwise by ``degrees`` (B,) about its centre, bilinear, zero outside.

    >>> corner = torch.zeros(1, 1, 3, 3); corner[0, 0, 0, 2] = 1
    >>> rotate(corner, torch.tensor([90.0]))[0, 0].round(decimals=3)
    tensor([[1., 0., 0.],
            [0., 0., 0.],
            [0., 0., 0.]])
    """
    rotated = torch.empty_like(images)
    height, width = images.shape[-2:]
    for start in range(0, len(images), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        angle = torch.deg2rad(degrees[chunk].float())
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        # affine_grid takes the source of each output pixel, in units of half the width and half the height.
        across = torch.stack([cos, -sin * height / width, zero], dim=1)
        down = torch.stack([sin * width / height, cos, zero], dim=1)
        theta = torch.stack([across, down], dim=1)
        grid = functional.affine_grid(theta, list(images[chunk].shape), align_corners=False)
        rotated[chunk] = functional.grid_sample(images[chunk], grid, padding_mode="zeros", align_corners=False)
    return rotated


def brighten(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply each image (B, C, H, W) by its factor (B,), clipped to [0, 1]."""
    return (images * factors.float()[:, None, None, None]).clamp(0, 1)


def _uniform_per_client(client: Tensor, stream: Stream) -> Tensor:
    """Draw (m, 2) float32 in [0, 1]; row i depends only on the stream and the client id ``client[i]``."""
    draws = [stream("client", name).seeds(client).double() / 2**63 for name in ("rotation", "brightness")]
    return torch.stack(draws, dim=1).float()


def _interpolate(bounds: tuple[float, float], uniform: Tensor) -> Tensor:
    low, high = bounds
    return low + (high - low) * uniform


def skew_labels(labels: Tensor, clients: int, alpha: float, stream: Stream) -> Tensor:
    """Assign each example to a client, (M,) int64, with the proportions of each class drawn from Dirichlet(alpha).

    A small ``alpha`` gives clients few classes and unequal sizes. Each client without examples gets one example of the
    largest client.
    """
    owners = draw_owners(labels.numpy(), clients, alpha, stream.numpy())
    for client in np.flatnonzero(np.bincount(owners, minlength=clients) == 0):
        largest = np.bincount(owners, minlength=clients).argmax()
        owners[np.flatnonzero(owners == largest)[0]] = client
    return torch.from_numpy(owners)


def draw_owners(
    labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator, *, balanced: bool = False
) -> np.ndarray:
    """Assign examples to clients as `skew_labels` does, but allow clients without examples.

    If ``balanced``, a client that has 1/clients of all examples gets no examples of later classes.
    """
    owners = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        indices = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        if balanced:
            has_room = np.bincount(owners[labels < label], minlength=clients) < len(labels) / clients
            # A small alpha may give everything to clients that get no more.
            shares = shares * has_room if (shares * has_room).any() else has_room
            shares = shares / shares.sum()
        cuts = np.floor(np.cumsum(shares)[:-1] * len(indices)).astype(np.int64)
        owners[indices] = np.searchsorted(cuts, np.arange(len(indices)), side="right")
    return owners
