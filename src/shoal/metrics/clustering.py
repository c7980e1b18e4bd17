"""How the clusters that formed relate to the groups there are."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def adjusted_rand_index(group: Ints, assignment: Ints) -> float:
    """Adjusted Rand index of the clusters against the true groups: 1 the same partition, about 0 chance."""
    # Here, since scikit-learn takes long to import.
    from sklearn.metrics import adjusted_rand_score  # noqa: PLC0415

    return float(adjusted_rand_score(group, assignment))


def is_migrated(group: Ints, assignment: Ints) -> Bools:
    """(N,) whether a client is in a cluster where another group is in the majority.

    In a cluster with a tie for the largest group nobody of those groups has migrated.

    >>> migrated(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]))
    array([False, False,  True, False])
    """
    moved = np.zeros(len(group), dtype=bool)
    for cluster in np.unique(assignment):
        inside = assignment == cluster
        counts = np.bincount(group[inside], minlength=group.max() + 1)
        moved[inside] = counts[group[inside]] < counts.max()
    return moved


def exceeds_threshold(exposure: NDArray[np.float64], threshold: NDArray[np.float64]) -> Bools:
    """(N,) whether the membership-inference accuracy on a client's model exceeds what it tolerates (5.2.2)."""
    return exposure > threshold
