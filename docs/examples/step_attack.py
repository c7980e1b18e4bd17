"""An attack on updates: in how many rounds a client's step points along a record's gradient more than others' do."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.attacks import UpdateScores, View
from shoal.core.settings import settings


@settings
class StepAttack:
    """The share of the recorded rounds in which no other client's step has a larger cosine with the gradient."""

    name: ClassVar[str] = "step"
    title: ClassVar[str] = "nearest step"
    view: ClassVar[View] = "server"
    threshold: ClassVar[float] = 0.0

    def score(self, scores: UpdateScores) -> NDArray[np.float64]:
        """(N, M) in [0, 1]; NaN for a client in no recorded round."""
        cosine = np.where(scores.present[:, :, None], scores.cosine, -np.inf)  # (T, N, M)
        nearest = (cosine == cosine.max(axis=1, keepdims=True)).sum(axis=0, where=scores.present[:, :, None])
        rounds = scores.present.sum(axis=0)[:, None]
        return np.where(rounds > 0, nearest / np.maximum(rounds, 1), np.nan)
