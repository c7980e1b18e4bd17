"""Metrics of membership inference, and ROC curves.

The results are bitwise equal to scikit-learn's `roc_curve` and `roc_auc_score`.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from scipy.special import bdtr

from shoal.core.errors import require
from shoal.metrics.intervals import (
    Bools,
    Floats,
    Ints,
    auc_design_effect,
    auc_interval,
    balanced_accuracy_interval,
    clopper_pearson,
    effective_size,
)

FALSE_POSITIVES = 3
"""The smallest number of false positives for which a true positive rate is reported."""


@dataclass(frozen=True)
class MembershipMetrics:
    """The metrics of a membership-inference attack on one population of members and non-members.

    Args:
        accuracy: the balanced accuracy, (TPR + TNR) / 2, at the attack's threshold (IFCA-MIR, equation 8).
        low, high: the ends of the interval of ``accuracy``; see `balanced_accuracy_interval`.
        null_high: the balanced accuracy's 95 % quantile if predictions do not depend on membership.
        auc: the area under the ROC curve.
        auc_low, auc_high: the ends of the interval of ``auc``; see `auc_interval`.
        tpr_at_1_percent_fpr: the true positive rate at a false positive rate of at most 1 %, or NaN with fewer than 300
            non-members (see `least_non_members`).
        tpr_at_1_percent_fpr_low, tpr_at_1_percent_fpr_high: the ends of the interval of ``tpr_at_1_percent_fpr``.
        tpr_at_01_percent_fpr: the true positive rate at a false positive rate of at most 0.1 %, or NaN with fewer than
            3,000 non-members.
        tpr_at_01_percent_fpr_low, tpr_at_01_percent_fpr_high: the ends of the interval of ``tpr_at_01_percent_fpr``.
        members, non_members: the numbers of scored members and non-members.
        tpr_at_1_percent_fpr_per_record: the true positive rate with a threshold per record, at a false positive rate of
            1 % on every record, or NaN without levels.
        tpr_at_1_percent_fpr_per_record_low, tpr_at_1_percent_fpr_per_record_high: the ends of the interval of
            ``tpr_at_1_percent_fpr_per_record``.
        exact: the fraction of predicted members for which the attack claims certainty.
    """

    accuracy: float
    low: float
    high: float
    null_high: float
    auc: float
    auc_low: float
    auc_high: float
    tpr_at_1_percent_fpr: float
    tpr_at_1_percent_fpr_low: float
    tpr_at_1_percent_fpr_high: float
    tpr_at_01_percent_fpr: float
    tpr_at_01_percent_fpr_low: float
    tpr_at_01_percent_fpr_high: float
    members: int
    non_members: int
    tpr_at_1_percent_fpr_per_record: float = math.nan
    tpr_at_1_percent_fpr_per_record_low: float = math.nan
    tpr_at_1_percent_fpr_per_record_high: float = math.nan
    exact: float = 0.0


def membership_metrics(
    scores: Floats,
    is_member: Bools,
    weights: Floats | None = None,
    *,
    threshold: float | Floats,
    pair: Ints | None = None,
    level: Floats | None = None,
) -> MembershipMetrics:
    """Compute the metrics of an attack's scores.

    All rates are NaN without members or without non-members.

    Args:
        scores: the examples' scores, higher for members, (M,).
        is_member: whether each example is a member, (M,).
        weights: the examples' weights, (M,), or ``None`` for equal weights.
        threshold: the largest score of a predicted non-member, as a number or per example (M,). Intervals treat the
            threshold as fixed.
        pair: the pair number of each example, (M,), or ``None`` if examples are independent. A pair is a member and a
            non-member with correlated errors.
        level: the level of each example's score by `record_levels`, (M,), for ``tpr_at_1_percent_fpr_per_record``, or
            ``None`` if levels are unknown.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import membership_metrics
        >>> scores, is_member = np.arange(400.0), np.arange(400) >= 300
        >>> metrics = membership_metrics(scores, is_member, threshold=299.0)
        >>> metrics.accuracy, metrics.auc, metrics.tpr_at_1_percent_fpr
        (1.0, 1.0, 1.0)
        >>> metrics.members, metrics.non_members, metrics.tpr_at_01_percent_fpr
        (100, 300, nan)
    """
    members, non_members = int(is_member.sum()), int((~is_member).sum())
    if members == 0 or non_members == 0:
        return MembershipMetrics(*[float("nan")] * 13, members=members, non_members=non_members)
    counted = np.ones(members + non_members) if weights is None else weights
    sizes = effective_size(counted[is_member]), effective_size(counted[~is_member])
    fpr, tpr, auc = roc_with_auc(scores, is_member, weights)
    predicted, paired = scores > threshold, _pair_outcomes(is_member, pair)
    correlation, effect = (0.0, 1.0) if paired is None else _in_pairs(scores, predicted, *paired)
    per_record = (math.nan,) * 3
    if level is not None:
        per_record = _at_fpr(*roc(level, is_member, weights), 0.01, *sizes)
    return MembershipMetrics(
        balanced_accuracy(predicted, is_member, weights),
        *balanced_accuracy_interval(predicted, is_member, weights, correlation=correlation),
        _null_high(predicted, is_member, counted, paired),
        auc,
        *auc_interval(auc, sizes[0] / effect, sizes[1] / effect),
        *_at_fpr(fpr, tpr, 0.01, *sizes),
        *_at_fpr(fpr, tpr, 0.001, *sizes),
        members,
        non_members,
        *per_record,
    )


def least_non_members(max_fpr: float) -> float:
    """Return the smallest number of non-members for which the true positive rate at ``max_fpr`` is known."""
    return FALSE_POSITIVES / max_fpr


def balanced_accuracy(predictions: Bools, is_member: Bools, weights: Floats | None = None) -> float:
    """Return the balanced accuracy (TPR + TNR) / 2 of ``predictions`` (M,), which are true for predicted members."""
    weights = np.ones(len(is_member)) if weights is None else weights
    tpr = np.average(predictions[is_member], weights=weights[is_member])
    tnr = np.average(~predictions[~is_member], weights=weights[~is_member])
    return float((tpr + tnr) / 2)


def tpr_at_fpr(fpr: Floats, tpr: Floats, max_fpr: float) -> float:
    """Return the true positive rate at the largest false positive rate up to ``max_fpr``, without interpolation."""
    # Rates of weighted examples are sums of fractions: 0.01 may come as 0.010000000000000002.
    return float(tpr[fpr <= max_fpr + 1e-9].max(initial=0.0))


def _at_fpr(fpr: Floats, tpr: Floats, max_fpr: float, members: float, non_members: float) -> tuple[float, float, float]:
    """Return the true positive rate and its interval; NaN with too few non-members."""
    # Sums of weights may fall short of an integer in the last digits.
    if non_members < least_non_members(max_fpr) * (1 - 1e-9):
        return float("nan"), float("nan"), float("nan")
    return tpr_at_fpr(fpr, tpr, max_fpr), *tpr_interval(fpr, tpr, max_fpr, members, non_members)


def tpr_interval(fpr: Floats, tpr: Floats, max_fpr: float, members: float, non_members: float) -> tuple[float, float]:
    """Compute a 95 % interval of the true positive rate at a false positive rate of ``max_fpr``.

    The interval adds two independent errors: the error of the rate at the threshold (`clopper_pearson`), and the error
    of the threshold.

    Args:
        fpr, tpr: the ROC curve.
        max_fpr: the largest allowed false positive rate, as in `tpr_at_fpr`.
        members, non_members: the effective numbers of members and of non-members.
    """
    rate, tail = tpr_at_fpr(fpr, tpr, max_fpr), (1 - 0.95) / 2
    low, high = (float(end) for end in clopper_pearson(rate * members, members))
    counts = np.arange(int(non_members) + 1.0)
    drawn = bdtr(counts, int(non_members), max_fpr)
    fewest, most = (int((drawn < end).sum()) for end in (tail, 1 - tail))
    stricter, laxer = (tpr_at_fpr(fpr, tpr, count / non_members) for count in (fewest, most))
    below, above = math.hypot(rate - low, rate - stricter), math.hypot(high - rate, laxer - rate)
    return max(0.0, rate - below), min(1.0, rate + above)


def _pair_outcomes(is_member: Bools, pair: Ints | None) -> tuple[Ints, Ints] | None:
    """Return the positions of the member (Q,) and the non-member (Q,) of each pair; None without such pairs."""
    if pair is None:
        return None
    inside, outside = np.flatnonzero(is_member), np.flatnonzero(~is_member)
    inside, outside = (side[np.argsort(pair[side], kind="stable")] for side in (inside, outside))
    return (inside, outside) if np.array_equal(pair[inside], pair[outside]) else None


def _in_pairs(scores: Floats, predicted: Bools, inside: Ints, outside: Ints) -> tuple[float, float]:
    """Return the correlation of correct predictions within pairs, and `auc_design_effect`."""
    first, second = predicted[inside], ~predicted[outside]
    varies = 0 < first.sum() < len(first) and 0 < second.sum() < len(second)
    correlation = float(np.corrcoef(first, second)[0, 1]) if varies else 0.0
    return correlation, auc_design_effect(scores[inside], scores[outside])


def _null_high(predicted: Bools, is_member: Bools, weights: Floats, paired: tuple[Ints, Ints] | None) -> float:
    """Return `MembershipMetrics.null_high`, by the normal approximation.

    If predictions differ within d of Q pairs, the standard deviation is sqrt(d) / (2 Q). For independent examples and a
    fraction p of predicted members, it is sqrt(p (1 - p) (1 / members + 1 / non-members)) / 2.
    """
    if paired is not None:
        std = math.sqrt((predicted[paired[0]] != predicted[paired[1]]).sum()) / (2 * len(paired[0]))
    else:
        kinds = (is_member, ~is_member)
        share = sum(float(np.average(predicted[kind], weights=weights[kind])) for kind in kinds) / 2
        size = sum(1 / effective_size(weights[kind]) for kind in kinds)
        std = math.sqrt(share * (1 - share) * size) / 2
    return 0.5 + NormalDist().inv_cdf(0.95) * std


def gap_accuracy(train_accuracy: float, test_accuracy: float) -> float:
    """Return the gap attack's balanced accuracy, 0.5 + (train accuracy - test accuracy) / 2."""
    return 0.5 + (train_accuracy - test_accuracy) / 2


def roc(scores: Floats, is_member: Bools, weights: Floats | None = None) -> tuple[Floats, Floats]:
    """Return the false positive rates and the true positive rates at all thresholds, in increasing order.

    Without members, true positive rates are NaN; without non-members, false positive rates are NaN.

    Raises:
        InputError: a score is not finite, or there are no scores.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import roc
        >>> roc(np.array([2.0, 1.0, 0.0]), np.array([True, False, True]))
        (array([0., 0., 1., 1.]), array([0. , 0.5, 0.5, 1. ]))
    """
    false, true = _positives(scores, is_member, weights)
    return _rates(false), _rates(true)


def roc_auc(scores: Floats, is_member: Bools, weights: Floats | None = None) -> float:
    """Return the area under the ROC curve, where ties count half, or NaN without members or without non-members.

    Raises:
        InputError: a score is not finite, or there are no scores.
    """
    if is_member.all() or not is_member.any():
        return float("nan")
    return _area(*_positives(scores, is_member, weights))


def roc_with_auc(scores: Floats, is_member: Bools, weights: Floats | None = None) -> tuple[Floats, Floats, float]:
    """Return the results of `roc` and `roc_auc`."""
    false, true = _positives(scores, is_member, weights)
    area = float("nan") if is_member.all() or not is_member.any() else _area(false, true)
    return _rates(false), _rates(true), area


def _area(false: Floats, true: Floats) -> float:
    """Return the area under the ROC curve of false and true positives, both with a total above 0."""
    if len(false) > 2:
        # Points on a straight piece of the curve do not change the area.
        corner = np.concatenate([[True], (np.diff(false, 2) != 0) | (np.diff(true, 2) != 0), [True]])
        false, true = false[corner], true[corner]
    fpr, tpr = _rates(false), _rates(true)
    return float((np.diff(fpr) * (tpr[1:] + tpr[:-1]) / 2.0).sum())


def _positives(scores: Floats, is_member: Bools, weights: Floats | None) -> tuple[Floats, Floats]:
    """Count false and true positives at every threshold, from the highest score to the lowest."""
    require(bool(np.isfinite(scores).all()), "the scores of a ROC curve must be finite (got NaN or an infinite score)")
    if weights is not None and not weights.all():
        counted = weights != 0
        scores, is_member, weights = scores[counted], is_member[counted], weights[counted]
    require(len(scores) > 0, "a ROC curve needs at least one example with a positive weight")
    order = np.argsort(-scores, kind="stable")
    # With many clients these are the largest arrays at the end of a run, so each is freed after its last use.
    scores, member = scores[order], is_member[order]
    weights = weights if weights is None else weights[order]
    del order
    last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    del scores
    if weights is None:
        true = np.cumsum(member, dtype=np.float64)[last]
        return 1 + last - true, true
    # Sums, not differences, so that they increase to the last bit.
    false = np.cumsum(np.where(member, 0.0, weights))[last]
    return false, np.cumsum(np.where(member, weights, 0.0))[last]


def _rates(positives: Floats) -> Floats:
    """Return 0 and the counts at falling thresholds, as fractions of the last count."""
    with_zero = np.concatenate([[0.0], positives])
    return with_zero / with_zero[-1] if with_zero[-1] > 0 else np.full(len(with_zero), np.nan)
