"""Inputs in memory: images as (M, H, W, C), the layout that the fast kernels read, and texts as integers."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_channels_last(x: Tensor) -> Tensor:
    """Inputs with the axes in stored order: images (M, C, H, W) become (M, H, W, C), texts stay."""
    return x.movedim(1, -1) if x.dim() == 4 else x


def to_channels_first(stored: Tensor) -> Tensor:
    """Stored inputs with the axes that a network takes: images (B, C, H, W), in channels-last memory format.

    The strides say "channels last" even for one channel, where PyTorch would otherwise take its slow layout.
    """
    return stored.movedim(-1, 1) if stored.dim() == 4 else stored


def gather(x: Tensor, indices: Tensor) -> Tensor:
    """The inputs at ``indices``, a new tensor that keeps the memory format of ``x``."""
    return to_channels_first(to_channels_last(x)[indices])


def concatenate(first: Tensor, second: Tensor) -> Tensor:
    """The inputs of one tensor and then those of the other, in the memory format of both."""
    return to_channels_first(torch.cat([to_channels_last(first), to_channels_last(second)]))


def to_pixels(images: Tensor) -> NDArray[np.uint8]:
    """Images (B, C, H, W) with values from 0 to 1 as (B, C, H, W) uint8, for a picture."""
    return (images.float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().contiguous().numpy()


def to_compute_dtype(x: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Inputs on ``device``, images in ``dtype``; the numbers of words stay integers.

    A network uses these as indices, and bfloat16 represents few of 3,000 different integers.

    >>> to_compute_dtype(torch.tensor([2999, 3000]), torch.bfloat16, torch.device("cpu"))
    tensor([2999, 3000])
    """
    return x.to(device=device, dtype=x.dtype if x.dtype in (torch.int32, torch.int64) else dtype)
