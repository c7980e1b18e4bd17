"""The score above which an attack on a matrix of scores says member, set without the attacked model's members."""

import numpy as np

from shoal.attacks.reference_scores import Bools, Floats, Ints, ReferenceAttack, ReferenceScores
from shoal.core.errors import InputError

LEAST = 50
"""Scores of members, and of non-members, at least, by which a threshold of some records alone is set."""


def leave_one_out_scores(attack: ReferenceAttack, records: ReferenceScores) -> Floats | None:
    """Scores (M, R) of the records when each reference model in turn is attacked, with the others as its references.

    Whether it was trained on a record is known (``records.reference_member``), so they say how strong the attack is,
    and where its threshold should be. None where that cannot be: too few reference models for the attack, or members
    of too few of them among the records.

    Example:
        >>> import numpy as np
        >>> from shoal import ReferenceScores
        >>> from shoal.attacks import DifficultyCalibration
        >>> from shoal.audit import leave_one_out_scores
        >>> reference, trained = np.array([[2.0, 0.5], [0.0, 1.5]]), np.array([[True, False], [False, True]])
        >>> one_model = np.zeros(2, dtype=np.int64)
        >>> records = ReferenceScores(np.zeros(2), np.array([True, False]), reference, trained, one_model)
        >>> leave_one_out_scores(DifficultyCalibration(), records)
        array([[ 1.5,  0.5],
               [-0.5,  1.5]])
    """
    known = records.reference_member
    if not 0 < records.references > attack.least or not known.any() or known.all():
        return None
    try:
        return np.stack([attack.scores(records.leave_one_out(r)) for r in range(records.references)], axis=1)
    except InputError:
        # One of them may be the only one with members, without which the others say too little.
        return None


def reference_thresholds(scores: Floats, left_out: Floats | None, trained: Bools, *cells: Ints) -> Floats:
    """Thresholds (M,) of ``scores`` (M,), above which the attack says member; it does not know the members.

    The threshold is the one of best balanced accuracy of the attacks on the reference models, whose right answers are
    known. Without these it is the median of the scores, so that half of the records are called members. Either is set
    for the records of a cell alone where it has scores enough (`LEAST` of members and of non-members), since a
    threshold that is right on average may lie above or below all scores of one model or group.

    Args:
        scores: of the attack on the attacked model.
        left_out: (M, R), see `leave_one_out_scores`; None: there are none.
        trained: (M, R) whether each reference model was trained on each record.
        cells: (M,) each, which cell a record is of; coarse ones first, such as its group, then its group and model.

    Example:
        >>> import numpy as np
        >>> from shoal.audit import reference_thresholds
        >>> trained = np.arange(200)[:, None] % 2 == 0
        >>> known, unknown = reference_thresholds(np.zeros(200), 4.0 * trained, trained), np.arange(200.0)
        >>> set(known.tolist()), set(reference_thresholds(unknown, None, trained).tolist())
        ({2.0}, {99.5})
    """

    def of(rows: Bools) -> float:
        return (
            median_threshold(scores[rows])
            if left_out is None
            else best_threshold(left_out[rows].ravel(), trained[rows].ravel())
        )

    thresholds = np.full(len(scores), of(np.ones(len(scores), dtype=bool)))
    for cell in cells:
        for value in np.unique(cell):
            rows = cell == value
            members = rows.sum() / 2 if left_out is None else trained[rows].sum()
            others = rows.sum() / 2 if left_out is None else (~trained[rows]).sum()
            if min(members, others) >= LEAST:
                thresholds[rows] = of(rows)
    return thresholds


def median_threshold(scores: Floats) -> float:
    """The threshold above which nearest to half of the scores (M,) are, half-way between two scores.

    Example:
        >>> import numpy as np
        >>> from shoal.audit import median_threshold
        >>> median_threshold(np.array([0.0, 1.0, 2.0, 2.0])), median_threshold(np.array([1.0, 2.0, 2.0, 2.0]))
        (1.5, 1.5)
    """
    values, counts = np.unique(scores, return_counts=True)
    above = np.append(counts[::-1].cumsum()[::-1], 0)
    return _between(values, int(np.abs(above - len(scores) / 2).argmin()))


def best_threshold(scores: Floats, member: Bools) -> float:
    """The threshold of best balanced accuracy, half-way between two scores; of several, the middle one.

    Args:
        scores: (M,), higher for members.
        member: (M,) bool, of both kinds.

    >>> best_threshold(np.array([0.0, 1.0, 2.0, 3.0]), np.array([False, False, True, True]))
    1.5
    """
    values, at = np.unique(scores, return_inverse=True)
    kinds = np.stack([np.bincount(at[which], minlength=len(values)) for which in (member, ~member)])
    # Threshold i lies below value i, the last one above all.
    above = np.concatenate([kinds[:, ::-1].cumsum(axis=1)[:, ::-1], np.zeros((2, 1))], axis=1)
    advantage = above[0] / member.sum() - above[1] / (~member).sum()
    # Rates are sums of fractions: equal ones may differ in the last digit.
    best = np.flatnonzero(advantage >= advantage.max() - 1e-12)
    return _between(values, best[len(best) // 2])


def _between(values: Floats, i: int) -> float:
    """Half-way between value i and the one before it, of values in order; beyond them by 1 at the ends."""
    ends = np.concatenate([[values[0] - 1], values, [values[-1] + 1]])
    return float((ends[i] + ends[i + 1]) / 2)
