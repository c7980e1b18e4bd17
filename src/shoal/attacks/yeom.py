"""The loss-threshold attack and the gap attack.

Source: Yeom, Giacomelli, Fredrikson, Jha 2018, arXiv:1709.01604.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from shoal.attacks.membership import Records, losses
from shoal.core.randomness import Stream
from shoal.core.settings import settings


@settings
class LossThreshold:
    """Says member when the loss is below the mean loss of members (Adversary 1 with that threshold), the mean
    being taken over the shadow models' members, since an outsider knows no others.
    """

    title: ClassVar[str] = "loss threshold"

    name: Literal["loss-threshold"] = "loss-threshold"

    @property
    def learns(self) -> bool:
        """It needs records."""
        return True

    def fit(self, records: Records, stream: Stream) -> "FittedLossThreshold":
        """The threshold that members of ``records`` set."""
        del stream
        of_members = losses(records.outputs, records.labels)[records.member.numpy()]
        return FittedLossThreshold(-float(of_members.mean()) if len(of_members) else np.inf)


@dataclass(frozen=True)
class FittedLossThreshold:
    """Scores are negative losses in nats."""

    threshold: float

    def score(self, outputs: Tensor, labels: Tensor) -> NDArray[np.float64]:
        """Negative losses (M,) from outputs (M, C) and labels (M,)."""
        return -losses(outputs, labels)


@settings
class Gap:
    """Says member when the model classifies the example rightly; needs no shadow models."""

    title: ClassVar[str] = "gap"

    name: Literal["gap"] = "gap"

    @property
    def threshold(self) -> float:
        """Between right and wrong."""
        return 0.5

    @property
    def learns(self) -> bool:
        """It needs no records."""
        return False

    def fit(self, records: Records, stream: Stream) -> "Gap":
        """Itself."""
        del records, stream
        return self

    def score(self, outputs: Tensor, labels: Tensor) -> NDArray[np.float64]:
        """1 where outputs (M, C) are right about labels (M,), else 0."""
        return (outputs.argmax(dim=1) == labels).double().numpy()
