"""Norm clipping at the server: a bound on the L2 norm of each update."""

import math
from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from shoal.core.errors import require
from shoal.core.settings import settings
from shoal.defenses.defense import TrainingSetup


@settings
class NormClipping:
    """Scales every update to at most a given L2 norm before aggregation.

    An update is what a client sent less what it started from. Under `FedSoft` and `MRMTL` that is its own last model,
    so the norm bounds how far each client's model moves in a round, not how far it is from the cluster's.

    Args:
        max_norm: largest L2 norm of an update at the server, above 0; ``inf``: no clipping.

    Source: Sun, Kairouz, Suresh, McMahan 2019, arXiv:1911.07963, section 3.

    Example:
        >>> from shoal import NormClipping
        >>> import torch
        >>> ends = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
        >>> NormClipping(1.0).filter(torch.zeros(2, 2), ends, torch.zeros(2, dtype=torch.int64))
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """

    max_norm: Annotated[float, Field(gt=0, strict=True, alias="max_update_norm")]
    name: ClassVar[str] = "norm_clipping"
    title: ClassVar[str] = "Norm clipping"

    def filter(self, starts: Tensor, ends: Tensor, seeds: Tensor) -> Tensor:
        """``start + (end - start) * min(1, max_norm / |end - start|)`` of starts and ends (u, P)."""
        if self.max_norm == math.inf:
            return ends
        moved = ends - starts
        norms = moved.norm(dim=1, keepdim=True)
        # An update within the norm stays as it is, to the last bit.
        cut = starts + moved * (self.max_norm / norms.clamp(min=1e-30))
        return cut.where(norms > self.max_norm, ends)

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with this filter.

        Raises:
            InputError: the setup has another filter.
        """
        require(setup.update_filter is None, "updates are clipped, but another filter is applied to them already")
        return replace(setup, update_filter=self)
