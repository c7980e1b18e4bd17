"""Membership of clients: did a client take part in training, by scores of records that the attacker has of it?

Any score of membership of single records will do: the loss of a released model, or the span of the moves of the models
of all rounds, which are sums over a cohort and so all that a server sees under secure aggregation. A client has many
records, so its mean says more than any of them, and a sum that hides a record need not hide its owner.
"""

import numpy as np
from numpy.typing import ArrayLike

from shoal.metrics.intervals import Floats, Ints


def client_scores(score: ArrayLike, client: ArrayLike, stratum: ArrayLike = 0) -> tuple[Ints, Floats]:
    """The mean rank of the records of each of C candidates, in (0, 1): higher where it more likely took part.

    A rank is the share of all records of the stratum with a lower score, and half of those with the same: the scale of
    an attack's scores does not matter, nor does which labels a client has where the strata are labels.

    Args:
        score: (M,) of records, higher for members; NaN: not asked.
        client: (M,) int, the candidate that each record is of.
        stratum: (M,), such as labels; a single value: all are of one.

    Returns:
        The candidates that have a score, ascending, and the scores (C,).

    Example:
        >>> from shoal.attacks import client_scores
        >>> clients, scores = client_scores([5.0, 3.0, 4.0, 1.0], [7, 7, 2, 2])
        >>> clients.tolist(), scores.tolist()
        ([2, 7], [0.375, 0.625])
    """
    scored = ~np.isnan(np.asarray(score, dtype=np.float64))
    values, owner = np.asarray(score, dtype=np.float64)[scored], np.asarray(client)[scored]
    kind, rank = np.broadcast_to(np.asarray(stratum), scored.shape)[scored], np.empty(len(values))
    for one in np.unique(kind):
        inside = kind == one
        ordered = np.sort(values[inside])
        below, upto = (np.searchsorted(ordered, values[inside], side) for side in ("left", "right"))
        rank[inside] = (below + upto) / (2 * len(ordered))
    clients, position = np.unique(owner, return_inverse=True)
    return clients, np.bincount(position, rank) / np.bincount(position)
