"""Membership of clients: did a client take part in training, by membership scores of its records?

Any score works: the loss of a released model, or the span of models' moves, which a server sees even under secure
aggregation. A client has many records, so its mean is more accurate than a single score: a sum that hides a record may
still reveal its owner.
"""

import numpy as np
from numpy.typing import ArrayLike

from shoal.metrics.intervals import Floats, Ints


def client_scores(score: ArrayLike, client: ArrayLike, stratum: ArrayLike = 0) -> tuple[Ints, Floats]:
    """Return the mean rank of the records of each of C clients, in (0, 1); higher: more likely in training.

    A rank is the share of the stratum's records with a lower score, plus half the share with the same score. So the
    scale of scores does not matter, and with labels as strata neither do a client's labels.

    Args:
        score: (M,) scores of records, higher for members; NaN: none.
        client: (M,) int, the client of each record.
        stratum: (M,), such as labels; a single value: one stratum.

    Returns:
        The clients with scores, ascending, and their mean ranks (C,).

    Example:
        >>> from shoal.attacks import client_scores
        >>> clients, scores = client_scores([5.0, 3.0, 4.0, 1.0], [7, 7, 2, 2])
        >>> clients.tolist(), scores.tolist()
        ([2, 7], [0.375, 0.625])
    """
    scored = ~np.isnan(np.asarray(score, dtype=np.float64))
    values, owner = np.asarray(score, dtype=np.float64)[scored], np.asarray(client)[scored]
    kind, rank = np.broadcast_to(np.asarray(stratum), scored.shape)[scored], np.empty(len(values))
    for value in np.unique(kind):
        inside = kind == value
        ordered = np.sort(values[inside])
        below, upto = (np.searchsorted(ordered, values[inside], side) for side in ("left", "right"))
        rank[inside] = (below + upto) / (2 * len(ordered))
    clients, position = np.unique(owner, return_inverse=True)
    return clients, np.bincount(position, rank) / np.bincount(position)
