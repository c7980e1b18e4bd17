"""The one-run audit against the paper's numbers, an independent loop, and mechanisms whose epsilon is known."""

import math

import numpy as np
import pytest
from scipy import stats

from shoal.audit.canary_audit import (
    correct_guesses,
    default_guesses,
    one_run_audit,
    one_run_epsilon,
    p_value,
)
from shoal.core.errors import InputError


def tail(guesses: int, correct: int, epsilon: float) -> float:
    """P[Binomial(guesses, e^epsilon / (1 + e^epsilon)) >= correct], term by term."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    terms = (math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(max(0, correct), guesses + 1))
    return math.fsum(terms)


def theorem(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2 as it is written, with the maximum over all of 1..m."""
    largest = max((tail(r, v - i, epsilon) - tail(r, v, epsilon)) / i for i in range(1, m + 1))
    return min(1.0, tail(r, v, epsilon) + 2 * m * delta * largest)


@pytest.mark.parametrize(("m", "r", "v"), [(40, 20, 17), (40, 40, 25), (30, 10, 10), (12, 5, 1), (12, 5, 0)], ids=str)
@pytest.mark.parametrize("delta", [0.0, 1e-4, 0.01])
def test_the_probability_is_that_of_the_theorem(m, r, v, delta):
    epsilons = np.array([0.0, 0.3, 1.0, 2.5])
    expected = [theorem(m, r, v, epsilon, delta) for epsilon in epsilons.tolist()]
    np.testing.assert_allclose(p_value(m, r, v, epsilons, delta), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("inputs", "published"),
    [((1000, 100, 75, 1e-4), 0.673), ((100_000, 1510, 1439, 1e-5), 2.675)],
    ids=["appendix D", "section 7"],
)
def test_the_bounds_are_those_that_the_paper_prints(inputs, published):
    assert one_run_epsilon(*inputs) == pytest.approx(published, abs=1e-3)


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_the_bound_is_where_the_probability_crosses_its_level(delta):
    bound = one_run_epsilon(200, 100, 80, delta, 0.9)
    below, above = p_value(200, 100, 80, np.array([bound - 1e-4, bound + 1e-4]), delta)
    assert below < 0.1 < above


@pytest.mark.parametrize("revealed", [1, 5, 20])
def test_the_delta_term_holds_for_coins_that_are_revealed_now_and_then(revealed):
    """Randomized response, which with a small probability also reveals a random set of coins, so that each is revealed
    with probability delta: (epsilon, delta)-DP. All probabilities are exact.
    """
    m, epsilon, delta = 60, 1.0, 1e-3
    happens = m * delta / revealed
    for correct in range(35, 61):
        tails = [tail(m - revealed, correct - revealed, epsilon), tail(m, correct, epsilon)]
        truth = happens * tails[0] + (1 - happens) * tails[1]
        (bound,) = p_value(m, m, correct, np.array([epsilon]), delta)
        assert truth <= bound + 1e-12


def randomized_response(m: int, epsilon: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and coins: each score tells its coin with probability e^epsilon / (1 + e^epsilon), exactly epsilon-DP."""
    draw = np.random.default_rng(seed)
    included = draw.random(m) < 0.5
    answer = np.where(draw.random(m) < 1 / (1 + math.exp(-epsilon)), included, ~included)
    return answer + 0.1 * draw.random(m), included


def laplace(m: int, epsilon: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Each coin, 0 or 1, with Laplace noise of scale 1 / epsilon, which is epsilon-DP."""
    draw = np.random.default_rng(seed)
    included = draw.random(m) < 0.5
    return included + draw.laplace(0, 1 / epsilon, m), included


@pytest.mark.parametrize("mechanism", [randomized_response, laplace])
def test_a_tenth_of_the_noise_that_is_claimed_is_caught(mechanism):
    for seed in range(5):
        scores, included = mechanism(400, 10 * 0.3, seed)
        assert one_run_audit(scores, included, delta=1e-6).epsilon > 0.3


def test_no_more_bounds_are_wrong_than_the_confidence_says():
    """Of randomized response without abstentions the bound is exact: about a fifth is wrong at 80 %."""
    wrong = 0
    for seed in range(400):
        scores, included = randomized_response(60, 1.0, seed)
        wrong += one_run_audit(scores, included, confidence=0.8, guesses=[(30, 30)]).epsilon > 1.0
    assert wrong <= stats.binom.ppf(0.9999, 400, 0.2)
    scores, included = np.arange(60.0), np.arange(60) % 2 == 0
    assert one_run_audit(scores, included).epsilon == 0


def test_several_choices_of_guesses_share_the_error_probability():
    scores, included = laplace(300, 3.0, 1)
    both = one_run_audit(scores, included, confidence=0.9, guesses=[(20, 20), (60, 60)])
    alone = [one_run_audit(scores, included, confidence=0.95, guesses=[choice]) for choice in ((20, 20), (60, 60))]
    assert both.epsilon == max(audit.epsilon for audit in alone)
    assert both.confidence == 0.9


def test_equal_scores_help_nobody_whatever_the_order():
    included = np.array([True] * 30 + [False] * 30)
    assert correct_guesses(np.zeros(60), included, 30, 30) == 0
    order = np.random.default_rng(0).permutation(60)
    scores = np.repeat([2.0, 1.0, 0.0], 20)
    assert correct_guesses(scores, included, 25, 25) == correct_guesses(scores[order], included[order], 25, 25) == 40


def test_canaries_without_a_score_are_not_guessed_but_counted():
    scores, included = np.arange(40.0), np.arange(40) >= 20
    scores[10:30] = np.nan
    audit = one_run_audit(scores, included, guesses=[(20, 20)], delta=1e-5)
    assert (audit.canaries, audit.guesses, audit.correct) == (40, 40, 20)
    assert audit.epsilon == 0


@pytest.mark.parametrize("canaries", [1, 2, 3, 19, 40])
def test_default_guesses_fit_any_number_of_canaries(canaries):
    assert all(1 <= high + low <= canaries for high, low in default_guesses(canaries))
    assert one_run_audit(np.arange(canaries * 1.0), np.ones(canaries, dtype=bool)).epsilon >= 0


def test_what_cannot_be_audited_is_refused_in_one_sentence():
    scores, included = np.arange(4.0), np.array([True, False, True, False])
    for wrong, sentence in (
        ({"guesses": [(3, 2)]}, r"\(3, 2\)\)"),
        ({"guesses": [(1, 1), (0, 0)]}, r"\(0, 0\)"),
        ({"guesses": [(3, -1)]}, r"\(3, -1\)"),
        ({"guesses": []}, "got 4 and 0"),
        ({"confidence": 1.0}, "'confidence'"),
        ({"delta": 1.0}, "'delta'"),
    ):
        with pytest.raises(InputError, match=sentence):
            one_run_audit(scores, included, **wrong)
    with pytest.raises(InputError, match="same shape"):
        one_run_audit(scores, included[:2])
    with pytest.raises(InputError, match="got 5, 4 and 10"):
        one_run_epsilon(10, 4, 5)
