"""Scores of records by reference models that trained on the record (IN) or did not (OUT).

If a record has only IN or only OUT scores, the missing scores are the existing scores shifted by the mean difference
between IN and OUT.

The number of IN scores can reveal membership, for example if every record is in exactly half of all models. The mean of
equal scores therefore has the same bits for any number of scores.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.attacks.reference_scores import ReferenceAttack, ReferenceScores
from shoal.core.errors import require
from shoal.metrics.intervals import Bools, Floats


@dataclass(frozen=True, eq=False)
class Side:
    """The IN scores or the OUT scores of M records.

    Args:
        scores: the scores of all reference models, (M, R), shifted if the record has no scores on this side.
        mask: whether each score counts, (M, R) bool, true for at least one score per record.
        observed: whether the record has scores on this side, (M,) bool.
    """

    scores: Floats
    mask: Bools
    observed: Bools

    @property
    def count(self) -> Floats:
        """The number of scores of each record, (M,)."""
        return self.mask.sum(axis=1).astype(np.float64)

    @property
    def mean(self) -> Floats:
        """The mean score of each record, (M,)."""
        return _mean(self.scores, self.mask)

    @property
    def squares(self) -> Floats:
        """The sum of squared deviations from each record's mean, (M,)."""
        return (np.where(self.mask, self.scores - self.mean[:, None], 0.0) ** 2).sum(axis=1)

    @property
    def freedom(self) -> Floats:
        """The degrees of freedom of `squares` for each record, (M,); 0 if all scores of the record are shifted."""
        return np.where(self.observed, self.count - 1, 0.0)


def in_and_out(attack: ReferenceAttack, records: ReferenceScores, *, needs_in: bool) -> tuple[Side, Side]:
    """Split scores into an IN and an OUT side.

    Args:
        needs_in: whether the attack reads IN scores; if false, only OUT scores must exist.

    Raises:
        InputError: the reference models are fewer than ``attack.least``, or no record has a score on a side that the
            attack reads.
    """
    require(
        records.references >= attack.least,
        f"the attack '{attack.name}' needs at least {attack.least} reference models (got {records.references})",
    )
    inside, outside = records.reference_member, ~records.reference_member
    has_in, has_out = inside.sum(axis=1) > 0, outside.sum(axis=1) > 0
    needs = f"the attack '{attack.name}' needs a record that a reference model"
    require(not len(records) or bool(has_out.any()), f"{needs} did not train on (got none)")
    require(
        not len(records) or not needs_in or bool(has_in.any()),
        f"{needs} trained on (got none); use an offline attack",
    )
    shift = _shift(records, has_in, has_out)
    return _side(records.reference, inside, has_in, shift), _side(records.reference, outside, has_out, -shift)


def pooled_variances(attack: ReferenceAttack, *sides: Side) -> list[float]:
    """Return each side's variance of scores around their record's mean, pooled over all records.

    The pooled variance is the sum of squares divided by the sum of the degrees of freedom. A side where no record has
    two scores gets the other side's variance.

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
        f"the attack '{attack.name}' needs a record with two different IN scores or two different OUT scores",
    )
    return [float(variance) for variance in variances]


def log_ratio(
    attack: ReferenceAttack, records: ReferenceScores, log_density: Callable[[Side, float], Floats]
) -> Floats:
    """Return each record's IN log density minus its OUT log density, (M,).

    Args:
        log_density: the function that returns log densities (M,) for one side (IN or OUT) and the side's pooled
            variance.
    """
    sides = in_and_out(attack, records, needs_in=True)
    inside, outside = map(log_density, sides, pooled_variances(attack, *sides))
    return inside - outside


def _mean(scores: Floats, mask: Bools) -> Floats:
    # The plain mean of k equal numbers differs in its last bit with k.
    least = np.where(mask, scores, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    return least[:, 0] + np.where(mask, scores - least, 0.0).sum(axis=1) / mask.sum(axis=1)


def _shift(records: ReferenceScores, has_in: Bools, has_out: Bools) -> float:
    """Return the mean IN score minus the mean OUT score, if possible from records with both kinds of score."""
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
