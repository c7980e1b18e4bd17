"""The likelihood-ratio attack, online and offline.

Source: Carlini, Chien, Nasr, Song, Terzis, Tramer 2022, arXiv:2112.03570, Algorithm 1 and equation 4.
"""

from typing import ClassVar

import numpy as np

from shoal.attacks.reference_scores import Floats, ReferenceScores, View
from shoal.attacks.scores.in_and_out import Side, in_and_out, pooled_variances, record_variances
from shoal.core.settings import Positive, settings


@settings
class LiRA:
    """How much likelier a record's score is among models that trained on it than among models that did not.

    log N(score; mean_in, variance_in) - log N(score; mean_out, variance_out). With few reference models a side has one
    variance for all records: that of the scores around each record's own mean, with the degrees of freedom that these
    means leave. (The paper's "fixed variance" is that of all scores of a side, in which records differ by their
    difficulty too; and its code takes the IN scores for both sides.) A record without IN scores takes its OUT scores
    moved by the mean difference between IN and OUT, and the other way round.

    Args:
        own_variance: from so many reference models on, each record has variances of its own.

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
    # Of three models, two are on the same side of a record, and so tell a variance.
    least: ClassVar[int] = 3

    own_variance: Positive = 64

    def scores(self, records: ReferenceScores) -> Floats:
        """In nats; above 0 the record is likelier to be a member."""
        sides = in_and_out(self, records, needs_in=True)
        pooled = pooled_variances(self, *sides)
        inside, outside = (
            _log_normal(records.score, side.mean, _variances(side, variance, records, self.own_variance))
            for side, variance in zip(sides, pooled, strict=True)
        )
        return inside - outside


@settings
class OfflineLiRA:
    """How far a record's score is above those of models that did not train on it, in their standard deviations.

    The paper's score is the normal distribution function of this; it is the same order of the records, but would be 1
    for all beyond eight standard deviations. Variances, and records without OUT scores, as in `LiRA`; so what IN scores
    say of the mean difference is used where there are any.

    Args:
        own_variance: as in `LiRA`.
    """

    name: ClassVar[str] = "lira-offline"
    title: ClassVar[str] = "offline LiRA"
    view: ClassVar[View] = "outsider"
    least: ClassVar[int] = 3

    own_variance: Positive = 64

    def scores(self, records: ReferenceScores) -> Floats:
        """In standard deviations."""
        _, outside = in_and_out(self, records, needs_in=False)
        (pooled,) = pooled_variances(self, outside)
        variances = _variances(outside, pooled, records, self.own_variance)
        return (records.score - outside.mean) / np.sqrt(variances)


def _variances(side: Side, pooled: float, records: ReferenceScores, own_variance: int) -> Floats:
    if records.references >= own_variance:
        return record_variances(side, pooled)
    return np.full(len(records), pooled)


def _log_normal(x: Floats, mean: Floats, variance: Floats) -> Floats:
    """The log density, but for a constant."""
    return -0.5 * (np.log(variance) + (x - mean) ** 2 / variance)
