"""FedAvg: one model for all.

Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas 2017, arXiv:1602.05629, Algorithm 1.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.core.settings import settings
from shoal.data.federation import Federation, Preferences
from shoal.engine import Engine, LocalSGD, averaging_weights


@settings
class FedAvg:
    """Every client trains the one model; the server averages the ends.

    Args:
        weighting: of clients: by "examples" (the paper), or "equal".
    """

    title: ClassVar[str] = "FedAvg"

    weighting: Literal["examples", "equal"] = "examples"
    name: Literal["fedavg"] = "fedavg"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Nothing that FedAvg cannot do with."""

    @property
    def clusters(self) -> int:
        """One."""
        return 1

    @property
    def chooses_by(self) -> None:
        """There is nothing to choose by."""
        return

    def init(self, engine: Engine, federation: Federation, stream: Stream) -> Tensor:
        """One random model: (1, P)."""
        del federation
        return engine.model.init(stream("model", 0))[None]

    def choose(self, losses: Tensor, risks: Tensor, preferences: Preferences) -> Tensor:
        """There is nothing to choose: (n,) zeros."""
        del risks, preferences
        return torch.zeros(len(losses), dtype=torch.int64)

    def shares(self, assignment: Tensor, sizes: Tensor) -> Tensor:
        """(1, n), as ``weighting`` says."""
        return averaging_weights(assignment, sizes if self.weighting == "examples" else torch.ones_like(sizes), 1)
