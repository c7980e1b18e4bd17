"""Scores of records by the reference models that trained on them (IN), and by those that did not (OUT).

Where all reference models are on one side of a record, its other side is the same scores shifted by the mean difference
between IN and OUT. With R random halves, 2 in 2^R records have one side only.

The number of IN scores can reveal whether the attacked model trained on a record, for example if each record is in
exactly half of all models. So the mean of equal scores must not depend on their number, to the last bit.
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
        scores: (M, R), shifted for records without scores on this side.
        mask: (M, R) bool, the scores that count; at least one per record.
        observed: (M,) bool, whether the record has scores on this side.
    """

    scores: Floats
    mask: Bools
    observed: Bools

    @property
    def count(self) -> Floats:
        """(M,) numbers of scores."""
        return self.mask.sum(axis=1).astype(np.float64)

    @property
    def mean(self) -> Floats:
        """(M,) means of the scores."""
        return _mean(self.scores, self.mask)

    @property
    def squares(self) -> Floats:
        """(M,) sums of squares around each record's mean."""
        return (np.where(self.mask, self.scores - self.mean[:, None], 0.0) ** 2).sum(axis=1)

    @property
    def freedom(self) -> Floats:
        """(M,) degrees of freedom of `squares`; 0 for scores of the other side."""
        return np.where(self.observed, self.count - 1, 0.0)


def in_and_out(attack: ReferenceAttack, records: ReferenceScores, *, needs_in: bool) -> tuple[Side, Side]:
    """Split scores into an IN and an OUT side.

    Args:
        attack: named in errors; its ``least`` is the fewest reference models.
        records: scores of M records.
        needs_in: whether IN scores are read; if not, only OUT scores must exist, and the IN side may be wrong.

    Raises:
        InputError: fewer reference models than ``attack.least``, or no record with a score on a side that is read.
    """
    require(
        records.references >= attack.least,
        f"the attack '{attack.name}' needs at least {attack.least} reference models; got {records.references}",
    )
    inside, outside = records.reference_member, ~records.reference_member
    has_in, has_out = inside.sum(axis=1) > 0, outside.sum(axis=1) > 0
    needs = f"the attack '{attack.name}' needs records that some reference model"
    require(not len(records) or bool(has_out.any()), f"{needs} did not train on; all trained on all")
    require(
        not len(records) or not needs_in or bool(has_in.any()),
        f"{needs} trained on; none trained on any, which only the offline attacks allow",
    )
    shift = _shift(records, has_in, has_out)
    return _side(records.reference, inside, has_in, shift), _side(records.reference, outside, has_out, -shift)


def pooled_variances(attack: ReferenceAttack, *sides: Side) -> list[float]:
    """Return each side's variance of scores around their record's mean, pooled over records.

    It is the sum of squares over the sum of the degrees of freedom. A side where no record has two scores takes the
    variance of the other sides.

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
        f"the attack '{attack.name}' needs two reference models with different scores of a record that both trained "
        "on it, or both did not",
    )
    return [float(variance) for variance in variances]


def log_ratio(
    attack: ReferenceAttack, records: ReferenceScores, log_density: Callable[[Side, float], Floats]
) -> Floats:
    """Return the log density (M,) of each record's score on its IN side minus that on its OUT side.

    Args:
        attack, records: the arguments of `in_and_out`.
        log_density: the log densities (M,) from a side and its pooled variance.
    """
    sides = in_and_out(attack, records, needs_in=True)
    inside, outside = map(log_density, sides, pooled_variances(attack, *sides))
    return inside - outside


def _mean(scores: Floats, mask: Bools) -> Floats:
    # The plain mean of k equal numbers differs in its last bit with k.
    least = np.where(mask, scores, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    return least[:, 0] + np.where(mask, scores - least, 0.0).sum(axis=1) / mask.sum(axis=1)


def _shift(records: ReferenceScores, has_in: Bools, has_out: Bools) -> float:
    """Return IN minus OUT: the mean over records with both sides, else the difference of the sides' means."""
    inside, outside = records.reference_member, ~records.reference_member
    both = has_in & has_out
    if both.any():
        scores = records.reference[both]
        return float((_mean(scores, inside[both]) - _mean(scores, outside[both])).mean())
    if not has_in.any() or not has_out.any():
        return 0.0
    mean_in = _mean(records.reference[has_in], inside[has_in]).mean()
    return float(mean_in - _mean(records.reference[has_out], outside[has_out]).mean())


def _side(reference: Floats, mask: Bools, observed: Bools, shift: float) -> Side:
    scores = np.where(observed[:, None], reference, reference + shift)
    return Side(scores, np.where(observed[:, None], mask, True), observed)
