"""Inference of whether a client took part in training, from membership scores of the client's records.

The mean over a client's records is more accurate than one record's score.
"""

import numpy as np
from numpy.typing import ArrayLike

from shoal.metrics.intervals import Floats, Ints


def client_scores(score: ArrayLike, client: ArrayLike, stratum: ArrayLike = 0) -> tuple[Ints, Floats]:
    """Return the mean rank of each client's records, in (0, 1); a higher rank means more likely a participant.

    A record's rank is the fraction of its stratum's records with a lower score, plus half the fraction with an equal
    score. With labels as strata, the ranks do not depend on the clients' label distributions.

    Args:
        score: the records' scores, higher for members, (M,), with NaN if a record has no score.
        client: the client of each record, (M,) int.
        stratum: the stratum of each record, such as its label, (M,); a scalar means one stratum.

    Returns:
        The C clients with scores, in ascending order, and their mean ranks, (C,).

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
