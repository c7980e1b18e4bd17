"""An attack with reference models in one file, as `shoal.attacks` would have it: confidence calibrated by difficulty.

Source: Watson, Guo, Cormode, Sablayrolles 2021, arXiv:2111.08440, section 3 (offline).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.attacks.membership_attack import Needs, Query, Records, losses
from shoal.core.randomness import Stream
from shoal.core.settings import settings


@settings
class CalibratedConfidence:
    """Scores by how much more confident a model is than those that were not trained on the example."""

    needs: ClassVar[Needs] = "reference models"
    title: ClassVar[str] = "calibrated confidence"

    name: Literal["calibrated-confidence"] = "calibrated-confidence"

    def fit(self, records: Records, stream: Stream) -> "FittedCalibratedConfidence":
        """Set the threshold half-way between the mean scores of the shadow models' members and non-members."""
        del stream
        scores = np.empty(len(records))
        for model in records.shadow.unique().tolist():
            scores[(records.shadow == model).numpy()] = calibrated(records.query(model))
        member = records.member.numpy()
        return FittedCalibratedConfidence(float(scores[member].mean() + scores[~member].mean()) / 2)


@dataclass(frozen=True)
class FittedCalibratedConfidence:
    threshold: float

    def score(self, query: Query) -> NDArray[np.float64]:
        return calibrated(query)


def calibrated(query: Query) -> NDArray[np.float64]:
    """The true class's probability (M,), minus its mean over the reference models not trained on the example."""
    outside = ~query.reference_member.numpy()
    reference = np.stack([np.exp(-losses(outputs, query.labels)) for outputs in query.reference])
    mean = (reference * outside).sum(axis=0) / np.maximum(1, outside.sum(axis=0))
    return np.exp(-losses(query.outputs, query.labels)) - mean
