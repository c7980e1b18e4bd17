"""Norm clipping at the server: no client moves its model further than the others may.

Source: Sun, Kairouz, Suresh, McMahan 2019, arXiv:1911.07963, section 3.
"""

import math
from dataclasses import dataclass, replace

from torch import Tensor

from shoal.core.errors import require
from shoal.defenses.defense import TrainingSetup


@dataclass(frozen=True)
class NormClipping:
    """Cuts every update to an L2 norm before the server merges it.

    Args:
        max_norm: above 0; infinite: nothing is cut.

    Raises:
        InputError: a norm that is not.

    >>> import torch
    >>> ends = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> NormClipping(1.0).filter(torch.zeros(2, 2), ends, torch.zeros(2, dtype=torch.int64))
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """

    max_norm: float

    def __post_init__(self) -> None:
        require(self.max_norm > 0, f"'defenses.max_update_norm' must be above 0; got {self.max_norm:g}")

    def filter(self, starts: Tensor, ends: Tensor, seeds: Tensor) -> Tensor:
        """``start + (end - start) * min(1, max_norm / |end - start|)`` of starts and ends (u, P)."""
        del seeds
        if self.max_norm == math.inf:
            return ends
        moved = ends - starts
        norms = moved.norm(dim=1, keepdim=True)
        # Where nothing is cut the end stays what it is, to the last bit.
        cut = starts + moved * (self.max_norm / norms.clamp(min=1e-30))
        return cut.where(norms > self.max_norm, ends)

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with this filter.

        Raises:
            InputError: it has another one.
        """
        require(setup.update_filter is None, "'defenses.max_update_norm' is given, but updates are filtered already")
        return replace(setup, update_filter=self)
