"""Scores calibrated by the difficulty of the record.

Source: Watson, Guo, Cormode, Sablayrolles, ICLR 2022, arXiv:2111.08440, equation 3, on the logit-scaled confidence.
"""

from typing import ClassVar

from shoal.attacks.reference_scores import Floats, ReferenceScores
from shoal.attacks.scores.in_and_out import in_and_out
from shoal.core.settings import settings


@settings
class DifficultyCalibration:
    """The attacked model's score minus the mean score of the reference models that did not train on the record.

    A record that all reference models trained on counts their scores minus the mean difference between such models and
    others.

    Source: Watson, Guo, Cormode, Sablayrolles, ICLR 2022, arXiv:2111.08440, equation 3, on the logit-scaled confidence.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks import DifficultyCalibration, LossScore
        >>> from sklearn.metrics import roc_auc_score
        >>> from shoal import ReferenceScores
        >>> draw, member = np.random.default_rng(0), np.arange(400) < 200
        >>> difficulty, trained = draw.normal(0.0, 3.0, (400, 1)), draw.random((400, 16)) < 0.5
        >>> score, reference = draw.normal(difficulty[:, 0] + 2 * member), draw.normal(difficulty + 2 * trained)
        >>> records = ReferenceScores(score, member, reference, trained, np.zeros(400, dtype=np.int64))
        >>> attacks = LossScore(), DifficultyCalibration()
        >>> [round(roc_auc_score(member, attack.scores(records)), 2) for attack in attacks]
        [0.71, 0.89]
    """

    name: ClassVar[str] = "calibration"
    title: ClassVar[str] = "difficulty calibration"
    least: ClassVar[int] = 1

    def scores(self, records: ReferenceScores) -> Floats:
        """See `shoal.attacks.ReferenceAttack`. In logits."""
        _, outside = in_and_out(self, records, needs_in=False)
        return records.score - outside.mean
