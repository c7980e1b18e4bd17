"""The level of a record's score, compared with its scores on models that did not train on this record.

Source: Jälkö, Pradhan, Räisä, Honkela 2026, arXiv:2605.25819. With one threshold for all records, each record has
another false positive rate. An overall rate of 1 % can be 20 % on some records and 0 % on many.
"""

import numpy as np

from shoal.attacks.reference_scores import ReferenceScores
from shoal.attacks.scores.in_and_out import in_and_out, pooled_variances
from shoal.attacks.scores.lira import OfflineLiRA, variances
from shoal.metrics.intervals import Bools, Floats

MIN_FOR_LEVELS = 8
"""The smallest number of reference models for levels. A record has about half as many OUT scores. The 1 % quantile of
Student's t is 4.5 standard deviations with 4 scores, but 32 with 2 scores."""


def record_levels(score: Floats, reference: Floats, trained: Bools) -> Floats:
    """Return the level of each record, (M,): minus the log of the record's false positive rate.

    A record's false positive rate is the probability that a model without the record gives at least the attacked
    model's score x. The rate is the Student-t tail of (x - mean) / (std sqrt(1 + 1 / n)) over the record's n OUT
    scores. A threshold on levels therefore has the same false positive rate on every record. Beforehand, each score is
    replaced by the normal quantile of its rank among all OUT scores.

    Args:
        score: the attack's scores on the attacked model, (M,).
        reference: the attack's scores on each reference model, (M, R).
        trained: whether each reference model was trained on each record, (M, R).

    Raises:
        InputError: every model was trained on every record, or the scores of a record do not vary.

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
