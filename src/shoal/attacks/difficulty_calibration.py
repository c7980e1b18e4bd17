"""Scores calibrated by the difficulty of the record.

Source: Watson, Guo, Cormode, Sablayrolles, ICLR 2022, arXiv:2111.08440, equation 3, on the logit-scaled confidence.
"""

from typing import ClassVar

from shoal.attacks.in_and_out import in_and_out
from shoal.attacks.reference_scores import Floats, ReferenceScores
from shoal.core.settings import settings


@settings
class DifficultyCalibration:
    """The attacked model's score minus the mean score of the reference models that did not train on the record.

    A record that all reference models trained on counts their scores minus the mean difference between such models and
    others.
    """

    name: ClassVar[str] = "calibration"
    title: ClassVar[str] = "difficulty calibration"
    least: ClassVar[int] = 1

    def scores(self, records: ReferenceScores) -> Floats:
        """See `shoal.attacks.ReferenceAttack`. In logits."""
        _, outside = in_and_out(self, records, needs_in=False)
        return records.score - outside.mean
