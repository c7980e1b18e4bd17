"""The threshold of an attack on a matrix of scores: near the best one, and set without the attacked model's members."""

from dataclasses import replace

import numpy as np
import pytest

from made_up_scores import made_up
from shoal.attacks import (
    RMIA,
    BaVarIA,
    DifficultyCalibration,
    LiRA,
    LossScore,
    OfflineLiRA,
    OfflineRMIA,
    ReferenceAttack,
    ReferenceScores,
)
from shoal.audit import leave_one_out_scores, median_threshold, reference_thresholds
from shoal.audit.attacked_records import MIN_OF_CELL as LEAST, best_threshold
from shoal.metrics import balanced_accuracy


def reference_margins(attack: ReferenceAttack, records: ReferenceScores, *cells: np.ndarray) -> np.ndarray:
    """Scores minus threshold."""
    scores, left_out = attack.scores(records), leave_one_out_scores(attack, records)
    return scores - reference_thresholds(scores, left_out, records.reference_member, *cells)


def best_accuracy(scores: np.ndarray, member: np.ndarray) -> float:
    """By trying every threshold."""
    thresholds = np.concatenate([[-np.inf], np.unique(scores)])
    upto = [
        np.searchsorted(np.sort(part), thresholds, side="right") / len(part)
        for part in (scores[member], scores[~member])
    ]
    return float((1 - upto[0] + upto[1]).max() / 2)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_threshold_is_as_good_as_any(seed):
    rng = np.random.default_rng(seed)
    scores, member = rng.integers(0, 12, 60).astype(float), rng.random(60) < 0.3
    threshold = best_threshold(scores, member)
    assert balanced_accuracy(scores > threshold, member) == pytest.approx(best_accuracy(scores, member))
    assert threshold not in scores


@pytest.mark.parametrize(("member", "expected"), [([True, False], 0.5), ([False, True], 0.5)])
def test_where_no_threshold_is_better_than_guessing_one_says_the_same_of_all(member, expected):
    scores = np.array([1.0, 1.0])
    threshold = best_threshold(scores, np.array(member))
    assert np.isfinite(threshold)
    assert balanced_accuracy(scores > threshold, np.array(member)) == expected


@pytest.mark.parametrize(
    ("attack", "within"),
    [
        (LiRA(), 0.01),
        (OfflineLiRA(), 0.01),
        (BaVarIA(), 0.01),
        (DifficultyCalibration(), 0.01),
        (LossScore(), 0.01),
        # Fractions shift with the z of each attacked model.
        (RMIA(), 0.02),
        (OfflineRMIA(), 0.02),
    ],
    ids=repr,
)
def test_leaving_one_reference_model_out_finds_nearly_the_best_threshold(attack, within):
    records = made_up(4000, 16)
    margins = reference_margins(attack, records)
    best = best_accuracy(attack.scores(records), records.member)
    assert best - within < balanced_accuracy(margins > 0, records.member) <= best + 1e-12


EVERY = [LiRA(), OfflineLiRA(), BaVarIA(), RMIA(), OfflineRMIA(), DifficultyCalibration(), LossScore()]


@pytest.mark.parametrize("references", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("attack", EVERY, ids=repr)
def test_the_threshold_does_not_know_the_attacked_model_s_members(attack, references):
    if references < attack.least:
        return
    records = made_up(240, references, population=10)
    cells = np.arange(240) % 2, np.arange(240) % 4
    other = replace(records, member=~records.member)
    assert reference_margins(attack, records, *cells).tolist() == reference_margins(attack, other, *cells).tolist()


def test_half_of_the_records_are_called_members_where_reference_models_cannot_set_a_threshold():
    def halved(attack, records):
        """Whether half of the records are called members, as no threshold of the reference models does."""
        assert (reference_margins(attack, records) > 0).mean() == pytest.approx(0.5) or leave_one_out_scores(
            attack, records
        ) is not None
        return leave_one_out_scores(attack, records) is None

    assert not halved(LiRA(), made_up(300, 4))
    assert halved(LiRA(), made_up(300, 3)), "two are too few for LiRA"
    assert halved(RMIA(), made_up(300, 2))
    assert not halved(DifficultyCalibration(), made_up(300, 2))
    assert halved(DifficultyCalibration(), made_up(300, 1))
    assert not halved(LossScore(), made_up(300, 1))
    assert halved(LossScore(), made_up(300, 0))
    unseen = made_up(300, 4)
    unseen = replace(unseen, reference_member=np.zeros_like(unseen.reference_member))
    assert halved(OfflineLiRA(), unseen), "nobody is a member of a reference model"
    first = unseen.reference_member | (np.arange(4) == 0) & (np.arange(300) % 2 == 0)[:, None]
    assert halved(LiRA(), replace(unseen, reference_member=first)), "all members are of one reference model"


def test_the_median_counts_ties_as_one():
    assert median_threshold(np.array([9.0, 9, 9, 9, 9, 8, 7])) == 8.5
    assert median_threshold(np.array([1.0, 2, 3, 4])) == 2.5
    assert np.isfinite(median_threshold(np.ones(5)))


@pytest.mark.parametrize("references", [0, 4])
def test_a_minority_whose_scores_lie_elsewhere_has_a_threshold_of_its_own(references):
    """One threshold for all says the same of all its records: an accuracy of 0.5, whatever their order says."""
    records, minority = made_up(2000, references, shift=3.0), np.arange(2000) % 8 == 0
    moved = np.where(minority, 30.0, 0.0)
    records = replace(records, score=records.score + moved, reference=records.reference + moved[:, None])
    pooled, alone = (
        balanced_accuracy(reference_margins(LossScore(), records, *cells)[minority] > 0, records.member[minority])
        for cells in ((), (minority.astype(np.int64),))
    )
    assert (pooled, alone) == (0.5, pytest.approx(0.80, abs=0.05))


def test_a_cell_of_few_scores_has_the_threshold_of_all():
    records = made_up(1000, 1)
    few, enough = (np.arange(1000) < count for count in (LEAST, 5 * LEAST))
    left_out = leave_one_out_scores(LossScore(), records)
    alone = reference_thresholds(records.score, left_out, records.reference_member)
    assert len(set(alone.tolist())) == 1
    assert (
        reference_thresholds(records.score, left_out, records.reference_member, few.astype(int))[few] == alone[few]
    ).all()
    split = reference_thresholds(records.score, left_out, records.reference_member, enough.astype(int))
    expected = best_threshold(left_out[enough].ravel(), records.reference_member[enough].ravel())
    assert set(split[enough].tolist()) == {expected} != set(alone.tolist())
