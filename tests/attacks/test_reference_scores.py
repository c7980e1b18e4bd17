"""The matrix of scores: its parts, leaving one reference model out, and what it refuses."""

from dataclasses import fields, replace

import numpy as np
import pytest

from shoal.attacks import Population, ReferenceScores
from shoal.core.errors import InputError


def matrix(records: int = 6, references: int = 3, population: int = 4) -> ReferenceScores:
    rng = np.random.default_rng(0)
    return ReferenceScores(
        score=rng.normal(size=records),
        member=np.arange(records) % 2 == 0,
        reference=rng.normal(size=(records, references)),
        reference_member=rng.random((records, references)) < 0.5,
        model=np.arange(records) % 2,
        population=Population(
            rng.normal(size=population), rng.normal(size=(population, references)), np.arange(population) % 2
        ),
    )


def same(one: ReferenceScores, other: ReferenceScores) -> None:
    for left, right in ((one, other), (one.population, other.population)):
        for column in fields(left):
            if column.name != "population":
                np.testing.assert_array_equal(getattr(left, column.name), getattr(right, column.name), column.name)


@pytest.mark.parametrize("rows", [np.array([4, 0]), np.arange(6) > 3])
def test_some_records_keep_their_rows_and_the_population(rows):
    full = matrix()
    some = full.take(rows)
    for name in ("score", "member", "reference", "reference_member", "model"):
        np.testing.assert_array_equal(getattr(some, name), getattr(full, name)[rows])
    assert some.population is full.population
    assert (len(some), some.references) == (2, 3)


def test_some_reference_models_are_left_of_records_and_population():
    full = matrix()
    some = full.only([2, 0])
    assert some.reference.tolist() == full.reference[:, [2, 0]].tolist()
    assert some.reference_member.tolist() == full.reference_member[:, [2, 0]].tolist()
    assert some.population.reference.tolist() == full.population.reference[:, [2, 0]].tolist()
    assert (some.score.tolist(), some.references) == (full.score.tolist(), 2)
    same(full.only(range(3)), full)
    assert full.only([]).references == 0


def test_a_reference_model_becomes_the_attacked_one_and_is_no_reference_of_itself():
    full = matrix()
    left = full.leave_one_out(1)
    assert left.score.tolist() == full.reference[:, 1].tolist()
    assert left.member.tolist() == full.reference_member[:, 1].tolist()
    assert left.reference.tolist() == full.reference[:, [0, 2]].tolist()
    assert left.reference_member.tolist() == full.reference_member[:, [0, 2]].tolist()
    assert left.population.score.tolist() == full.population.reference[:, 1].tolist()
    assert left.population.reference.tolist() == full.population.reference[:, [0, 2]].tolist()
    assert left.model.tolist() == full.model.tolist()
    assert replace(full, population=None).leave_one_out(1).population is None


def test_nothing_of_the_attacked_model_is_left_in_the_attack_on_a_reference_model():
    full = matrix()
    other = replace(
        full,
        score=-full.score,
        member=~full.member,
        population=replace(full.population, score=full.population.score + 1),
    )
    same(full.leave_one_out(0), other.leave_one_out(0))


def test_numbers_of_other_widths_are_taken_and_their_owner_s_arrays_left_alone():
    full = matrix()
    narrow = full.score.astype(np.float32)
    taken = replace(full, score=narrow, model=full.model.astype(np.int32))
    assert (taken.score.dtype, taken.model.dtype, narrow.dtype) == (np.float64, np.int64, np.float32)
    assert taken.score.tolist() == narrow.tolist()


WRONG = [
    ({"score": np.zeros((6, 1))}, "'score' must have the shape"),
    ({"member": np.zeros(5, dtype=bool)}, "'member' must have the shape"),
    ({"member": np.zeros(6)}, "'member' must hold true and false"),
    ({"reference": np.zeros((5, 3))}, "(got (5, 3))"),
    ({"reference": np.zeros(6)}, "(6, reference models)"),
    ({"reference_member": np.zeros((6, 2), dtype=bool)}, "'reference_member' must"),
    ({"model": np.zeros(6)}, "'model' must hold integers"),
    (
        {"score": np.array([0, 1, np.nan, 3, 4, 5])},
        "(got nan at index 2)",
    ),
    (
        {"reference": np.where(np.arange(18).reshape(6, 3) == 13, np.inf, 0.0)},
        "(got inf at index 4, 1)",
    ),
    (
        {"population": Population(np.zeros(2), np.zeros((2, 2)), np.zeros(2, dtype=int))},
        "'population.reference' must have 3",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG, ids=[sentence[:45] for _, sentence in WRONG])
def test_reference_scores_of_wrong_shapes_are_one_sentence(change, sentence):
    with pytest.raises(InputError) as error:
        replace(matrix(), **change)
    assert sentence in str(error.value)


@pytest.mark.parametrize("r", [-1, 3])
def test_a_reference_model_that_is_not_there_is_refused(r):
    for call in (matrix().leave_one_out, lambda r: matrix().only([0, r])):
        with pytest.raises(InputError, match=rf"0 to 2 .got {r}.$"):
            call(r)
    with pytest.raises(InputError, match="have no reference models"):
        matrix().only([]).leave_one_out(0)
