"""An attack: a threshold on the modified entropy (Song, Mittal 2021, arXiv:2003.10595, section 4.2)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from shoal import Stream
from shoal.attacks import Needs, Query, Records
from shoal.core.settings import Fraction, settings


def modified_entropy(outputs: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """``-(1 - p_y) log p_y - sum_(c != y) p_c log(1 - p_c)`` in nats: outputs (M, C), labels (M,) -> (M,)."""
    p = outputs.double().softmax(dim=1).clamp(1e-12, 1 - 1e-12)
    others = -p * (1 - p).log()
    own = p.gather(1, labels[:, None])[:, 0]
    total = others.sum(dim=1) - others.gather(1, labels[:, None])[:, 0] - (1 - own) * own.log()
    return total.numpy()


@settings
class EntropyAttack:
    """Calls an example a member when its modified entropy is below a quantile of the shadow models' members.

    Args:
        quantile: of the members' entropies.
    """

    needs: ClassVar[Needs] = "records"
    title: ClassVar[str] = "modified entropy"
    needs_classes: ClassVar[bool] = True

    quantile: Fraction = 0.75

    def fit(self, records: Records, stream: Stream) -> "FittedEntropyAttack":
        """Set the threshold on the members of ``records``."""
        del stream
        members = modified_entropy(records.outputs, records.labels)[records.member.numpy()]
        return FittedEntropyAttack(-float(np.quantile(members, self.quantile)) if len(members) else np.inf)


@dataclass(frozen=True)
class FittedEntropyAttack:
    """Scores by minus the modified entropy, in nats."""

    threshold: float

    def score(self, query: Query) -> NDArray[np.float64]:
        """Scores (M,)."""
        return -modified_entropy(query.outputs, query.labels)
