"""The three group-fairness metrics of IFCA-MIR (section 3.2), one class against the rest, averaged over classes."""

from dataclasses import dataclass

import numpy as np

from shoal.metrics.intervals import Bools, Floats, Ints


@dataclass(frozen=True)
class Fairness:
    """Largest differences between groups, each in [0, 1]; 0 is fair.

    Args:
        demographic_parity: of P(prediction = c | group), Definition 1.
        equal_opportunity: of P(prediction = c | label = c, group), Definition 2.
        equalized_odds: the larger of the differences of true and of false positive rates, Definition 3.
    """

    demographic_parity: float
    equal_opportunity: float
    equalized_odds: float


def fairness(predictions: Ints, labels: Ints, group: Ints, weights: Floats) -> Fairness:
    """Fairness of predictions between groups, with the numbers of fairlearn.

    A group without an example for a rate is left out of its difference; with fewer than two rates the difference is 0.

    Args:
        predictions: (M,) predicted classes.
        labels: (M,) true classes.
        group: (M,) the group of each example.
        weights: (M,) number of clients that the example stands for.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import fairness
        >>> labels, group = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
        >>> fairness(np.array([0, 1, 0, 0]), labels, group, np.ones(4))
        Fairness(demographic_parity=0.5, equal_opportunity=0.5, equalized_odds=1.0)
    """
    differences = []
    for label in np.unique(labels):
        predicted, actual = predictions == label, labels == label
        parity = _difference(_selection_rates(predicted, group, weights))
        true_positive = _difference(_rates(predicted, actual, group, weights))
        false_positive = _difference(_rates(predicted, ~actual, group, weights))
        differences.append((parity, true_positive, max(true_positive, false_positive)))
    parity, opportunity, odds = np.mean(differences, axis=0)
    return Fairness(float(parity), float(opportunity), float(odds))


def _selection_rates(predicted: Bools, group: Ints, weights: Floats) -> Floats:
    """P(predicted) in each group: (G,)."""
    members = [group == g for g in np.unique(group)]
    return np.array([np.dot(predicted[inside], weights[inside]) / weights[inside].sum() for inside in members])


def _rates(predicted: Bools, condition: Bools, group: Ints, weights: Floats) -> Floats:
    """P(predicted | condition) in each group that has such examples: (G',)."""
    positive, negative = (
        np.bincount(group[chosen], weights[chosen], minlength=group.max() + 1)
        for chosen in (condition & predicted, condition & ~predicted)
    )
    present = np.unique(group[condition])
    return positive[present] / (positive[present] + negative[present])


def _difference(rates: Floats) -> float:
    return float(rates.max() - rates.min()) if len(rates) else 0.0
