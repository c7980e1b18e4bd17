"""Intervals against scipy and formulas by hand, and how often they hold the truth in simulations."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binomtest, rankdata, t as scipy_t
from sklearn.metrics import roc_auc_score

from shoal.metrics import (
    auc_interval,
    balanced_accuracy_interval,
    clopper_pearson,
    mean_interval,
    mean_rate_interval,
)
from shoal.metrics.intervals import auc_design_effect


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (0, 300), (3, 300), (150, 300), (300, 300)])
def test_clopper_pearson_equals_scipy(successes, trials, confidence):
    expected = binomtest(successes, trials).proportion_ci(confidence, method="exact")
    low, high = clopper_pearson(successes, trials, confidence)
    assert (low, high) == (pytest.approx(expected.low, abs=1e-12), pytest.approx(expected.high, abs=1e-12))


def test_clopper_pearson_of_arrays_and_of_no_trials():
    low, high = clopper_pearson(np.array([[0, 2], [3, 0]]), np.array([[4, 4], [3, 0]]))
    assert low.shape == (2, 2)
    assert (low[0, 1], high[0, 1]) == tuple(float(end) for end in clopper_pearson(2, 4))
    assert (low[1, 1], high[1, 1]) == (0, 1)
    assert clopper_pearson(3 + 1e-12, 3)[1] == 1, "rounding"


@pytest.mark.parametrize(("tpr", "tnr"), [(0.5, 0.5), (0.7, 0.45), (0.95, 0.9), (1.0, 0.02)])
@pytest.mark.parametrize("sizes", [(30, 200), (400, 400)])
def test_the_balanced_accuracy_interval_covers(tpr, tnr, sizes):
    """1,000 attacks with known rates: at least 95 % of the intervals contain the true balanced accuracy."""
    rng = np.random.default_rng(0)
    is_member = np.arange(sum(sizes)) < sizes[0]
    hits = 0
    for _ in range(1000):
        said = rng.random(sum(sizes)) < np.where(is_member, tpr, 1 - tnr)
        low, high = balanced_accuracy_interval(said, is_member)
        hits += low <= (tpr + tnr) / 2 <= high
    assert 0.94 <= hits / 1000 <= 0.995


def test_the_balanced_accuracy_interval_by_hand():
    """7 of 10 members and 36 of 40 non-members are right."""
    said = np.concatenate([np.arange(10) < 7, np.arange(40) < 4])
    ends = [binomtest(k, n).proportion_ci(method="exact") for k, n in ((7, 10), (36, 40))]
    below = math.sqrt((0.7 - ends[0].low) ** 2 + (0.9 - ends[1].low) ** 2) / 2
    above = math.sqrt((ends[0].high - 0.7) ** 2 + (ends[1].high - 0.9) ** 2) / 2
    low, high = balanced_accuracy_interval(said, np.arange(50) < 10)
    assert (low, high) == (pytest.approx(0.8 - below), pytest.approx(0.8 + above))


def test_the_interval_of_a_mean_of_rates_by_hand_and_covering():
    low, high = (float(end) for end in clopper_pearson(7, 10))
    assert mean_rate_interval([0.7], [10]) == (pytest.approx(low), pytest.approx(high))
    said = np.concatenate([np.arange(10) < 7, np.arange(40) < 4])
    assert mean_rate_interval([0.7, 0.9], [10, 40]) == balanced_accuracy_interval(said, np.arange(50) < 10)
    truth, sizes = np.array([0.5, 0.7, 0.9]), [15, 30, 60]
    drawn = np.random.default_rng(0).binomial(sizes, truth, (1000, 3)) / sizes
    ends = [mean_rate_interval(rates.tolist(), sizes) for rates in drawn]
    assert 0.94 <= np.mean([low <= truth.mean() <= high for low, high in ends]) <= 0.995


def test_the_interval_of_a_mean_is_student_s():
    values = np.array([0.2, 0.5, 0.9, 0.4])
    expected = scipy_t.interval(0.95, 3, values.mean(), values.std(ddof=1) / 2)
    assert mean_interval(values) == (pytest.approx(expected[0]), pytest.approx(expected[1]))
    assert np.isnan(mean_interval(values[:1])).all()
    drawn = np.random.default_rng(0).standard_normal((1000, 5))
    assert 0.93 <= np.mean([low <= 0 <= high for low, high in map(mean_interval, drawn)]) <= 0.97


def test_the_balanced_accuracy_interval_depends_on_the_effective_size():
    said, is_member = np.tile([True, False, True, False], 50), np.arange(200) < 100

    def width(copies: int, weights: np.ndarray | None = None) -> float:
        low, high = balanced_accuracy_interval(np.tile(said, copies), np.tile(is_member, copies), weights)
        return high - low

    assert width(4) == pytest.approx(width(1) / 2, rel=0.05)
    assert width(1, np.tile([1.0, 1.0, 9.0, 9.0], 50)) > 1.2 * width(1)


@pytest.mark.parametrize("distance", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("sizes", [(20, 100), (200, 200)])
def test_the_auc_interval_covers(distance, sizes):
    """1,000 attacks whose scores are normal, members' by ``distance`` higher: the true area is known."""
    members, non_members = sizes
    truth = NormalDist().cdf(distance / math.sqrt(2))
    scores = np.random.default_rng(0).normal(size=(1000, members + non_members))
    scores[:, :members] += distance
    ranks = rankdata(scores, axis=1)[:, :members].sum(axis=1)
    areas = (ranks - members * (members + 1) / 2) / (members * non_members)
    assert areas[0] == pytest.approx(roc_auc_score(np.arange(sum(sizes)) < members, scores[0]))
    intervals = [auc_interval(float(area), members, non_members) for area in areas]
    assert 0.93 <= np.mean([low <= truth <= high for low, high in intervals]) <= 0.995


@pytest.mark.parametrize("auc", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_the_auc_interval_solves_its_formula(auc):
    low, high = auc_interval(auc, 40, 25)
    z, others = NormalDist().inv_cdf(0.975), (40 + 25) / 2 - 1
    for end in {low, high} - {0.0, 1.0}:
        variance = end * (1 - end) * (1 + others * (1 - end) / (2 - end) + others * end / (1 + end)) / (40 * 25)
        assert abs(auc - end) == pytest.approx(z * math.sqrt(variance))
    assert 0 <= low <= auc <= high <= 1
    assert high - low > 0.05
    assert (low == 0, high == 1) == (auc == 0, auc == 1)
    mirrored = auc_interval(1 - auc, 40, 25)
    assert (1 - mirrored[1], 1 - mirrored[0]) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize("pairs", [2, 3, 10, 50])
def test_the_design_effect_of_pairs_is_that_of_obuchowski_by_loops(pairs):
    members, others = np.random.default_rng(pairs).normal(size=(2, pairs))
    above = [np.mean([(m > o) + (m == o) / 2 for o in others]) for m in members]
    below = [np.mean([(m > o) + (m == o) / 2 for m in members]) for o in others]
    ratio = max(np.var(np.add(above, below)) / (np.var(above) + np.var(below)), 1 / pairs)
    student = scipy_t.ppf(0.975, pairs - 1) / NormalDist().inv_cdf(0.975)
    assert auc_design_effect(members, others) == pytest.approx(ratio * student**2)
