"""Scores of records by the attacked models and by reference models, and the protocol of attacks on these scores.

Every reference model is trained like the attacked model, on another random subset of the same records. Each record
therefore has scores by models that trained on the record (IN) and scores by models that did not (OUT).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import InputError, require
from shoal.core.formats import one_line
from shoal.data.preferences import View
from shoal.metrics.intervals import Bools, Floats, Ints

_REAL, _INTEGER, _TRUTH = "fiu", "iu", "b"
"""The codes of numpy's `dtype.kind` for real numbers, integers and booleans."""

_RECORDS = {"score": _REAL, "member": _TRUTH, "reference": _REAL, "reference_member": _TRUTH, "model": _INTEGER}
"""The fields of `ReferenceScores` with one row per record, and their allowed kinds of number."""

_TYPES = {_REAL: (np.float64, "numbers"), _INTEGER: (np.int64, "integers"), _TRUTH: (np.bool_, "true and false")}
"""The data type of each kind of number, and the kind's name in an error."""


@dataclass(frozen=True, eq=False)
class Population:
    """The attacker's own records, which no model trained on.

    Args:
        score: logit-scaled confidences log(p / (1 - p)) of an attacked model in the true class, (Z,).
        reference: logit-scaled confidences of the reference models, (Z, R).
        model: the index of the attacked model that scored each record, (Z,) int64.

    Raises:
        InputError: an array has a wrong shape, or a value is not finite.

    Example:
        >>> import numpy as np
        >>> import shoal
        >>> from shoal.attacks import RMIA
        >>> one_model = np.zeros(2, dtype=np.int64)
        >>> population = shoal.Population(score=np.zeros(2), reference=np.zeros((2, 2)), model=one_model)
        >>> trained, unknown = np.array([[True, False], [True, False]]), np.array([True, False])
        >>> score, reference = np.array([3.0, -3.0]), np.zeros((2, 2))
        >>> records = shoal.ReferenceScores(score, unknown, reference, trained, one_model, population)
        >>> RMIA().scores(records) > 0.5
        array([ True, False])
    """

    score: Floats
    reference: Floats
    model: Ints
    __repr__ = one_line

    def __post_init__(self) -> None:
        _check(self, "population.", {"score": _REAL, "reference": _REAL, "model": _INTEGER})

    def __len__(self) -> int:
        return len(self.score)


@dataclass(frozen=True, eq=False)
class ReferenceScores:
    """The matrix of scores that attacks with reference models use.

    Args:
        score: logit-scaled confidences log(p / (1 - p)) of the attacked model in each record's true class, (M,).
        member: whether the attacked model trained on each record, (M,) bool; attacks do not read this field.
        reference: logit-scaled confidences of the R reference models, (M, R).
        reference_member: whether each reference model trained on each record, (M, R) bool.
        model: the index of the attacked model that scored each record, (M,) int64.
        population: records that no model trained on.

    Raises:
        InputError: an array has a wrong shape, or a value is not finite.

    Example:
        >>> import numpy as np
        >>> import shoal
        >>> reference, trained = np.array([[2.1, 0.3], [0.2, 1.9]]), np.array([[True, False], [False, True]])
        >>> one_model = np.zeros(2, dtype=np.int64)
        >>> scores = shoal.ReferenceScores(np.array([2.0, 0.5]), np.array([True, False]), reference, trained, one_model)
        >>> other = scores.leave_one_out(1)
        >>> scores.references, other.score, other.member, other.references
        (2, array([0.3, 1.9]), array([False,  True]), 1)
    """

    score: Floats
    member: Bools
    reference: Floats
    reference_member: Bools
    model: Ints
    population: Population | None = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        _check(self, "", _RECORDS)
        if self.population is not None:
            columns = self.population.reference.shape[1]
            require(
                columns == self.references,
                f"'population.reference' must have {self.references} columns, one per reference model (got {columns})",
            )

    def __len__(self) -> int:
        return len(self.score)

    @property
    def references(self) -> int:
        """R, the number of reference models."""
        return self.reference.shape[1]

    def take(self, rows: Ints | Bools) -> "ReferenceScores":
        """Select records by index (m,) or by mask (M,), and keep the whole population."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _RECORDS})

    def only(self, references: Sequence[int] | Ints) -> "ReferenceScores":
        """Keep only the reference models at the indices ``references`` (r,), in the given order.

        Raises:
            InputError: an index is out of range.
        """
        chosen = np.asarray(references, dtype=np.int64)
        for r in chosen:
            self._require_reference(int(r))
        population = self.population
        if population is not None:
            population = replace(population, reference=population.reference[:, chosen])
        reference, reference_member = self.reference[:, chosen], self.reference_member[:, chosen]
        return replace(self, reference=reference, reference_member=reference_member, population=population)

    def leave_one_out(self, r: int) -> "ReferenceScores":
        """Return the scores with reference model r as the attacked model and the remaining models as reference models.

        Raises:
            InputError: an index is out of range.
        """
        self._require_reference(r)
        kept = self.only(np.delete(np.arange(self.references), r))
        population = kept.population
        if population is not None and self.population is not None:
            population = replace(population, score=self.population.reference[:, r])
        return replace(kept, score=self.reference[:, r], member=self.reference_member[:, r], population=population)

    def _require_reference(self, r: int) -> None:
        require(
            0 <= r < self.references,
            f"the index of a reference model must be 0 to {self.references - 1} (got {r})"
            if self.references
            else f"these scores have no reference models (got the index {r})",
        )


@runtime_checkable
class ReferenceAttack(Protocol):
    """An attack on a matrix of scores, as a frozen dataclass of hyper-parameters.

    Args:
        name: the attack's key in `audit.json`.
        title: the attack's name in a report, starting with a small letter.
        view: the attacker: an "outsider", a "client" or the "server".
        least: the fewest reference models that the attack needs; an audit with fewer reference models skips the attack.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    view: ClassVar[View]
    least: ClassVar[int]

    def scores(self, records: ReferenceScores) -> Floats:
        """Return one finite score per record, (M,); a higher score means more likely a member.

        The attack reads every field except ``records.member``.

        Raises:
            InputError: the reference models are too few, or lack the IN or OUT scores that the attack needs.
        """
        ...


def _check(value: Any, prefix: str, kinds: dict[str, str]) -> None:  # noqa: ANN401
    """Check the shapes and kinds of number of a value's fields, and convert the fields to their data types.

    The first field sets the number of records. Fields whose names begin with "reference" have one column per model.
    """
    shape: tuple[int, ...] = np.shape(getattr(value, next(iter(kinds))))
    require(len(shape) == 1, f"'{prefix}score' must have the shape (records,) (got {shape})")
    for name, kind in kinds.items():
        array: NDArray[Any] = np.asarray(getattr(value, name))
        dtype, words = _TYPES[kind]
        require(array.dtype.kind in kind, f"'{prefix}{name}' must hold {words} (got an array of {array.dtype})")
        if name == "reference":
            require(
                array.ndim == 2 and len(array) == shape[0],
                f"'{prefix}reference' must have the shape ({shape[0]}, reference models) (got {array.shape})",
            )
        else:
            allowed = np.shape(value.reference) if name == "reference_member" else shape
            require(array.shape == allowed, f"'{prefix}{name}' must have the shape {allowed} (got {array.shape})")
        broken = np.argwhere(~np.isfinite(array)) if kind == _REAL else np.empty((0, 1))
        if len(broken):
            place = tuple(map(int, broken[0]))
            raise InputError(
                f"'{prefix}{name}' must hold finite numbers (got {array[place]} at index {', '.join(map(str, place))})"
            )
        object.__setattr__(value, name, array.astype(dtype, copy=False))
