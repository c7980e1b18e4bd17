"""What a membership-inference attack is: something fitted on shadow models' records that scores outputs."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.randomness import Stream


@dataclass(frozen=True, eq=False)
class Records:
    """What shadow models said about examples they were trained on, and about others.

    Args:
        outputs: (M, C) float32, outputs before softmax.
        labels: (M,) int64, true classes.
        member: (M,) bool, whether the shadow model was trained on the example.
        shadow: (M,) int64, which shadow model it was.
    """

    outputs: Tensor
    labels: Tensor
    member: Tensor
    shadow: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, mask: Tensor) -> "Records":
        """The records at ``mask`` (M,) bool."""
        return Records(self.outputs[mask], self.labels[mask], self.member[mask], self.shadow[mask])

    @staticmethod
    def none() -> "Records":
        """No records, for an attack that does not learn."""
        nothing = torch.empty(0, dtype=torch.int64)
        return Records(torch.empty(0, 0), nothing, nothing.bool(), nothing)


class FittedAttack(Protocol):
    """Scores examples by what a model says about them; above ``threshold`` it says member."""

    @property
    def threshold(self) -> float:
        """Where "member" begins."""
        ...

    def score(self, outputs: Tensor, labels: Tensor) -> NDArray[np.float64]:
        """(M,) from outputs (M, C) and labels (M,); higher means more likely a member."""
        ...


class MembershipAttack(Protocol):
    """An attack as a value, to be fitted on records."""

    @property
    def learns(self) -> bool:
        """Whether it needs records, and so shadow models."""
        ...

    def fit(self, records: Records, stream: Stream) -> FittedAttack:
        """The attack that ``records`` teach."""
        ...


def losses(outputs: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """(M,) cross-entropy in nats."""
    return torch.nn.functional.cross_entropy(outputs.double(), labels, reduction="none").numpy()
