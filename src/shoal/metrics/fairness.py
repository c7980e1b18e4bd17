"""The three group-fairness metrics of IFCA-MIR (section 3.2), one class against the rest, averaged over classes."""

from dataclasses import dataclass

import numpy as np
from fairlearn.metrics import demographic_parity_difference, equal_opportunity_difference, equalized_odds_difference
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
    rows = []
    for label in np.unique(labels):
        truth, said = (labels == label).astype(int), (predictions == label).astype(int)
        given = {"sensitive_features": group, "sample_weight": weight}
        rows.append(
            (
                demographic_parity_difference(truth, said, **given),
                equal_opportunity_difference(truth, said, **given),
                equalized_odds_difference(truth, said, **given),
            )
        )
    parity, opportunity, odds = np.mean(rows, axis=0)
    return Fairness(float(parity), float(opportunity), float(odds))
