"""Membership metrics, ROC curves and the Rand index against scikit-learn, brute force and numbers made by hand."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.metrics import adjusted_rand_score, balanced_accuracy_score, roc_auc_score, roc_curve

from shoal.core.errors import InputError
from shoal.metrics import (
    adjusted_rand_index,
    balanced_accuracy,
    clopper_pearson,
    gap_accuracy,
    membership_metrics,
    roc,
    roc_auc,
)
from shoal.metrics.intervals import auc_interval, balanced_accuracy_interval

CASES = ["continuous", "ties", "few members"]


def scored(name: str, seed: int = 0, examples: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Scores of members a little above those of the others, and who is a member."""
    rng = np.random.default_rng(seed)
    is_member = rng.random(examples) < (0.1 if name == "few members" else 0.5)
    scores = rng.normal(size=examples) + 0.8 * is_member
    return (np.round(2 * scores) if name == "ties" else scores), is_member


def best_tpr(scores: np.ndarray, is_member: np.ndarray, max_fpr: float, weights: np.ndarray | None = None) -> float:
    """By trying every threshold: the most members caught while at most that share of the others is."""
    weights = np.ones(len(scores)) if weights is None else weights
    rates = [0.0]
    for threshold in np.unique(scores)[::-1]:
        predictions = scores >= threshold
        if weights[predictions & ~is_member].sum() / weights[~is_member].sum() > max_fpr + 1e-9:
            break
        rates.append(weights[predictions & is_member].sum() / weights[is_member].sum())
    return max(rates)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_auc_and_balanced_accuracy_equal_scikit_learn(name: str, weighted: bool) -> None:
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
    scores, is_member = scored(name, seed, examples=8000)
    weights = np.random.default_rng(1).integers(1, 4, len(scores)).astype(float) if weighted else None
    metrics = membership_metrics(scores, is_member, weights, threshold=0.4)
    assert metrics.tpr_at_1_percent_fpr == pytest.approx(best_tpr(scores, is_member, 0.01, weights))
    assert metrics.tpr_at_01_percent_fpr == pytest.approx(best_tpr(scores, is_member, 0.001, weights))


def test_tpr_at_low_fpr_sees_thresholds_on_a_straight_piece_of_the_curve() -> None:
    """400 scores, each of one member and one non-member: the curve is the diagonal, 4 of 400 are 1 %."""
    scores, is_member = np.repeat(np.arange(400.0), 2), np.tile([True, False], 400)
    assert best_tpr(scores, is_member, 0.01) == 0.01
    assert membership_metrics(scores, is_member, threshold=100.0).tpr_at_1_percent_fpr == pytest.approx(0.01)


@pytest.mark.parametrize("factor", [0.1, 1 / 3, 7.0, 1e-3])
def test_equal_weights_of_any_size_change_no_membership_metric(factor: float) -> None:
    rng = np.random.default_rng(0)
    is_member = np.arange(7000) < 3500
    scores = rng.normal(size=7000) + is_member
    plain, weighted = (
        membership_metrics(scores, is_member, threshold=0.5),
        membership_metrics(scores, is_member, np.full(7000, factor), threshold=0.5),
    )
    assert plain.tpr_at_1_percent_fpr > plain.tpr_at_01_percent_fpr
    for key in ("accuracy", "auc", "tpr_at_1_percent_fpr", "tpr_at_01_percent_fpr"):
        assert getattr(weighted, key) == pytest.approx(getattr(plain, key)), key


def test_integer_weights_are_repetitions_in_membership_metrics() -> None:
    scores, is_member = scored("ties", examples=8000)
    weights = np.random.default_rng(3).integers(1, 5, len(scores))
    weighted = membership_metrics(scores, is_member, weights.astype(float), threshold=1.0)
    repeated = membership_metrics(np.repeat(scores, weights), np.repeat(is_member, weights), threshold=1.0)
    for key in ("accuracy", "auc", "tpr_at_1_percent_fpr", "tpr_at_01_percent_fpr"):
        assert getattr(weighted, key) == pytest.approx(getattr(repeated, key)), key
    assert weighted.auc != pytest.approx(membership_metrics(scores, is_member, threshold=1.0).auc, abs=1e-4)


@pytest.mark.parametrize("threshold", [0.0, 2.0, 3.0])
def test_constant_scores_leak_nothing(threshold: float) -> None:
    metrics = membership_metrics(np.full(3300, 2.0), np.arange(3300) < 300, threshold=threshold)
    assert (metrics.accuracy, metrics.auc, metrics.tpr_at_1_percent_fpr, metrics.tpr_at_01_percent_fpr) == (
        0.5,
        0.5,
        0,
        0,
    )


def test_a_score_at_the_threshold_is_no_member() -> None:
    metrics = membership_metrics(np.array([1.0, 1.0, 2.0]), np.array([True, False, True]), threshold=1.0)
    assert metrics.accuracy == (0.5 + 1) / 2


@pytest.mark.parametrize(("is_member", "counts"), [([True] * 3, (3, 0)), ([False] * 3, (0, 3)), ([], (0, 0))])
def test_membership_metrics_are_nan_without_members_or_non_members(
    is_member: list[bool], counts: tuple[int, int]
) -> None:
    metrics = membership_metrics(np.arange(float(len(is_member))), np.array(is_member, dtype=bool), threshold=0.5)
    figures = (metrics.accuracy, metrics.auc, metrics.tpr_at_1_percent_fpr, metrics.tpr_at_01_percent_fpr)
    assert all(math.isnan(figure) for figure in figures)
    assert (metrics.members, metrics.non_members) == counts


def test_gap_accuracy_is_the_balanced_accuracy_of_correct_predictions() -> None:
    right = np.array([True, True, True, False, True, False, False])
    is_member = np.array([True] * 4 + [False] * 3)
    assert gap_accuracy(3 / 4, 1 / 3) == pytest.approx(balanced_accuracy(right, is_member))


@pytest.mark.parametrize(("non_members", "known"), [(299, (False, False)), (300, (True, False)), (3000, (True, True))])
def test_tpr_at_low_fpr_is_nan_with_too_few_non_members(non_members: int, known: tuple[bool, bool]) -> None:
    scores = np.random.default_rng(0).normal(size=50 + non_members)
    for weights in (None, np.full(len(scores), 0.1)):
        metrics = membership_metrics(scores, np.arange(len(scores)) < 50, weights, threshold=0.0)
        for end in ("", "_low", "_high"):
            rates = (getattr(metrics, f"tpr_at_1_percent_fpr{end}"), getattr(metrics, f"tpr_at_01_percent_fpr{end}"))
            assert tuple(not math.isnan(rate) for rate in rates) == known


def test_tpr_at_low_fpr_has_the_exact_interval_of_its_members() -> None:
    """20 of 50 members are above all 3,000 non-members."""
    scores = np.concatenate([np.full(20, 2.0), np.zeros(30), np.linspace(0.1, 1, 3000)])
    metrics = membership_metrics(scores, np.arange(3050) < 50, threshold=0.0)
    low, high = clopper_pearson(20, 50)
    assert (metrics.tpr_at_1_percent_fpr, metrics.tpr_at_1_percent_fpr_low, metrics.tpr_at_1_percent_fpr_high) == (
        0.4,
        pytest.approx(low),
        pytest.approx(high),
    )
    assert metrics.tpr_at_01_percent_fpr_low == metrics.tpr_at_1_percent_fpr_low
    assert metrics.tpr_at_01_percent_fpr_high == metrics.tpr_at_1_percent_fpr_high


@pytest.mark.parametrize("weighted", [False, True])
def test_intervals_of_unpaired_examples_are_those_of_their_effective_numbers(weighted: bool) -> None:
    scores, is_member = scored("few members")
    weights = np.random.default_rng(1).uniform(0.1, 3, len(scores)) if weighted else np.ones(len(scores))
    metrics = membership_metrics(scores, is_member, weights, threshold=0.4)
    sizes = [weights[kind].sum() ** 2 / (weights[kind] ** 2).sum() for kind in (is_member, ~is_member)]
    assert (metrics.auc_low, metrics.auc_high) == pytest.approx(auc_interval(metrics.auc, *sizes))
    assert (metrics.low, metrics.high) == balanced_accuracy_interval(scores > 0.4, is_member, weights)


def test_thresholds_may_be_per_example() -> None:
    scores, is_member = np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, True, False, False])
    metrics = membership_metrics(scores, is_member, threshold=np.array([0.0, 0.0, 9.0, 3.0]))
    assert metrics.accuracy == 0.75
    assert metrics.auc == 0


@pytest.mark.parametrize(
    ("both", "member", "other", "none"),
    [(30, 8, 10, 12), (5, 25, 28, 2), (0, 1, 30, 5), (0, 30, 1, 5), (20, 0, 30, 0), (0, 30, 0, 20), (50, 0, 0, 0)],
)
def test_intervals_of_pairs_have_their_correlation(both: int, member: int, other: int, none: int) -> None:
    """Pairs where an attack is right about both examples, the member, the other, or none.

    The correlation is the phi coefficient of the table of four; 0 where an attack is right about all, or none, of a
    side.
    """
    right = np.repeat([(1, 1), (1, 0), (0, 1), (0, 0)], [both, member, other, none], axis=0).astype(bool)
    is_member = np.repeat([True, False], len(right))
    predicted, pair = np.concatenate([right[:, 0], ~right[:, 1]]), np.tile(np.arange(len(right)), 2)
    product = math.prod([both + member, other + none, both + other, member + none])
    phi = (both * none - member * other) / math.sqrt(product) if product else 0.0
    order = np.random.default_rng(0).permutation(len(pair))
    metrics = membership_metrics(predicted[order] * 1.0, is_member[order], threshold=0.5, pair=pair[order])
    expected = balanced_accuracy_interval(predicted, is_member, correlation=phi)
    assert (metrics.low, metrics.high) == pytest.approx(expected)
    # Of two unequal answers one is right, and fair coins say which.
    spread = binom.std(both + none, 0.5) / len(right)
    assert metrics.null_high == pytest.approx(0.5 + NormalDist().inv_cdf(0.95) * spread)


@pytest.mark.parametrize("examples", [2, 3, 17, 400, 5000])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("weighting", ["none", "real", "whole, some 0"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_curve_and_area_have_the_bits_of_scikit_learn(examples: int, ties: bool, weighting: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    is_member = rng.permutation(np.arange(examples) < max(1, examples // 3))
    scores = rng.normal(size=examples) + 0.5 * is_member
    scores = np.round(2 * scores) if ties else scores
    weights = {"none": None, "real": rng.uniform(0.1, 3, examples)}.get(
        weighting, rng.integers(0, 3, examples).astype(float)
    )
    if weighting == "whole, some 0":
        weights[np.flatnonzero(is_member)[0]] = weights[np.flatnonzero(~is_member)[0]] = 1.0
    fpr, tpr, _ = roc_curve(is_member, scores, sample_weight=weights, drop_intermediate=False)
    ours = roc(scores, is_member, weights)
    assert np.array_equal(ours[0], fpr)
    assert np.array_equal(ours[1], tpr)
    assert roc_auc(scores, is_member, weights) == roc_auc_score(is_member, scores, sample_weight=weights)


@pytest.mark.parametrize("is_member", [[True, True], [False, False]])
def test_auc_is_nan_without_members_or_others(is_member: list[bool]) -> None:
    assert np.isnan(roc_auc(np.array([1.0, 2.0]), np.array(is_member)))
    without = 1 if all(is_member) else 0
    rates = roc(np.array([1.0, 2.0]), np.array(is_member))
    assert np.isnan(rates[1 - without]).all()
    assert rates[without].tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_roc_refuses_scores_that_are_not_finite(value: float) -> None:
    for function in (roc, roc_auc):
        with pytest.raises(InputError, match="finite"):
            function(np.array([value, 1.0, 2.0]), np.array([True, False, True]))


def test_roc_refuses_no_examples() -> None:
    none = np.zeros(0)
    with pytest.raises(InputError, match="ROC curve needs at least one example with a positive weight"):
        roc(none, none.astype(bool))
    with pytest.raises(InputError, match="ROC curve"):
        roc_auc(np.array([1.0, 2.0]), np.array([True, False]), np.zeros(2))


@pytest.mark.parametrize("seed", range(20))
def test_the_rand_index_has_the_bits_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(1, 200))
    group, assignment = (rng.integers(0, rng.integers(1, 6), clients) for _ in range(2))
    assert adjusted_rand_index(assignment, group) == adjusted_rand_score(group, assignment)
    # Numbers of clusters are names: they may have gaps, and be others.
    assert adjusted_rand_index(assignment * 7 + 3, group) == adjusted_rand_score(group, assignment)


def test_the_rand_index_of_many_clients_does_not_overflow() -> None:
    group = np.repeat([0, 1], 2_000_000)
    assert adjusted_rand_index(1 - group, group) == 1.0
    mixed = np.tile([0, 1], 2_000_000)
    assert adjusted_rand_index(mixed, group) == adjusted_rand_score(group, mixed)
