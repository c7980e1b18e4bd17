"""Each record's scores by the reference models that trained on it (IN), and by those that did not (OUT).

Where all reference models are on one side of a record, its other side is taken to be the same scores moved by the mean
difference between IN and OUT: of R random halves, 2 in 2^R records have one side only.

The number of a record's IN scores can tell whether the attacked model trained on it, such as where each record is in
exactly half of all models. So equal scores have exactly their mean, however many there are.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.attacks.reference_scores import ReferenceAttack, ReferenceScores
from shoal.core.errors import require
from shoal.metrics.intervals import Bools, Floats


@dataclass(frozen=True, eq=False)
class Side:
    """The scores on one side, IN or OUT, of M records.

    Args:
        scores: (M, R), moved where the record has none on this side.
        used: (M, R) bool, those that count; at least one a record.
        observed: (M,) bool, whether the record has scores on this side.
    """

    scores: Floats
    used: Bools
    observed: Bools

    @property
    def count(self) -> Floats:
        """(M,) scores that count."""
        return self.used.sum(axis=1).astype(np.float64)

    @property
    def mean(self) -> Floats:
        """(M,) of the scores that count."""
        return _mean(self.scores, self.used)

    @property
    def squares(self) -> Floats:
        """(M,) sums of squares around each record's own mean."""
        return (np.where(self.used, self.scores - self.mean[:, None], 0.0) ** 2).sum(axis=1)

    @property
    def freedom(self) -> Floats:
        """(M,) degrees of freedom of `squares`: scores - 1; 0 where the scores are the other side's."""
        return np.where(self.observed, self.count - 1, 0.0)


def in_and_out(attack: ReferenceAttack, records: ReferenceScores, *, needs_in: bool) -> tuple[Side, Side]:
    """The IN and the OUT side of the records.

    Args:
        attack: named in errors, with its ``least``.
        records: to be split.
        needs_in: whether IN scores are read; without, only OUT scores must exist, and the IN side may be wrong.

    Raises:
        InputError: fewer reference models than ``attack.least``, or no record with a score on a side that is read.
    """
    require(
        records.references >= attack.least,
        f"the attack '{attack.name}' needs at least {attack.least} reference models; got {records.references}",
    )
    inside, outside = records.reference_member, ~records.reference_member
    has_in, has_out = inside.sum(axis=1) > 0, outside.sum(axis=1) > 0
    empty = len(records) == 0
    require(
        empty or bool(has_out.any()),
        f"the attack '{attack.name}' needs records that some reference model did not train on; all trained on all",
    )
    require(
        empty or not needs_in or bool(has_in.any()),
        f"the attack '{attack.name}' needs records that some reference model trained on; none trained on any, which "
        "only the offline attacks allow",
    )
    shift = _shift(records, has_in, has_out)
    return _side(records.reference, inside, has_in, shift), _side(records.reference, outside, has_out, -shift)


def pooled_variances(attack: ReferenceAttack, *sides: Side) -> list[float]:
    """The variance of the scores around their record's mean, one for each side, pooled over records.

    The sum of squares over the sum of the degrees of freedom. A side on which no record has two scores takes the
    variance of the others.

    Raises:
        InputError: no record has two scores on a side, or scores do not vary.
    """
    squares = np.array([side.squares[side.observed].sum() for side in sides])
    freedom = np.array([side.freedom.sum() for side in sides])
    variances = np.divide(squares, freedom, out=np.full(len(sides), np.nan), where=freedom > 0)
    if freedom.sum() > 0:
        variances = np.where(freedom > 0, variances, squares.sum() / freedom.sum())
    require(
        not len(sides[0].scores) or bool(np.all(variances > 0)),
        f"the attack '{attack.name}' needs reference models whose scores of a record differ, from two models that both "
        "trained on it, or both did not",
    )
    return [float(variance) for variance in variances]


def log_ratio(
    attack: ReferenceAttack, records: ReferenceScores, log_density: Callable[[Side, float], Floats]
) -> Floats:
    """The log density (M,) of each record's score on its IN side minus that on its OUT side.

    Args:
        attack, records: as in `in_and_out`.
        log_density: (M,) of the scores on a side, from the side and its pooled variance.
    """
    sides = in_and_out(attack, records, needs_in=True)
    inside, outside = map(log_density, sides, pooled_variances(attack, *sides))
    return inside - outside


def _mean(scores: Floats, used: Bools) -> Floats:
    # The plain mean of k equal numbers differs in its last bit with k.
    least = np.where(used, scores, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    return least[:, 0] + np.where(used, scores - least, 0.0).sum(axis=1) / used.sum(axis=1)


def _shift(records: ReferenceScores, has_in: Bools, has_out: Bools) -> float:
    """IN minus OUT: the mean over the records with both; without such, the difference of the means of all with one."""
    inside, outside = records.reference_member, ~records.reference_member
    both = has_in & has_out
    if both.any():
        scores = records.reference[both]
        return float((_mean(scores, inside[both]) - _mean(scores, outside[both])).mean())
    if not has_in.any() or not has_out.any():
        return 0.0
    mean_in = _mean(records.reference[has_in], inside[has_in]).mean()
    return float(mean_in - _mean(records.reference[has_out], outside[has_out]).mean())


def _side(reference: Floats, used: Bools, observed: Bools, shift: float) -> Side:
    scores = np.where(observed[:, None], reference, reference + shift)
    return Side(scores, np.where(observed[:, None], used, True), observed)
