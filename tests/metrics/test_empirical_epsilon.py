"""The lower bound on epsilon against mechanisms whose epsilon is known."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binomtest, norm

from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.metrics import empirical_epsilon, epsilon_lower_bound

DELTA = 1e-5


def gaussian_epsilon(distance: float, delta: float) -> float:
    """Epsilon of N(0, 1) against N(distance, 1): Balle and Wang 2018, arXiv:1805.06530, theorem 8."""

    def excess(epsilon: float) -> float:
        first = norm.cdf(distance / 2 - epsilon / distance)
        return first - math.exp(epsilon) * norm.cdf(-distance / 2 - epsilon / distance) - delta

    return brentq(excess, 0, 100)


def audit(distance: float, seed: int, size: int = 4000, delta: float = DELTA) -> float:
    """Of a mechanism that adds N(0, 1) to a value that is ``distance`` higher with the member than without."""
    rng = np.random.default_rng(seed)
    is_member = np.arange(2 * size) < size
    scores = rng.normal(size=2 * size) + distance * is_member
    return empirical_epsilon(scores, is_member, Stream(seed), delta=delta)


@pytest.mark.parametrize("distance", [0.3, 1.0, 3.0])
def test_empirical_epsilon_is_below_the_true_one_in_twenty_audits(distance):
    truth = gaussian_epsilon(distance, DELTA)
    found = [audit(distance, seed) for seed in range(20)]
    assert max(found) <= truth
    assert np.median(found) > 0.05 * truth, "and the bound is not empty"


def test_a_tenth_of_the_claimed_noise_is_detected():
    claimed = gaussian_epsilon(0.4, DELTA)
    assert min(audit(4.0, seed) for seed in range(5)) > claimed


def test_empirical_epsilon_is_0_without_a_difference():
    found = [audit(0.0, seed, size=300) for seed in range(100)]
    assert min(found) == 0
    # Each exceeds the true epsilon, 0, with a probability of at most 5 %.
    assert np.mean(np.array(found) > 0) <= 0.05


def test_the_half_that_sets_the_threshold_is_not_judged():
    """200 and 400 examples without an error: the bound is that of 100 and 200."""
    is_member = np.arange(600) < 200
    half = np.arange(300) < 100
    found = empirical_epsilon(is_member.astype(float), is_member, Stream(0), delta=DELTA)
    assert found == pytest.approx(epsilon_lower_bound(half, half, delta=DELTA))
    assert found < epsilon_lower_bound(is_member, is_member, delta=DELTA) - 0.5


@pytest.mark.parametrize("seed", range(3))
def test_the_examples_that_are_judged_do_not_choose_the_threshold(seed):
    """Which half is judged shows in the examples whose one error lowers the bound."""
    member = np.arange(80) < 40

    def bound(scores):
        return empirical_epsilon(scores, member, Stream(seed), delta=0.0)

    best = bound(1.0 * member)
    with_one_error = (np.where(np.arange(80) == i, ~member, member) for i in range(80))
    judged = np.array([bound(scores.astype(float)) < best for scores in with_one_error])
    assert [int(judged[member].sum()), int(judged[~member].sum())] == [20, 20], "half of both kinds"
    # The other half sets 12.5, above all that is judged; 2.5, the other threshold that it has, would be right on these.
    scores = member * np.where(judged, 8.0, 20.0)
    scores[np.flatnonzero(~judged & ~member)[:3]] = 5.0
    assert bound(scores) == 0
    assert bound(member * np.where(judged, 20.0, 5.0)) == best


@pytest.mark.parametrize("delta", [0.0, 0.1])
def test_the_epsilon_bound_by_hand(delta):
    """60 of 100 members and 5 of 80 non-members are called members."""
    said = np.concatenate([np.arange(100) < 60, np.arange(80) < 5])
    low = binomtest(60, 100).proportion_ci(0.95, "exact").low
    high = binomtest(5, 80).proportion_ci(0.95, "exact").high
    expected = max(math.log((low - delta) / high), math.log((1 - high - delta) / (1 - low)))
    bound = epsilon_lower_bound(said, np.arange(180) < 100, delta=delta)
    assert bound == pytest.approx(expected)


def test_the_epsilon_bound_uses_both_kinds_of_error():
    """Says "no" rightly with hardly an error: the bound comes from the other direction."""
    is_member = np.arange(2000) < 1000
    rarely_no = np.concatenate([np.ones(1000, bool), np.arange(1000) >= 200])
    rarely_yes = ~rarely_no[::-1]
    bounds = [epsilon_lower_bound(said, is_member, delta=0.0) for said in (rarely_no, rarely_yes)]
    assert bounds[0] == pytest.approx(bounds[1])
    assert bounds[0] > 3


def test_the_epsilon_bound_is_0_for_a_wrong_attack():
    is_member = np.arange(100) < 50
    assert epsilon_lower_bound(~is_member, is_member, delta=0.0) == 0
    assert epsilon_lower_bound(is_member, is_member, delta=0.999) == 0
    assert empirical_epsilon(-is_member.astype(float), is_member, Stream(0), delta=0.0) == 0


@pytest.mark.parametrize("is_member", [[True] * 10, [False] * 10, [True] + [False] * 9, [True] * 9 + [False], []])
def test_empirical_epsilon_is_0_with_too_few_examples(is_member):
    scores = np.arange(float(len(is_member)))
    assert empirical_epsilon(scores, np.array(is_member, dtype=bool), Stream(0), delta=DELTA) == 0


def test_empirical_epsilon_is_0_for_equal_scores():
    assert empirical_epsilon(np.ones(100), np.arange(100) < 50, Stream(0), delta=DELTA) == 0


@pytest.mark.parametrize("delta", [1.0, -0.1])
def test_a_delta_outside_its_range_is_refused(delta):
    with pytest.raises(InputError, match=rf"'delta' must be in \[0, 1\); got {delta:g}"):
        empirical_epsilon(np.arange(10.0), np.arange(10) < 5, Stream(0), delta=delta)
