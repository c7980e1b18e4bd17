"""How well an attacker tells members from non-members.

All take ``member`` (M,) bool, and weights (M,) where examples stand for different numbers of clients.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class MembershipMetrics:
    """A membership-inference attack on one population of members and non-members.

    Args:
        accuracy: balanced accuracy, (TPR + TNR) / 2 at the attack's own threshold (IFCA-MIR, equation 8).
        auc: area under the ROC curve.
        tpr_at_1_percent_fpr: true positive rate at a false positive rate of at most 1 %.
        tpr_at_01_percent_fpr: the same at 0.1 %.
        members: members scored.
        non_members: non-members scored.
    """

    accuracy: float
    auc: float
    tpr_at_1_percent_fpr: float
    tpr_at_01_percent_fpr: float
    members: int
    non_members: int


def membership_metrics(
    scores: Floats, threshold: float, member: Bools, weight: Floats | None = None
) -> MembershipMetrics:
    """Measure an attack's ``scores`` (M,), higher meaning member; above ``threshold`` it says member.

    Without members or without non-members every figure is NaN.
    """
    count = int(member.sum())
    if count in (0, len(member)):
        nan = float("nan")
        return MembershipMetrics(nan, nan, nan, nan, count, len(member) - count)
    # Here, since scikit-learn takes long to import.
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415

    fpr, tpr = roc(scores, member, weight)
    return MembershipMetrics(
        accuracy=balanced_accuracy(scores > threshold, member, weight),
        auc=float(roc_auc_score(member, scores, sample_weight=weight)),
        tpr_at_1_percent_fpr=tpr_at_fpr(fpr, tpr, 0.01),
        tpr_at_01_percent_fpr=tpr_at_fpr(fpr, tpr, 0.001),
        members=count,
        non_members=len(member) - count,
    )


def balanced_accuracy(said_member: Bools, member: Bools, weight: Floats | None = None) -> float:
    """(TPR + TNR) / 2.

    >>> balanced_accuracy(np.array([True, True, False]), np.array([True, False, False]))
    0.75
    """
    weights = np.ones(len(member)) if weight is None else weight
    tpr = np.average(said_member[member], weights=weights[member])
    tnr = np.average(~said_member[~member], weights=weights[~member])
    return float((tpr + tnr) / 2)


def roc(scores: Floats, member: Bools, weight: Floats | None = None) -> tuple[Floats, Floats]:
    """The ROC curve: false and true positive rates at every threshold, both increasing."""
    from sklearn.metrics import roc_curve  # noqa: PLC0415

    fpr, tpr, _ = roc_curve(member, scores, sample_weight=weight, drop_intermediate=False)
    return fpr, tpr


def tpr_at_fpr(fpr: Floats, tpr: Floats, at_most: float) -> float:
    """The true positive rate at the largest false positive rate that is at most ``at_most``; no interpolation.

    >>> tpr_at_fpr(np.array([0.0, 0.0, 0.5, 1.0]), np.array([0.0, 0.2, 0.9, 1.0]), 0.01)
    0.2
    """
    # Rates of weighted examples are sums of fractions: 0.01 may come as 0.010000000000000002.
    return float(tpr[fpr <= at_most + 1e-9].max(initial=0.0))


def gap_accuracy(train_accuracy: float, test_accuracy: float) -> float:
    """Balanced accuracy of the attack that calls an example a member when the model classifies it rightly.

    >>> round(gap_accuracy(1.0, 0.8), 3)
    0.6
    """
    return 0.5 + (train_accuracy - test_accuracy) / 2
