"""Limits of attacks and bounds on epsilon against closed forms, and figures of canaries against loops over them."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binomtest, norm

import shoal
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import DPSGD, accounting
from shoal.engine import LocalSGD
from shoal.metrics import canary_rate, empirical_epsilon, epsilon_lower_bound, exposure_of_canaries, roc, tpr_at_fpr
from shoal.metrics.attack_bounds import compose_bound, gaussian_bound
from shoal.protection.ladder import mu_of


@pytest.mark.parametrize(("epsilon", "accuracy", "auc"), [(5.6, 0.73, 0.81), (1.46, 0.575, 0.605), (25.0, 0.98, 1.0)])
def test_the_limits_of_known_epsilons(epsilon, accuracy, auc):
    found = gaussian_bound(mu_of(epsilon, 1e-5))
    assert found == (pytest.approx(accuracy, abs=0.005), pytest.approx(auc, abs=0.005))


@pytest.mark.parametrize(("rate", "noise"), [(0.5, 1.0), (0.1, 0.7), (0.9, 3.0)])
def test_one_sampled_step_is_a_mixture_of_a_gaussian_mechanism_and_nothing(rate, noise):
    accuracy, auc = compose_bound(((noise, rate, 1),))
    whole = gaussian_bound(1 / noise)
    exact = rate * whole.accuracy + (1 - rate) / 2, rate * whole.auc + (1 - rate) / 2
    assert exact[0] <= accuracy < exact[0] + 0.005
    assert exact[1] <= auc < exact[1] + 0.01


def test_steps_compose_and_almost_all_examples_are_as_all():
    whole, nearly = (
        compose_bound(((4.0, 1.0, 12), (2.0, 1.0, 1))),
        compose_bound(((4.0, 1 - 1e-9, 12), (2.0, 1.0, 1))),
    )
    assert whole == gaussian_bound(1.0)
    assert nearly == (pytest.approx(whole.accuracy, abs=1e-6), pytest.approx(whole.auc, abs=1e-6))
    # Many steps on few examples approach a Gaussian mechanism (Bu et al. 2020, arXiv:1911.11607).
    mu = 0.02 * math.sqrt(5000 * (math.exp(1 / 4) - 1))
    limit = compose_bound(((2.0, 0.02, 5000),))
    assert limit.accuracy == pytest.approx(ndtr(mu / 2), abs=0.006)
    assert limit.auc == pytest.approx(ndtr(mu / math.sqrt(2)), abs=0.006)


def test_without_noise_there_is_no_limit_and_without_steps_nothing_to_attack():
    assert compose_bound(((0.0, 0.5, 3),)) == (1.0, 1.0)
    assert compose_bound(()) == compose_bound(((0.0, 0.5, 0),)) == (0.5, 0.5)
    assert compose_bound(((0.05, 0.3, 100),)) == (1.0, 1.0), "too many cells"


def test_a_shuffled_batch_holds_a_record_in_every_pass_and_a_sampled_one_by_chance():
    """5 steps of 4 of 9 examples take three of them to a pass, so two passes; three trainings."""
    counted = [(LocalSGD(steps=5, batch_size=4), torch.tensor([9]), torch.tensor([3]))]
    seen = []
    for sampling in ("shuffled", "poisson"):
        rule = replace(DPSGD(1.0, 2.0), sampling=sampling)
        accounting.client_epsilons(counted, rule, of=lambda history: seen.append(history) or 0.0)
    assert seen == [((2.0, 1.0, 6),), ((2.0, 4 / 9, 15),)]


LOCAL = shoal.LocalSGD(steps=1, batch_size="all", learning_rate=0.5)
IN_SUM = DPSGD(1.0, 4.0, noise="sum", min_clients=3)


def bounds_of_a_run(algorithm: Any, rule: DPSGD, **further: Any):
    draw, y = torch.Generator().manual_seed(0), torch.arange(6) % 2
    clients = [(torch.randn(6, 3, generator=draw), y) for _ in range(4)]
    federation = shoal.Federation.from_tensors(clients, test=clients[0], holdout=clients)
    model = shoal.create_model("logistic", shoal.VectorShape(3, 2))
    overall = shoal.simulate(federation, model, algorithm, LOCAL, rounds=2, defenses=[rule], **further).summary.overall
    return {key: value for key, value in overall.items() if key.startswith("bound.")}


def test_a_run_with_noise_in_sums_states_the_limits_of_each_view():
    found = bounds_of_a_run(shoal.PrivateMeans(clusters=2, noise_multiplier=3.0), replace(IN_SUM, min_clients=2))
    shares = {"outsider": 1.0, "client": 1 / 2, "server": 1 / 2}
    limits = {view: gaussian_bound(math.sqrt(2 / (16 * share) + 1 / 9)) for view, share in shares.items()}
    assert found == {
        f"bound.{view}.{name}": pytest.approx(getattr(limit, name))
        for view, limit in limits.items()
        for name in limit._fields
    }


def test_noise_at_clients_limits_all_views_alike():
    found = bounds_of_a_run(shoal.FedAvg(), DPSGD(1.0, 4.0))
    assert len(found) == 6
    assert {*found.values()} == {*gaussian_bound(math.sqrt(2) / 4)}


@pytest.mark.parametrize("noise", [IN_SUM, DPSGD(1.0, 4.0)], ids=["sum", "client"])
def test_no_limit_is_stated_of_views_that_see_what_epsilon_does_not_cover(noise):
    """IFCA's choice decides which released model has a client's update; counts of the red team reach the server."""
    assert bounds_of_a_run(shoal.IFCA(clusters=2, weighting="examples"), noise) == {}
    assert bounds_of_a_run(shoal.FedAvg(), replace(noise, noise_multiplier=0.0)) == {}
    counts = shoal.RedTeam(every=1, estimator="federated", attack=shoal.Gap())
    assert {key.split(".")[1] for key in bounds_of_a_run(shoal.FedAvg(), noise, red_team=counts)} == {
        "outsider",
        "client",
    }


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
    with pytest.raises(InputError, match=rf"'delta'.*got {delta:g}"):
        empirical_epsilon(np.arange(10.0), np.arange(10) < 5, Stream(0), delta=delta)


def made_up(seed: int, count: int = 90) -> tuple[np.ndarray, np.ndarray]:
    """Scores with many ties, a little higher for members."""
    draw = np.random.default_rng(seed)
    member = draw.random(count) < 0.5
    return (draw.normal(0, 2, count) + member).round(), member


@pytest.mark.parametrize("max_fpr", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_the_canary_rate_is_on_the_roc_curve(seed, max_fpr):
    scores, member = made_up(seed)
    rate = canary_rate(scores, member, max_fpr)
    assert rate.value == tpr_at_fpr(*roc(scores, member), max_fpr)


def test_limits_of_the_canary_rate_are_exact():
    scores, member = made_up(1)
    rate = canary_rate(scores, member, 0.1)
    hits = round(rate.value * member.sum())
    assert stats.binom.sf(hits - 1, member.sum(), rate.low) == pytest.approx(0.025)
    assert stats.binom.cdf(hits, member.sum(), rate.high) == pytest.approx(0.025)


def test_the_canary_rate_is_undefined_with_too_few_left_out():
    scores, member = np.arange(40.0), np.arange(40) >= 20
    assert np.isnan(canary_rate(scores, member, 0.01).value)
    assert canary_rate(scores, member, 0.05).value == 1
    assert canary_rate(scores, member).value == 1
    for nobody in (np.zeros(40, dtype=bool), np.ones(40, dtype=bool)):
        assert np.isnan(canary_rate(scores, nobody)).all()


def test_exposure_is_the_rank_among_left_out_canaries():
    scores, member = made_up(2)
    expected = []
    for i in range(len(scores)):
        others = [j for j in range(len(scores)) if not member[j] and j != i]
        above = sum(scores[j] >= scores[i] for j in others)
        expected.append((1 + above) / (1 + len(others)))
    np.testing.assert_allclose(exposure_of_canaries(scores, member), expected)


def test_canaries_without_a_score_are_not_counted():
    scores, member = made_up(3)
    more = np.concatenate([[np.nan, np.nan], scores])
    exposure = exposure_of_canaries(more, np.concatenate([[True, False], member]))
    assert np.isnan(exposure[:2]).all()
    np.testing.assert_array_equal(exposure[2:], exposure_of_canaries(scores, member))
