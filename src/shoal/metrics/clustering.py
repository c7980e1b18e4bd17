"""Metrics of the assignment of clients to clusters, against their true groups."""

import numpy as np

from shoal.metrics.intervals import Bools, Floats, Ints


def adjusted_rand_index(assignment: Ints, group: Ints) -> float:
    """Adjusted Rand index of the clusters and the groups: 1 for the same partition, about 0 for a random one.

    Over ordered pairs of clients, with a together in both, b in one group alone, c in one cluster alone and d in
    neither: 2 (a d - b c) / ((a + b) (b + d) + (a + c) (c + d)). The number is scikit-learn's `adjusted_rand_score`.

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
    """Mask (N,) of the clients in a cluster where another group has more clients than theirs.

    Where several groups of a cluster are the largest, their clients have not migrated.

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
    """Mask (N,) of the clients whose model's membership-inference accuracy exceeds their threshold (IFCA-MIR 5.2.2)."""
    return exposure > threshold
