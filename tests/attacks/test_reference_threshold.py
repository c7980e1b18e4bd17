"""The threshold of an attack on a matrix of scores: near the best one, and set without the records that it judges."""

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
    reference_margins,
)
from shoal.attacks.reference_threshold import best_threshold
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.metrics import balanced_accuracy

STREAM = Stream(0)


def best_accuracy(scores: np.ndarray, member: np.ndarray) -> float:
    """By trying every threshold."""
    thresholds = np.concatenate([[-np.inf], np.unique(scores)])
    return max(balanced_accuracy(scores > threshold, member) for threshold in thresholds)


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
    margins = reference_margins(attack, records, STREAM)
    best = best_accuracy(attack.scores(records), records.member)
    assert best - within < balanced_accuracy(margins > 0, records.member) <= best + 1e-12


@pytest.mark.parametrize("attack", [LiRA(), DifficultyCalibration(), LossScore()], ids=repr)
def test_the_threshold_from_reference_models_does_not_know_the_attacked_model_s_members(attack):
    records = made_up(200, 6, population=10)
    other = replace(records, member=~records.member)
    assert reference_margins(attack, records, STREAM).tolist() == reference_margins(attack, other, STREAM).tolist()


def halves_are_used(attack, records) -> bool:
    """Whether there are two thresholds."""
    return len(np.unique((attack.scores(records) - reference_margins(attack, records, STREAM)).round(9))) == 2


def test_records_are_halved_where_reference_models_cannot_set_a_threshold():
    assert not halves_are_used(LiRA(), made_up(300, 4))
    assert halves_are_used(LiRA(), made_up(300, 3)), "two are too few for LiRA"
    assert not halves_are_used(DifficultyCalibration(), made_up(300, 2))
    assert halves_are_used(DifficultyCalibration(), made_up(300, 1))
    assert halves_are_used(LossScore(), made_up(300, 0))
    unseen = made_up(300, 4)
    unseen = replace(unseen, reference_member=np.zeros_like(unseen.reference_member))
    assert halves_are_used(OfflineLiRA(), unseen), "nobody is a member of a reference model"
    first = unseen.reference_member | (np.arange(4) == 0) & (np.arange(300) % 2 == 0)[:, None]
    assert halves_are_used(LiRA(), replace(unseen, reference_member=first)), "all members are of one reference model"


def test_a_half_is_judged_by_the_other_alone():
    """Whatever a record's own membership, its threshold stays; only the other half's may move."""
    records = made_up(100, 0)
    scores = LossScore().scores(records)
    thresholds = scores - reference_margins(LossScore(), records, STREAM)
    low = thresholds <= np.median(np.unique(thresholds.round(12)))
    for half in (low, ~low):
        other = scores[~half], records.member[~half]
        assert thresholds[half] == pytest.approx(best_threshold(*other))
        assert 0.3 < half.mean() < 0.7
        assert half[records.member].mean() == pytest.approx(0.5, abs=0.05), "members are halved too"


def test_halves_do_not_credit_chance():
    """40 records of nothing: the best threshold looks good on them, and is not on others."""
    honest, flattering = [], []
    for seed in range(60):
        records = made_up(40, 0, seed=seed, shift=0.0)
        margins = reference_margins(LossScore(), records, Stream(seed))
        honest.append(balanced_accuracy(margins > 0, records.member))
        flattering.append(best_accuracy(records.score, records.member))
    assert np.mean(honest) == pytest.approx(0.5, abs=0.03)
    assert np.mean(flattering) > 0.58


def test_too_few_records_to_halve_are_refused():
    records = made_up(6, 0)
    one = replace(records, member=np.arange(6) == 0)
    with pytest.raises(InputError, match=r"two members and two non-members .*; got 1 and 5$"):
        reference_margins(LossScore(), one, STREAM)


def test_permuting_records_permutes_the_margins_of_one_threshold():
    records, order = made_up(80, 6, population=20), np.random.default_rng(0).permutation(80)
    np.testing.assert_allclose(
        reference_margins(LiRA(), records.take(order), STREAM), reference_margins(LiRA(), records, STREAM)[order]
    )
