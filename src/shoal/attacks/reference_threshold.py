"""The score above which an attack on a matrix of scores says member, set without the records that it then judges."""

import numpy as np

from shoal.attacks.reference_scores import Bools, Floats, ReferenceAttack, ReferenceScores
from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream


def reference_margins(attack: ReferenceAttack, records: ReferenceScores, stream: Stream) -> Floats:
    """Scores minus threshold (M,), positive where the attack says member.

    The threshold does not know the members of the attacked model. Each reference model in turn is attacked with the
    others as its references; the scores of all these attacks, whose right answers are known, are pooled, and the
    threshold is the one of best balanced accuracy. It is one for all records.

    Where that cannot be done (too few reference models for the attack, or members of too few of them among the
    records), the records are halved at random, members and non-members each; a half is judged by the threshold that
    is best on the other. The two thresholds differ, so take ranks (AUC) from the scores, not from these margins.

    Args:
        attack: that scores the records.
        records: to be judged.
        stream: of the halves.

    Raises:
        InputError: the attack cannot score these records; or they must be halved and have fewer than two members or two
            non-members.

    Example:
        >>> import numpy as np
        >>> from shoal import ReferenceScores, Stream
        >>> from shoal.attacks import LiRA, reference_margins
        >>> draw, member = np.random.default_rng(0), np.arange(400) < 200
        >>> trained = draw.random((400, 16)) < 0.5
        >>> score, reference = draw.normal(2.0 * member), draw.normal(2.0 * trained)
        >>> records = ReferenceScores(score, member, reference, trained, np.zeros(400, dtype=np.int64))
        >>> says_member = reference_margins(LiRA(), records, Stream(0)) > 0
        >>> bool((says_member == member).mean() > 0.8)
        True
    """
    scores = attack.scores(records)
    pooled = _leave_one_out(attack, records)
    if pooled is not None:
        return scores - best_threshold(*pooled)
    return halved_margins(scores, records.member, stream)


def halved_margins(scores: Floats, member: Bools, stream: Stream) -> Floats:
    """Scores minus threshold (M,), where the threshold of each half of the records is the best on the other half.

    Args:
        scores: (M,), higher for members.
        member: (M,) bool; members and non-members are halved each.
        stream: of the halves.

    Raises:
        InputError: fewer than two members or two non-members.

    Example:
        >>> import numpy as np
        >>> from shoal import Stream
        >>> from shoal.attacks import halved_margins
        >>> member = np.arange(100) < 50
        >>> margins = halved_margins(10.0 * member, member, Stream(0))
        >>> bool(((margins > 0) == member).all()), sorted(set(margins.tolist()))
        (True, [-5.0, 5.0])
    """
    margins, first = np.empty(len(scores)), _half(member, stream)
    for judged in (first, ~first):
        margins[judged] = scores[judged] - best_threshold(scores[~judged], member[~judged])
    return margins


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
    chosen = best[len(best) // 2]
    ends = np.concatenate([[values[0] - 1], values, [values[-1] + 1]])
    return float((ends[chosen] + ends[chosen + 1]) / 2)


def _leave_one_out(attack: ReferenceAttack, records: ReferenceScores) -> tuple[Floats, Bools] | None:
    """Scores and membership of the records under each reference model, one after another; None where not possible."""
    if records.references < 2 or records.references - 1 < attack.least:
        return None
    known = records.reference_member
    if not known.any() or known.all():
        return None
    attacked = [records.leave_one_out(r) for r in range(records.references)]
    try:
        scores = np.concatenate([attack.scores(each) for each in attacked])
    except InputError:
        # One of them may be the only one with members, without which the others say too little.
        return None
    return scores, np.concatenate([each.member for each in attacked])


def _half(member: Bools, stream: Stream) -> Bools:
    """(M,) bool: every second one of the members, and of the non-members, in a random order."""
    few = min(int(member.sum()), int((~member).sum()))
    require(
        few >= 2,
        "a threshold needs at least two members and two non-members where reference models do not set it; got "
        f"{int(member.sum())} and {int((~member).sum())}",
    )
    chosen, random = np.zeros(len(member), dtype=bool), stream("threshold").numpy()
    for which in (member, ~member):
        chosen[random.permutation(np.flatnonzero(which))[::2]] = True
    return chosen
