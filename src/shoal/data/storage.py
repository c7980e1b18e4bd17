"""Inputs in memory: images are kept as (M, H, W, C), which is how the fast kernels read them."""

from torch import Tensor


def storage(x: Tensor) -> Tensor:
    """Inputs in the order of axes in which they are stored and gathered: images (M, C, H, W) as (M, H, W, C)."""
    return x.movedim(1, -1) if x.dim() == 4 else x


def inputs(stored: Tensor) -> Tensor:
    """Stored inputs as a network takes them: images (B, C, H, W), laid out channels last.

    The strides say "channels last" even for one channel, where PyTorch would otherwise take its slow layout.
    """
    return stored.movedim(-1, 1) if stored.dim() == 4 else stored


def gather(x: Tensor, rows: Tensor) -> Tensor:
    """The inputs at ``rows``, a new tensor that keeps the layout of x."""
    return inputs(storage(x)[rows])
