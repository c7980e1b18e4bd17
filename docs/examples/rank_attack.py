"""An attack on scores: the rank of a record's score among those of reference models that did not train on it."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal import ReferenceScores
from shoal.core.settings import settings
from shoal.data import View


@settings
class RankAttack:
    """The share of these reference models whose score is lower; a tie counts half. It needs no distribution."""

    name: ClassVar[str] = "rank"
    title: ClassVar[str] = "rank among reference models"
    view: ClassVar[View] = "outsider"
    least: ClassVar[int] = 2

    def scores(self, records: ReferenceScores) -> NDArray[np.float64]:
        """Shares (M,); 0.5 of a record that every reference model trained on."""
        out, score = ~records.reference_member, records.score[:, None]
        below = (records.reference < score) + 0.5 * (records.reference == score)
        count = out.sum(axis=1)
        return np.where(count > 0, (below * out).sum(axis=1) / np.maximum(count, 1), 0.5)
