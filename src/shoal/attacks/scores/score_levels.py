"""The level of an attack's score among the scores of the same record by models that did not train on it.

Source: Jälkö, Pradhan, Räisä, Honkela 2026, arXiv:2605.25819: one threshold for all records has a different false
positive rate on each record, so a true positive rate "at 1 %" mixes records at 20 % with many at 0 %.
"""

import numpy as np

from shoal.attacks.reference_scores import ReferenceScores
from shoal.attacks.scores.in_and_out import in_and_out, pooled_variances
from shoal.attacks.scores.lira import OfflineLiRA, variances
from shoal.metrics.intervals import Bools, Floats

MIN_FOR_LEVELS = 8
"""Fewest reference models for levels. Half of them did not train on a record: with 4 scores the 1 % quantile of
Student's t is 4.5 standard deviations, with 2 it would be 32."""


def record_levels(score: Floats, reference: Floats, trained: Bools) -> Floats:
    """Return levels (M,): minus the log of the false positive rate of a threshold at a record's score on that record.

    The rate is that of Student's t for (x - mean) / (std sqrt(1 + 1 / n)), with n normal scores by models that did not
    train on the record. So a threshold on levels has the same false positive rate on all records, however much their
    variances differ. Scores are first replaced by the normal quantiles of their ranks among all records' OUT scores, so
    levels do not depend on the units of an attack.

    Args:
        score: (M,), the attack on the attacked model.
        reference: (M, R), the attack on each reference model.
        trained: (M, R), whether each reference model was trained on each record.

    Raises:
        InputError: all models were trained on all records, or scores of a record do not vary.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks.scores.score_levels import record_levels
        >>> draw, none = np.random.default_rng(0), np.zeros((2000, 32), dtype=bool)
        >>> deviation = np.where(np.arange(2000) < 1000, 1.0, 0.4)  # records differ in how much their scores vary
        >>> score, reference = draw.normal(0.0, deviation), draw.normal(0.0, deviation[:, None], (2000, 32))
        >>> for values in (score, record_levels(score, reference, none)):
        ...     called = values > np.quantile(values, 0.9)
        ...     print(called[:1000].mean().round(2), called[1000:].mean().round(2))
        ...
        0.18 0.02
        0.09 0.11
    """
    from scipy.special import ndtri, stdtr  # noqa: PLC0415 - takes long to import

    ordered = np.sort(reference[~trained])

    def quantiles(values: Floats) -> Floats:
        ranks = np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right")
        return ndtri((ranks + 1) / (2 * len(ordered) + 2))

    one_model, nobody = np.zeros(len(score), dtype=np.int64), np.zeros(len(score), dtype=bool)
    records = ReferenceScores(quantiles(score), nobody, quantiles(reference), trained, one_model)
    attack = OfflineLiRA()
    _, outside = in_and_out(attack, records, needs_in=False)
    (pooled,) = pooled_variances(attack, outside)
    width = np.sqrt(variances(outside, pooled, 0) * (1 + 1 / outside.count))
    # A record with fewer than two OUT scores has the pooled variance.
    freedom = np.where(outside.freedom > 0, outside.freedom, np.inf)
    return -np.log(stdtr(freedom, (outside.mean - records.score) / width))
