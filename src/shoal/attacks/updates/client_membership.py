"""Membership of clients: did a client take part in training, by scores of records that the attacker has of it?

Any score of membership of single records will do: the loss of a released model, or the span of the moves of the models
of all rounds, which are sums over a cohort and so all that a server sees under secure aggregation. A client has many
records, so its mean says more than any of them, and a sum that hides a record need not hide its owner.

Where cohorts are known and change, their sums say more than one of them. The evidence of a candidate in round t is
linear in who took part, up to noise,

    evidence_tc  =  level_c  +  sum_i took_part_ti * coefficient_ic  +  noise

and its coefficients say which of the pseudonymous clients the candidate is. Source: Kerkouche, Acs, Fritz, "Client-
specific Property Inference against Secure Aggregation in Federated Learning", WPES 2023, arXiv:2303.03908 (PROLIN),
whose evidence is a linear model of the sum that is fitted on shadow updates. Ours takes an attack on records for it.
"""

import numpy as np
from numpy.typing import ArrayLike

from shoal.core.errors import require
from shoal.metrics.intervals import Bools, Floats, Ints


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


def cohort_coefficients(evidence: Floats, took_part: Bools) -> Floats:
    """How much of the evidence of each of C candidates comes with each of N clients' taking part, by least squares.

    It is the shortest of all solutions, so fewer rounds than clients will do.

    Args:
        evidence: (T, C), what the sum of round t says of candidate c, such as `client_scores` of one move.
        took_part: (T, N), the cohort of each round.

    Returns:
        (N, C). A client that always or never took part has zeros.

    Raises:
        InputError: arrays of different rounds, or fewer than two.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks import cohort_coefficients
        >>> took_part = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1], [0, 0, 1]], dtype=bool)
        >>> (cohort_coefficients(0.3 + 0.2 * took_part, took_part).round(6) + 0.0).tolist()
        [[0.2, 0.0, 0.0], [0.0, 0.2, 0.0], [0.0, 0.0, 0.2]]
    """
    rounds = len(evidence)
    require(
        evidence.ndim == took_part.ndim == 2 and rounds == len(took_part) and rounds >= 2,
        f"'evidence' (T, C) and 'took_part' (T, N) must be of the same rounds, at least 2; got shapes "
        f"{evidence.shape} and {took_part.shape}",
    )
    return np.linalg.pinv(took_part - took_part.mean(axis=0)) @ (evidence - evidence.mean(axis=0))
