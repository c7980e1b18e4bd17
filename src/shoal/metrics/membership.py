"""Metrics of membership inference: how well an attack tells members from non-members.

``is_member`` is (M,) bool; ``weights`` (M,) say how much each example counts, None: equally.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from shoal.metrics.intervals import (
    auc_design_effect,
    auc_interval,
    balanced_accuracy_interval,
    clopper_pearson,
    effective_size,
)
from shoal.metrics.roc import roc_with_auc

FALSE_POSITIVES = 3
"""Fewest false positives at which a true positive rate is given."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class MembershipMetrics:
    """Metrics of a membership-inference attack on one population of members and non-members.

    Args:
        accuracy: balanced accuracy, (TPR + TNR) / 2 at the attack's own threshold (IFCA-MIR, equation 8).
        low, high: the interval of the balanced accuracy; see `balanced_accuracy_interval`.
        null_high: the balanced accuracy that 95 % of such tests do not exceed where nothing is leaked: as many
            records, as often called members, but regardless of whether they are.
        auc: area under the ROC curve.
        auc_low, auc_high: its interval; see `auc_interval`.
        tpr_at_1_percent_fpr: true positive rate at a false positive rate of at most 1 %; NaN with fewer than 300
            non-members (see `least_non_members`), where it would hang on one or two of them.
        tpr_at_1_percent_fpr_low, tpr_at_1_percent_fpr_high: its interval; see `tpr_interval`.
        tpr_at_01_percent_fpr: the same at 0.1 %; NaN with fewer than 3,000.
        tpr_at_01_percent_fpr_low, tpr_at_01_percent_fpr_high: its interval.
        members: number of members scored.
        non_members: number of non-members scored.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import membership_metrics
        >>> scores, is_member = np.arange(400.0), np.arange(400) >= 300
        >>> found = membership_metrics(scores, is_member, threshold=299.0)
        >>> found.accuracy, found.auc, found.tpr_at_1_percent_fpr
        (1.0, 1.0, 1.0)
        >>> found.members, found.non_members, found.tpr_at_01_percent_fpr
        (100, 300, nan)
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


def membership_metrics(
    scores: Floats,
    is_member: Bools,
    weights: Floats | None = None,
    *,
    threshold: float | Floats,
    confidence: float = 0.95,
    pair: Ints | None = None,
) -> MembershipMetrics:
    """Metrics of an attack's ``scores`` (M,), higher for members; above ``threshold`` it calls an example a member.

    Without members or without non-members all rates are NaN.

    Args:
        scores, is_member, weights: of the M examples.
        threshold: one, or one for each example (M,).
        confidence: of all intervals; they take ``threshold`` as given.
        pair: (M,) which pair each example is of; each has a member and a non-member, of equal weights, whose errors may
            be correlated. None, or not such pairs: examples are taken as independent.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import membership_metrics
        >>> scores, is_member = np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False])
        >>> metrics = membership_metrics(scores, is_member, threshold=1.5)
        >>> metrics.accuracy, metrics.auc
        (0.5, 0.75)
    """
    members, non_members = int(is_member.sum()), int((~is_member).sum())
    if members == 0 or non_members == 0:
        nan = float("nan")
        return MembershipMetrics(nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, members, non_members)
    counted = np.ones(members + non_members) if weights is None else weights
    sizes = effective_size(counted[is_member]), effective_size(counted[~is_member])
    fpr, tpr, auc = roc_with_auc(scores, is_member, weights)
    said, paired = scores > threshold, _paired(is_member, pair)
    correlation, effect = (0.0, 1.0) if paired is None else _in_pairs(scores, said, *paired)
    low, high = balanced_accuracy_interval(said, is_member, weights, confidence, correlation=correlation)
    auc_low, auc_high = auc_interval(auc, sizes[0] / effect, sizes[1] / effect, confidence)
    at_1 = _at_fpr(fpr, tpr, 0.01, *sizes, confidence)
    at_01 = _at_fpr(fpr, tpr, 0.001, *sizes, confidence)
    return MembershipMetrics(
        accuracy=balanced_accuracy(said, is_member, weights),
        low=low,
        high=high,
        null_high=_null_high(said, is_member, counted, paired),
        auc=auc,
        auc_low=auc_low,
        auc_high=auc_high,
        tpr_at_1_percent_fpr=at_1[0],
        tpr_at_1_percent_fpr_low=at_1[1],
        tpr_at_1_percent_fpr_high=at_1[2],
        tpr_at_01_percent_fpr=at_01[0],
        tpr_at_01_percent_fpr_low=at_01[1],
        tpr_at_01_percent_fpr_high=at_01[2],
        members=members,
        non_members=non_members,
    )


def least_non_members(max_fpr: float) -> float:
    """The fewest non-members, by `effective_size`, with which a true positive rate is given at a false positive rate.

    Example:
        >>> from shoal.metrics import least_non_members
        >>> least_non_members(0.01), least_non_members(0.001)
        (300.0, 3000.0)
    """
    return FALSE_POSITIVES / max_fpr


def balanced_accuracy(predictions: Bools, is_member: Bools, weights: Floats | None = None) -> float:
    """(TPR + TNR) / 2 of ``predictions`` (M,), true for predicted members.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import balanced_accuracy
        >>> balanced_accuracy(np.array([True, True, False]), np.array([True, False, False]))
        0.75
    """
    weights = np.ones(len(is_member)) if weights is None else weights
    tpr = np.average(predictions[is_member], weights=weights[is_member])
    tnr = np.average(~predictions[~is_member], weights=weights[~is_member])
    return float((tpr + tnr) / 2)


def tpr_at_fpr(fpr: Floats, tpr: Floats, max_fpr: float) -> float:
    """The true positive rate at the largest false positive rate that is at most ``max_fpr``; no interpolation.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import tpr_at_fpr
        >>> tpr_at_fpr(np.array([0.0, 0.0, 0.5, 1.0]), np.array([0.0, 0.2, 0.9, 1.0]), 0.01)
        0.2
    """
    # Rates of weighted examples are sums of fractions: 0.01 may come as 0.010000000000000002.
    return float(tpr[fpr <= max_fpr + 1e-9].max(initial=0.0))


def _at_fpr(
    fpr: Floats, tpr: Floats, max_fpr: float, members: float, non_members: float, confidence: float
) -> tuple[float, float, float]:
    """The true positive rate and its interval; NaN with too few non-members."""
    # Sums of weights may fall short of a whole number in the last digits.
    if non_members < least_non_members(max_fpr) * (1 - 1e-9):
        return float("nan"), float("nan"), float("nan")
    return tpr_at_fpr(fpr, tpr, max_fpr), *tpr_interval(fpr, tpr, max_fpr, members, non_members, confidence)


def tpr_interval(
    fpr: Floats, tpr: Floats, max_fpr: float, members: float, non_members: float, confidence: float = 0.95
) -> tuple[float, float]:
    """A confidence interval of the true positive rate at a false positive rate of ``max_fpr``.

    Two errors add up as independent ones do: that of the rate at the threshold (`clopper_pearson`), and that of the
    threshold, since as many non-members as a binomial distribution draws lie above the true one.

    Args:
        fpr, tpr: the ROC curve.
        max_fpr: see `tpr_at_fpr`.
        members, non_members: how many, or their effective sizes.
        confidence: of the interval, in (0, 1).

    Example:
        >>> import numpy as np
        >>> from shoal.metrics.membership import tpr_interval
        >>> rates = np.linspace(0.0, 1.0, 301)
        >>> [round(end, 3) for end in tpr_interval(rates, rates, 0.01, 300, 300)]
        [0.0, 0.033]
    """
    from scipy.special import bdtr  # noqa: PLC0415 - takes a while to import

    rate, tail = tpr_at_fpr(fpr, tpr, max_fpr), (1 - confidence) / 2
    low, high = (float(end) for end in clopper_pearson(rate * members, members, confidence))
    counts = np.arange(int(non_members) + 1.0)
    drawn = bdtr(counts, int(non_members), max_fpr)
    fewest, most = (int((drawn < end).sum()) for end in (tail, 1 - tail))
    stricter, laxer = (tpr_at_fpr(fpr, tpr, each / non_members) for each in (fewest, most))
    below, above = math.hypot(rate - low, rate - stricter), math.hypot(high - rate, laxer - rate)
    return max(0.0, rate - below), min(1.0, rate + above)


def _paired(is_member: Bools, pair: Ints | None) -> tuple[Ints, Ints] | None:
    """Where the member (Q,) and the non-member (Q,) of each pair are; None where examples are no such pairs."""
    if pair is None:
        return None
    inside, outside = (np.flatnonzero(which) for which in (is_member, ~is_member))
    inside, outside = (each[np.argsort(pair[each], kind="stable")] for each in (inside, outside))
    return (inside, outside) if np.array_equal(pair[inside], pair[outside]) else None


def _in_pairs(scores: Floats, said: Bools, inside: Ints, outside: Ints) -> tuple[float, float]:
    """The correlation of right answers on the two examples of a pair, and `auc_design_effect`."""
    right, also = said[inside], ~said[outside]
    varies = 0 < right.sum() < len(right) and 0 < also.sum() < len(also)
    correlation = float(np.corrcoef(right, also)[0, 1]) if varies else 0.0
    return correlation, auc_design_effect(scores[inside], scores[outside])


def _null_high(said: Bools, is_member: Bools, weights: Floats, paired: tuple[Ints, Ints] | None) -> float:
    """`MembershipMetrics.null_high`, by the normal approximation.

    Of Q pairs, d with unequal answers count: fair coins say which of the two is right, so the standard deviation is
    sqrt(d) / (2 Q). Of independent examples it is sqrt(p (1 - p) (1 / members + 1 / non-members)) / 2, with the share p
    that is called members.
    """
    if paired is not None:
        deviation = math.sqrt((said[paired[0]] != said[paired[1]]).sum()) / (2 * len(paired[0]))
    else:
        share = sum(float(np.average(said[which], weights=weights[which])) for which in (is_member, ~is_member)) / 2
        size = sum(1 / effective_size(weights[which]) for which in (is_member, ~is_member))
        deviation = math.sqrt(share * (1 - share) * size) / 2
    return 0.5 + NormalDist().inv_cdf(0.95) * deviation


def gap_accuracy(train_accuracy: float, test_accuracy: float) -> float:
    """Balanced accuracy of the gap attack, which calls an example a member if the model classifies it correctly.

    0.5 + (train accuracy - test accuracy) / 2.

    Example:
        >>> from shoal.metrics import gap_accuracy
        >>> round(gap_accuracy(1.0, 0.8), 3)
        0.6
    """
    return 0.5 + (train_accuracy - test_accuracy) / 2
