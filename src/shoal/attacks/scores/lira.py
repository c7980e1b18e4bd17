"""The likelihood-ratio attack, online and offline.

Source: Carlini, Chien, Nasr, Song, Terzis, Tramer 2022, arXiv:2112.03570, Algorithm 1 and equation 4.
"""

from typing import ClassVar

import numpy as np

from shoal.attacks.reference_scores import ReferenceScores
from shoal.attacks.scores.in_and_out import Side, in_and_out, log_ratio, pooled_variances
from shoal.core.settings import Positive, settings
from shoal.data.preferences import View
from shoal.metrics.intervals import Floats

VARIANCE_FLOOR = 1e-3
"""The smallest variance of a record's scores, as a fraction of the pooled variance."""


@settings
class LiRA:
    """The log-likelihood ratio of a record's score under normal distributions of its IN and of its OUT scores.

    The ratio is log N(score; mean_in, variance_in) - log N(score; mean_out, variance_out). With few reference models,
    all records share one IN variance and one OUT variance, around each record's mean (`pooled_variances`). The paper's
    "fixed variance" is the variance of all scores, which also includes differences in the records' difficulty. For a
    record without IN scores, the attack shifts the OUT scores by the mean difference between IN and OUT, and vice
    versa.

    Args:
        own_variance: the smallest number of reference models with which each record has separate variances.

    Example:
        >>> import numpy as np
        >>> from shoal import ReferenceScores
        >>> from shoal.attacks import (
        ...     RMIA, BaVarIA, DifficultyCalibration, LiRA, LossScore, OfflineLiRA, OfflineRMIA
        ... )
        >>> from sklearn.metrics import roc_auc_score
        >>> draw, member = np.random.default_rng(0), np.arange(400) < 200
        >>> difficulty, trained = draw.normal(0.0, 3.0, (400, 1)), draw.random((400, 16)) < 0.5
        >>> score, reference = draw.normal(difficulty[:, 0] + 2 * member), draw.normal(difficulty + 2 * trained)
        >>> records = ReferenceScores(score, member, reference, trained, np.zeros(400, dtype=np.int64))
        >>> online, offline = (LiRA(), BaVarIA(), RMIA()), (OfflineLiRA(), OfflineRMIA(), DifficultyCalibration())
        >>> for attacks in ((LossScore(),), online, offline):
        ...     print([round(roc_auc_score(member, attack.scores(records)), 2) for attack in attacks])
        ...
        [0.71]
        [0.89, 0.89, 0.83]
        [0.89, 0.77, 0.89]
    """

    name: ClassVar[str] = "lira"
    title: ClassVar[str] = "LiRA"
    view: ClassVar[View] = "outsider"
    # With three models, two are on the same side of a record and give a variance.
    least: ClassVar[int] = 3

    own_variance: Positive = 64

    def scores(self, records: ReferenceScores) -> Floats:
        """Return the log-likelihood ratio of each record in nats, (M,); a positive ratio means more likely a member."""

        def log_density(side: Side, pooled: float) -> Floats:
            """Return the log density of each record, (M,), up to a constant."""
            variance = variances(side, pooled, self.own_variance)
            return -0.5 * (np.log(variance) + (records.score - side.mean) ** 2 / variance)

        return log_ratio(self, records, log_density)


@settings
class OfflineLiRA:
    """The distance of a record's score from the mean of its OUT scores, in standard deviations of the OUT scores.

    The paper applies the normal distribution function to this distance. The function keeps the order of the records,
    but rounds to 1 beyond eight standard deviations. Variances and missing OUT scores are handled as in `LiRA`.

    Args:
        own_variance: the smallest number of reference models with which each record has a separate variance.
    """

    name: ClassVar[str] = "lira-offline"
    title: ClassVar[str] = "offline LiRA"
    view: ClassVar[View] = "outsider"
    least: ClassVar[int] = 3

    own_variance: Positive = 64

    def scores(self, records: ReferenceScores) -> Floats:
        """Return one distance per record in standard deviations, (M,)."""
        _, outside = in_and_out(self, records, needs_in=False)
        (pooled,) = pooled_variances(self, outside)
        return (records.score - outside.mean) / np.sqrt(variances(outside, pooled, self.own_variance))


def variances(side: Side, pooled: float, own_variance: int) -> Floats:
    """Return the variance of each record's scores on one side, (M,).

    With fewer than ``own_variance`` reference models, every variance is the pooled variance. Otherwise a record with at
    least two scores has its own variance, at least `VARIANCE_FLOOR` times the pooled variance.
    """
    variances = np.full(len(side.scores), pooled)
    if side.scores.shape[1] < own_variance:
        return variances
    np.divide(side.squares, side.freedom, out=variances, where=side.freedom > 0)
    return np.maximum(variances, VARIANCE_FLOOR * pooled)
