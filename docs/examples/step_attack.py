"""An attack on updates: in how many rounds a client's step points along a record's gradient more than others' do."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.attacks import UpdateScores
from shoal.core.settings import settings
from shoal.data import View


@settings
class StepAttack:
    """The share of the recorded rounds in which no other client's step has a larger cosine with the gradient."""

    name: ClassVar[str] = "step"
    title: ClassVar[str] = "nearest step"
    view: ClassVar[View] = "server"
    threshold: ClassVar[float] = 0.0

    def score(self, scores: UpdateScores) -> NDArray[np.float64]:
        """(N, M) in [0, 1]; NaN for a client in no recorded round."""
        present = scores.assignment >= 0  # (T, N)
        cosine = np.where(present[:, :, None], scores.cosine, -np.inf)  # (T, N, M)
        nearest = (cosine == cosine.max(axis=1, keepdims=True)).sum(axis=0, where=present[:, :, None])
        rounds = present.sum(axis=0)[:, None]
        return np.where(rounds > 0, nearest / np.maximum(rounds, 1), np.nan)
