"""Membership metrics against scikit-learn, brute force and numbers made by hand."""

import math

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from shoal.metrics import balanced_accuracy, gap_accuracy, membership_metrics, roc, tpr_at_fpr
from shoal.metrics.membership import balanced_accuracy_interval

CASES = ["continuous", "ties", "few members"]


def scored(name: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores of members a little above those of the others, and who is a member."""
    rng = np.random.default_rng(seed)
    is_member = rng.random(3000) < (0.1 if name == "few members" else 0.5)
    scores = rng.normal(size=3000) + 0.8 * is_member
    return (np.round(2 * scores) if name == "ties" else scores), is_member


def best_tpr(scores: np.ndarray, is_member: np.ndarray, max_fpr: float, weights: np.ndarray | None = None) -> float:
    """By trying every threshold: the most members caught while at most that share of the others is."""
    weights = np.ones(len(scores)) if weights is None else weights
    rates = [0.0]
    for threshold in np.unique(scores):
        predictions = scores >= threshold
        if weights[predictions & ~is_member].sum() / weights[~is_member].sum() <= max_fpr + 1e-9:
            rates.append(weights[predictions & is_member].sum() / weights[is_member].sum())
    return max(rates)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_auc_and_accuracy_are_scikit_learn_s(name: str, weighted: bool) -> None:
    scores, is_member = scored(name)
    weights = np.random.default_rng(1).uniform(0.1, 3, len(scores)) if weighted else None
    metrics = membership_metrics(scores, is_member, weights, threshold=0.4)
    assert metrics.auc == pytest.approx(roc_auc_score(is_member, scores, sample_weight=weights))
    assert metrics.accuracy == pytest.approx(balanced_accuracy_score(is_member, scores > 0.4, sample_weight=weights))
    assert (metrics.members, metrics.non_members) == (is_member.sum(), (~is_member).sum())
    assert 0.6 < metrics.auc < 0.8


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_tpr_at_low_fpr_is_the_best_of_all_thresholds(name: str, seed: int, weighted: bool) -> None:
    scores, is_member = scored(name, seed)
    weights = np.random.default_rng(1).integers(1, 4, len(scores)).astype(float) if weighted else None
    metrics = membership_metrics(scores, is_member, weights, threshold=0.4)
    assert metrics.tpr_at_1_percent_fpr == pytest.approx(best_tpr(scores, is_member, 0.01, weights))
    assert metrics.tpr_at_01_percent_fpr == pytest.approx(best_tpr(scores, is_member, 0.001, weights))


def test_tpr_at_low_fpr_sees_thresholds_on_a_straight_piece_of_the_curve() -> None:
    """200 scores, each of one member and one non-member: the curve is the diagonal, 2 of 200 are 1 %."""
    scores, is_member = np.repeat(np.arange(200.0), 2), np.tile([True, False], 200)
    assert best_tpr(scores, is_member, 0.01) == 0.01
    assert membership_metrics(scores, is_member, threshold=100.0).tpr_at_1_percent_fpr == pytest.approx(0.01)


@pytest.mark.parametrize("factor", [0.1, 1 / 3, 7.0, 1e-3])
def test_equal_weights_of_any_size_are_no_weights(factor: float) -> None:
    rng = np.random.default_rng(0)
    is_member = np.arange(4000) < 2000
    scores = rng.normal(size=4000) + is_member
    plain, weighted = (
        membership_metrics(scores, is_member, threshold=0.5),
        membership_metrics(scores, is_member, np.full(4000, factor), threshold=0.5),
    )
    assert plain.tpr_at_1_percent_fpr > plain.tpr_at_01_percent_fpr
    for key in ("accuracy", "auc", "tpr_at_1_percent_fpr", "tpr_at_01_percent_fpr"):
        assert getattr(weighted, key) == pytest.approx(getattr(plain, key)), key


def test_a_whole_weight_is_that_many_repetitions() -> None:
    scores, is_member = scored("ties")
    weights = np.random.default_rng(3).integers(1, 5, len(scores))
    weighted = membership_metrics(scores, is_member, weights.astype(float), threshold=1.0)
    repeated = membership_metrics(np.repeat(scores, weights), np.repeat(is_member, weights), threshold=1.0)
    for key in ("accuracy", "auc", "tpr_at_1_percent_fpr", "tpr_at_01_percent_fpr"):
        assert getattr(weighted, key) == pytest.approx(getattr(repeated, key)), key
    assert weighted.auc != pytest.approx(membership_metrics(scores, is_member, threshold=1.0).auc, abs=1e-4)


def test_scores_that_separate_perfectly_leak_everything() -> None:
    scores, is_member = np.array([5.0, 6.0, 7.0, 1.0, 2.0]), np.array([True, True, True, False, False])
    metrics = membership_metrics(np.tile(scores, 500), np.tile(is_member, 500), threshold=4.0)
    assert (metrics.accuracy, metrics.auc, metrics.tpr_at_1_percent_fpr, metrics.tpr_at_01_percent_fpr) == (1, 1, 1, 1)
    assert (metrics.members, metrics.non_members) == (1500, 1000)


def test_the_wrong_way_round_everything_is_wrong() -> None:
    scores, is_member = np.array([1.0, 2.0, 5.0, 6.0]), np.array([True, True, False, False])
    metrics = membership_metrics(np.tile(scores, 50), np.tile(is_member, 50), threshold=4.0)
    assert (metrics.accuracy, metrics.auc, metrics.tpr_at_1_percent_fpr) == (0, 0, 0)


@pytest.mark.parametrize("threshold", [0.0, 2.0, 3.0])
def test_constant_scores_leak_nothing(threshold: float) -> None:
    metrics = membership_metrics(np.full(1300, 2.0), np.arange(1300) < 300, threshold=threshold)
    assert (metrics.accuracy, metrics.auc, metrics.tpr_at_1_percent_fpr, metrics.tpr_at_01_percent_fpr) == (
        0.5,
        0.5,
        0,
        0,
    )


def test_only_a_score_above_the_threshold_says_member() -> None:
    metrics = membership_metrics(np.array([1.0, 1.0, 2.0]), np.array([True, False, True]), threshold=1.0)
    assert metrics.accuracy == (0.5 + 1) / 2


@pytest.mark.parametrize(("is_member", "counts"), [([True] * 3, (3, 0)), ([False] * 3, (0, 3)), ([], (0, 0))])
def test_without_members_or_non_members_there_is_no_figure(is_member: list[bool], counts: tuple[int, int]) -> None:
    metrics = membership_metrics(np.arange(float(len(is_member))), np.array(is_member, dtype=bool), threshold=0.5)
    figures = (metrics.accuracy, metrics.auc, metrics.tpr_at_1_percent_fpr, metrics.tpr_at_01_percent_fpr)
    assert all(math.isnan(figure) for figure in figures)
    assert (metrics.members, metrics.non_members) == counts


def test_balanced_accuracy_by_hand() -> None:
    predictions = np.array([True, True, False, False, True, False, False])
    is_member = np.array([True, True, True, False, False, False, False])
    assert balanced_accuracy(predictions, is_member) == pytest.approx((2 / 3 + 3 / 4) / 2)
    weights = np.array([1, 1, 2, 3, 1, 0, 0.0])
    assert balanced_accuracy(predictions, is_member, weights) == pytest.approx((2 / 4 + 3 / 4) / 2)


def test_balanced_accuracy_does_not_depend_on_how_many_non_members_there_are() -> None:
    predictions, is_member = np.array([True, False, True, False]), np.array([True, True, False, False])
    again = np.concatenate([np.arange(4), [2, 3], [2, 3]])
    assert balanced_accuracy(predictions[again], is_member[again]) == balanced_accuracy(predictions, is_member) == 0.5


def test_the_roc_curve_by_hand() -> None:
    """Falling scores: member, other, member, other, of which the last weighs 3."""
    scores, is_member = np.array([4.0, 3.0, 2.0, 1.0]), np.array([True, False, True, False])
    fpr, tpr = roc(scores, is_member)
    assert fpr.tolist() == [0, 0, 0.5, 0.5, 1]
    assert tpr.tolist() == [0, 0.5, 0.5, 1, 1]
    fpr, tpr = roc(scores, is_member, np.array([1, 1, 1, 3.0]))
    assert fpr.tolist() == [0, 0, 0.25, 0.25, 1]
    assert tpr.tolist() == [0, 0.5, 0.5, 1, 1]


@pytest.mark.parametrize(
    ("max_fpr", "expected"), [(0.0, 0.1), (0.001, 0.1), (0.01, 0.3), (0.0199, 0.3), (0.02, 0.7), (0.5, 0.7), (1.0, 1.0)]
)
def test_tpr_is_read_off_without_interpolation(max_fpr: float, expected: float) -> None:
    fpr, tpr = np.array([0, 0, 0.01, 0.02, 1]), np.array([0, 0.1, 0.3, 0.7, 1])
    assert tpr_at_fpr(fpr, tpr, max_fpr) == expected


@pytest.mark.parametrize(("train", "test", "expected"), [(1, 0, 1), (0.7, 0.7, 0.5), (0.9, 0.6, 0.65), (0.5, 0.7, 0.4)])
def test_the_gap_attack_is_half_the_gap_above_chance(train: float, test: float, expected: float) -> None:
    assert gap_accuracy(train, test) == pytest.approx(expected)


def test_the_gap_is_the_balanced_accuracy_of_calling_right_answers_members() -> None:
    right = np.array([True, True, True, False, True, False, False])
    is_member = np.array([True] * 4 + [False] * 3)
    assert gap_accuracy(3 / 4, 1 / 3) == pytest.approx(balanced_accuracy(right, is_member))


@pytest.mark.parametrize(("non_members", "known"), [(99, (False, False)), (100, (True, False)), (1000, (True, True))])
def test_a_rate_that_the_non_members_cannot_carry_is_no_figure(non_members: int, known: tuple[bool, bool]) -> None:
    scores = np.random.default_rng(0).normal(size=50 + non_members)
    for weights in (None, np.full(len(scores), 0.1)):
        metrics = membership_metrics(scores, np.arange(len(scores)) < 50, weights, threshold=0.0)
        rates = (metrics.tpr_at_1_percent_fpr, metrics.tpr_at_01_percent_fpr)
        assert tuple(not math.isnan(rate) for rate in rates) == known


@pytest.mark.parametrize(("tpr", "tnr"), [(0.5, 0.5), (0.7, 0.45), (0.95, 0.9), (1.0, 0.02)])
@pytest.mark.parametrize("sizes", [(30, 200), (400, 400)])
def test_the_interval_covers_as_often_as_it_says(tpr: float, tnr: float, sizes: tuple[int, int]) -> None:
    """1,000 attacks with known rates: about 95 % of the intervals contain the true balanced accuracy."""
    rng = np.random.default_rng(0)
    is_member = np.arange(sum(sizes)) < sizes[0]
    hits = 0
    for _ in range(1000):
        said = rng.random(sum(sizes)) < np.where(is_member, tpr, 1 - tnr)
        low, high = balanced_accuracy_interval(said, is_member)
        hits += low <= (tpr + tnr) / 2 <= high
    assert 0.925 <= hits / 1000 <= 0.99


def test_the_interval_narrows_with_the_sizes_and_widens_with_uneven_weights() -> None:
    said, is_member = np.tile([True, False, True, False], 50), np.arange(200) < 100

    def width(copies: int, weights: np.ndarray | None = None) -> float:
        low, high = balanced_accuracy_interval(np.tile(said, copies), np.tile(is_member, copies), weights)
        return high - low

    assert width(4) == pytest.approx(width(1) / 2, rel=0.02)
    assert width(1, np.tile([1.0, 1.0, 9.0, 9.0], 50)) > 1.2 * width(1)
