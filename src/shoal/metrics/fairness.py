"""The three group-fairness metrics of IFCA-MIR (section 3.2), one class against the rest, averaged over classes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Fairness:
    """Largest differences between groups, each in [0, 1], 0 being fair.

    Args:
        demographic_parity: of P(prediction = c | group), Definition 1.
        equal_opportunity: of P(prediction = c | label = c, group), Definition 2.
        equalized_odds: the larger of the differences of true and of false positive rates, Definition 3.
    """

    demographic_parity: float
    equal_opportunity: float
    equalized_odds: float


def fairness(labels: Ints, predictions: Ints, group: Ints, weight: NDArray[np.float64]) -> Fairness:
    """Fairness of predictions between groups, by fairlearn.

    Args:
        labels: (M,) true classes.
        predictions: (M,) predicted classes.
        group: (M,) the example's group.
        weight: (M,) how many clients the row stands for.
    """
    # Here, since fairlearn takes long to import.
    from fairlearn.metrics import demographic_parity_difference, equal_opportunity_difference  # noqa: PLC0415

    rows = []
    for label in np.unique(labels):
        truth, said = (labels == label).astype(int), (predictions == label).astype(int)
        # A rate over nothing is undefined, so it takes only the groups that have such examples.
        positive, negative = np.isin(group, group[truth == 1]), np.isin(group, group[truth == 0])
        recall = _difference(equal_opportunity_difference, truth, said, group, weight, positive)
        false_alarm = _difference(equal_opportunity_difference, 1 - truth, said, group, weight, negative)
        parity = _difference(demographic_parity_difference, truth, said, group, weight, np.ones(len(group), dtype=bool))
        rows.append((parity, recall, max(recall, false_alarm)))
    parity, opportunity, odds = np.mean(rows, axis=0)
    return Fairness(float(parity), float(opportunity), float(odds))


def _difference(
    metric: Callable[..., float],
    truth: Ints,
    said: Ints,
    group: Ints,
    weight: NDArray[np.float64],
    counted: NDArray[np.bool_],
) -> float:
    """A fairlearn difference over the rows that count; 0 with fewer than two groups."""
    if len(np.unique(group[counted])) < 2:
        return 0.0
    return float(
        metric(truth[counted], said[counted], sensitive_features=group[counted], sample_weight=weight[counted])
    )
