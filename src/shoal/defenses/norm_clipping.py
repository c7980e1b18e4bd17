"""Norm clipping: a bound on the L2 norm of each update at the server."""

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
    """Scaling of every update to at most a given L2 norm before aggregation.

    An update is the difference between a client's trained and initial parameters. Under `FedSoft` and `MRMTL` the
    initial parameters are the client's personal model, so clipping bounds the change of the personal model per round.

    Args:
        max_norm: the L2 norm to which the server clips each update; ``inf`` disables clipping.

    Source: Sun et al. 2019, arXiv:1911.07963, section 3.

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
        """Return ``start + (end - start) * min(1, max_norm / |end - start|)`` for starts and ends (u, P)."""
        if self.max_norm == math.inf:
            return ends
        moved = ends - starts
        norms = moved.norm(dim=1, keepdim=True)
        # An update within the norm stays as it is, to the last bit.
        cut = starts + moved * (self.max_norm / norms.clamp(min=1e-30))
        return cut.where(norms > self.max_norm, ends)

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """Return the setup with this filter; raise `InputError` if the setup has another filter at the server."""
        require(
            setup.update_filter is None,
            "norm clipping cannot be combined with another filter at the server; remove one of the two",
        )
        return replace(setup, update_filter=self)
