"""Fairness between groups, and the agreement of clusters with groups.

Source: IFCA-MIR, section 3.2, with one class against all other classes.
"""

from dataclasses import dataclass

import numpy as np

from shoal.metrics.intervals import Bools, Floats, Ints


@dataclass(frozen=True)
class Fairness:
    """The largest differences between groups, averaged over classes, each in [0, 1]; 0 is fair.

    Args:
        demographic_parity: the difference of P(prediction = c | group), Definition 1.
        equal_opportunity: the difference of P(prediction = c | label = c, group), Definition 2.
        equalized_odds: the larger difference, of true positive rates or of false positive rates, Definition 3.
    """

    demographic_parity: float
    equal_opportunity: float
    equalized_odds: float


def fairness(predictions: Ints, labels: Ints, group: Ints, weights: Floats) -> Fairness:
    """Compute the fairness of predictions between groups, equal to fairlearn's metrics.

    A rate ignores groups without examples for it. A difference between fewer than two groups is 0.

    Args:
        weights: the number of clients that each example represents, (M,).

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


def adjusted_rand_index(assignment: Ints, group: Ints) -> float:
    """Return the adjusted Rand index of clusters and groups: 1 for equal partitions, about 0 for a random partition.

    The value equals scikit-learn's `adjusted_rand_score`.

    Source: Hubert and Arabie 1985, Journal of Classification 2:193-218.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import adjusted_rand_index
        >>> adjusted_rand_index(np.array([1, 1, 0, 0]), np.array([0, 0, 1, 1]))
        1.0
    """
    _, group = np.unique(group, return_inverse=True)
    _, assignment = np.unique(assignment, return_inverse=True)
    table = np.zeros((group.max(initial=-1) + 1, assignment.max(initial=-1) + 1), dtype=np.int64)
    np.add.at(table, (group, assignment), 1)
    # Python's integers, whose products do not overflow.
    together = int((table**2).sum()) - len(group)
    in_group = int((table.sum(axis=1) ** 2).sum()) - len(group) - together
    in_cluster = int((table.sum(axis=0) ** 2).sum()) - len(group) - together
    apart = len(group) ** 2 - len(group) - together - in_group - in_cluster
    if in_group == 0 and in_cluster == 0:
        return 1.0
    expected = (together + in_group) * (in_group + apart) + (together + in_cluster) * (in_cluster + apart)
    return 2.0 * (together * apart - in_group * in_cluster) / expected


def is_migrated(assignment: Ints, group: Ints) -> Bools:
    """Return a mask (N,) of the clients in a cluster where a different group has more clients than their own.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import is_migrated
        >>> is_migrated(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1]))
        array([False, False,  True, False])
    """
    migrated = np.zeros(len(group), dtype=bool)
    for cluster in np.unique(assignment):
        inside = assignment == cluster
        counts = np.bincount(group[inside], minlength=group.max() + 1)
        migrated[inside] = counts[group[inside]] < counts.max()
    return migrated


def exceeds_threshold(exposure: Floats, threshold: Floats) -> Bools:
    """Return a mask (N,) of the clients whose exposure is above the client's threshold (IFCA-MIR 5.2.2)."""
    return exposure > threshold
