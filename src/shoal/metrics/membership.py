"""Metrics of membership inference: how well an attack tells members from non-members.

``is_member`` is (M,) bool; ``weights`` (M,) say how much each example counts, None: equally.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_ONE = 1 - 1e-9
"""One expected false positive, but for rounding."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class MembershipMetrics:
    """Metrics of a membership-inference attack on one population of members and non-members.

    Args:
        accuracy: balanced accuracy, (TPR + TNR) / 2 at the attack's own threshold (IFCA-MIR, equation 8).
        low, high: the interval of the balanced accuracy; see `balanced_accuracy_interval`.
        auc: area under the ROC curve.
        tpr_at_1_percent_fpr: true positive rate at a false positive rate of at most 1 %; NaN with fewer than 100
            non-members (by `effective_size`), of which no such rate can be seen.
        tpr_at_01_percent_fpr: the same at 0.1 %; NaN with fewer than 1,000.
        members: number of members scored.
        non_members: number of non-members scored.
    """

    accuracy: float
    low: float
    high: float
    auc: float
    tpr_at_1_percent_fpr: float
    tpr_at_01_percent_fpr: float
    members: int
    non_members: int


def membership_metrics(
    scores: Floats,
    is_member: Bools,
    weights: Floats | None = None,
    *,
    threshold: float,
    confidence: float = 0.95,
) -> MembershipMetrics:
    """Metrics of an attack's ``scores`` (M,), higher for members; above ``threshold`` it calls an example a member.

    Without members or without non-members all rates are NaN.

    >>> scores, is_member = np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False])
    >>> metrics = membership_metrics(scores, is_member, threshold=1.5)
    >>> metrics.accuracy, metrics.auc
    (0.5, 0.75)
    """
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - scikit-learn takes a second to import

    members, non_members = int(is_member.sum()), int((~is_member).sum())
    if members == 0 or non_members == 0:
        nan = float("nan")
        return MembershipMetrics(nan, nan, nan, nan, nan, nan, members, non_members)
    fpr, tpr = roc(scores, is_member, weights)
    low, high = balanced_accuracy_interval(scores > threshold, is_member, weights, confidence)
    carried = effective_size(np.ones(members + non_members)[~is_member] if weights is None else weights[~is_member])
    return MembershipMetrics(
        accuracy=balanced_accuracy(scores > threshold, is_member, weights),
        low=low,
        high=high,
        auc=float(roc_auc_score(is_member, scores, sample_weight=weights)),
        tpr_at_1_percent_fpr=tpr_at_fpr(fpr, tpr, 0.01) if carried * 0.01 >= _ONE else float("nan"),
        tpr_at_01_percent_fpr=tpr_at_fpr(fpr, tpr, 0.001) if carried * 0.001 >= _ONE else float("nan"),
        members=members,
        non_members=non_members,
    )


def balanced_accuracy(predictions: Bools, is_member: Bools, weights: Floats | None = None) -> float:
    """(TPR + TNR) / 2 of ``predictions`` (M,), true for predicted members.

    >>> balanced_accuracy(np.array([True, True, False]), np.array([True, False, False]))
    0.75
    """
    weights = np.ones(len(is_member)) if weights is None else weights
    tpr = np.average(predictions[is_member], weights=weights[is_member])
    tnr = np.average(~predictions[~is_member], weights=weights[~is_member])
    return float((tpr + tnr) / 2)


def balanced_accuracy_interval(
    predictions: Bools, is_member: Bools, weights: Floats | None = None, confidence: float = 0.95
) -> tuple[float, float]:
    """A confidence interval of `balanced_accuracy`, from Wilson's intervals of the two rates.

    The distances of the rates from their limits add up as independent errors do: (TPR + TNR) / 2 minus and plus
    sqrt(d_TPR^2 + d_TNR^2) / 2. Weighted examples count as `effective_size` says.

    Source: Newcombe 1998, Statistics in Medicine 17:873-890, method 10, for a sum in the place of a difference.

    >>> [round(limit, 3) for limit in balanced_accuracy_interval(np.arange(200) < 100, np.arange(200) < 100)]
    [0.974, 1.0]
    """
    weights = np.ones(len(is_member)) if weights is None else weights
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rates, below, above = [], [], []
    for right, which in ((predictions, is_member), (~predictions, ~is_member)):
        n, rate = effective_size(weights[which]), float(np.average(right[which], weights=weights[which]))
        centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
        reach = z / (1 + z * z / n) * np.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
        rates.append(rate)
        below.append(rate - (centre - reach))
        above.append(centre + reach - rate)
    accuracy = sum(rates) / 2
    return accuracy - float(np.hypot(*below)) / 2, accuracy + float(np.hypot(*above)) / 2


def effective_size(weights: Floats) -> float:
    """How many equally weighted examples are worth these: (sum w)^2 / sum w^2 (Kish 1965).

    >>> effective_size(np.array([1.0, 1.0, 0.0])), effective_size(np.array([3.0, 1.0]))
    (2.0, 1.6)
    """
    return float(weights.sum() ** 2 / (weights**2).sum())


def roc(scores: Floats, is_member: Bools, weights: Floats | None = None) -> tuple[Floats, Floats]:
    """The ROC curve: false and true positive rates at every threshold, both increasing.

    >>> roc(np.array([2.0, 1.0, 0.0]), np.array([True, False, True]))
    (array([0., 0., 1., 1.]), array([0. , 0.5, 0.5, 1. ]))
    """
    from sklearn.metrics import roc_curve  # noqa: PLC0415 - scikit-learn takes a second to import

    fpr, tpr, _ = roc_curve(is_member, scores, sample_weight=weights, drop_intermediate=False)
    return fpr, tpr


def tpr_at_fpr(fpr: Floats, tpr: Floats, max_fpr: float) -> float:
    """The true positive rate at the largest false positive rate that is at most ``max_fpr``; no interpolation.

    >>> tpr_at_fpr(np.array([0.0, 0.0, 0.5, 1.0]), np.array([0.0, 0.2, 0.9, 1.0]), 0.01)
    0.2
    """
    # Rates of weighted examples are sums of fractions: 0.01 may come as 0.010000000000000002.
    return float(tpr[fpr <= max_fpr + 1e-9].max(initial=0.0))


def gap_accuracy(train_accuracy: float, test_accuracy: float) -> float:
    """Balanced accuracy of the gap attack, which calls an example a member if the model classifies it correctly.

    0.5 + (train accuracy - test accuracy) / 2.

    >>> round(gap_accuracy(1.0, 0.8), 3)
    0.6
    """
    return 0.5 + (train_accuracy - test_accuracy) / 2
