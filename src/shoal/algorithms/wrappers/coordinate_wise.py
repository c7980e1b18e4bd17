"""Coordinate-wise robust merging: the median and the trimmed mean of each parameter over a cluster's clients.

Source: Yin et al. 2018, arXiv:1803.01498, Algorithm 1, Definitions 1 and 2.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.wrappers.robust_merging import RobustMerging
from shoal.core.settings import settings
from shoal.engine import Algorithm


@settings
class CoordinateMedian(RobustMerging):
    """Robust merging by the coordinate-wise median of a cluster's updates.

    For an even number of clients the median is the mean of the two middle values. See `RobustMerging`.

    Args:
        base: the algorithm that trains the models and assigns clients to clusters.

    Example:
        >>> import torch, shoal
        >>> shoal.CoordinateMedian().merge(torch.tensor([[1.0, 0.0], [2.0, 0.0], [900.0, 6.0]]))
        tensor([2., 0.])
    """

    base: Algorithm = IFCA()
    name: Literal["median"] = "median"
    title: ClassVar[str] = "Coordinate-wise median"

    def merge(self, updates: Tensor) -> Tensor:
        ordered, count = updates.sort(dim=0).values, len(updates)
        return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


@settings
class TrimmedMean(RobustMerging):
    """Robust merging by the coordinate-wise mean of a cluster's updates, without the smallest and largest values.

    Args:
        base: the algorithm that trains the models and assigns clients to clusters.
        trim: the fraction beta of values to remove at each end: ``floor(beta * m)`` values in a cluster of m clients.

    Example:
        >>> import torch, shoal
        >>> shoal.TrimmedMean(trim=0.25).merge(torch.tensor([[1.0], [2.0], [4.0], [900.0]]))
        tensor([3.])
    """

    base: Algorithm = IFCA()
    trim: Annotated[float, Field(ge=0, lt=0.5, strict=True)] = 0.2
    name: Literal["trimmed-mean"] = "trimmed-mean"
    title: ClassVar[str] = "Trimmed mean"

    def merge(self, updates: Tensor) -> Tensor:
        cut = int(self.trim * len(updates))
        return updates.sort(dim=0).values[cut : len(updates) - cut].mean(dim=0)
