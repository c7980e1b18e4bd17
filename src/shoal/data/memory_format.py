"""Inputs in memory: images as (M, H, W, C), which is how the fast kernels read them, and texts as whole numbers."""

import torch
from torch import Tensor


def to_channels_last(x: Tensor) -> Tensor:
    """Inputs in the order of axes in which they are stored and gathered: images (M, C, H, W) as (M, H, W, C)."""
    return x.movedim(1, -1) if x.dim() == 4 else x


def to_channels_first(stored: Tensor) -> Tensor:
    """Stored inputs as a network takes them: images (B, C, H, W), laid out channels last.

    The strides say "channels last" even for one channel, where PyTorch would otherwise take its slow layout.
    """
    return stored.movedim(-1, 1) if stored.dim() == 4 else stored


def gather(x: Tensor, rows: Tensor) -> Tensor:
    """The inputs at ``rows``, a new tensor that keeps the layout of x."""
    return to_channels_first(to_channels_last(x)[rows])


def to_compute_dtype(x: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Inputs as a network computes with them: images in ``dtype``; the numbers of words as they are, since a network
    looks them up, and bfloat16 tells few of 3,000 apart.

    >>> precise(torch.tensor([2999, 3000]), torch.bfloat16, torch.device("cpu"))
    tensor([2999, 3000])
    """
    return x.to(device=device, dtype=x.dtype if x.dtype in (torch.int32, torch.int64) else dtype)
