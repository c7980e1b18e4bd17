"""The one-shot estimate of client-level epsilon: against numerical integrals, and for Gaussian mechanisms."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from shoal import FedAvg, NormClipping, Run, Simulation
from shoal.attacks.updates.client_canaries import (
    CanaryClients,
    _log_mass,
    canary_cosines,
    canary_directions,
    epsilon_of_normals,
    estimate_client_epsilon,
    hockey_stick,
)
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, Training

PAIRS = [((0.0, 1.0), (1.0, 1.0)), ((0.3, 0.5), (0.0, 1.0)), ((0.0, 1.0), (0.3, 0.5)), ((-2.0, 1.2), (1.0, 0.8))]


@pytest.mark.parametrize(("p", "q"), [*PAIRS, ((0.0, 1.0), (0.0, 1.0)), ((0.0, 1.0), (0.0, 1.1))])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
def test_the_hockey_stick_is_the_integral_of_the_excess(p, q, epsilon):
    grid = np.linspace(-20, 20, 800_001)
    excess = stats.norm.pdf(grid, *p) - math.exp(epsilon) * stats.norm.pdf(grid, *q)
    expected = np.maximum(0, excess).sum() * (grid[1] - grid[0])
    assert hockey_stick(epsilon, p, q) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 2.0), (3.0, 3.5), (-40.0, -39.0), (39.0, 40.0), (-9.0, math.inf)])
def test_masses_are_normal_in_both_tails_and_none_of_an_empty_interval(low, high):
    upper, lower = (stats.norm.logcdf(end) for end in ((-low, -high) if low > 0 else (high, low)))
    assert _log_mass(low, high) == pytest.approx(upper + math.log1p(-math.exp(lower - upper)))
    assert _log_mass(high, high) == -math.inf


def analytic_epsilon(sigma: float, delta: float) -> float:
    """Of the Gaussian mechanism with sensitivity 1 (Balle and Wang 2018, arXiv:1805.06530, theorem 8)."""
    cdf = stats.norm.cdf

    def excess(epsilon):
        return (
            cdf(1 / (2 * sigma) - epsilon * sigma) - np.exp(epsilon) * cdf(-1 / (2 * sigma) - epsilon * sigma) - delta
        )

    return optimize.brentq(excess, 0, 100)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_equal_deviations_are_the_gaussian_mechanism(sigma, delta):
    expected = analytic_epsilon(sigma, delta)
    # Scale and sign do not matter.
    assert epsilon_of_normals(0, 0.01, -0.01 / sigma, 0.01, delta) == pytest.approx(expected, rel=1e-6)


def test_the_worse_direction_counts():
    """Of a wide and a narrow normal distribution, the two directions differ by far."""
    epsilon = epsilon_of_normals(0, 1.0, 0, 0.5, 1e-3)
    assert hockey_stick(epsilon, (0, 1.0), (0, 0.5)) == pytest.approx(1e-3, rel=1e-6)
    assert hockey_stick(epsilon, (0, 0.5), (0, 1.0)) < 1e-3
    assert epsilon_of_normals(0, 0.5, 0, 1.0, 1e-3) == pytest.approx(epsilon)


def test_equal_distributions_reveal_nothing():
    assert epsilon_of_normals(0, 0.1, 0, 0.1, 1e-5) == 0


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_recovers_the_epsilon_of_a_gaussian_mechanism(sigma):
    """A sum of 600 unit updates with noise of deviation sigma in 30,000 dimensions. The stated tolerance, 0.5 at delta
    = 0.001, is what fitting a deviation to 600 cosines allows (3 % of it, at 3 deviations in the tail).
    """
    clients, dimension, delta = range(600), 30_000, 1e-3
    directions = canary_directions(clients, dimension, Stream(0)("canaries"))
    noise = torch.randn(dimension, generator=Stream(0)("noise").generator())
    cosines = canary_cosines(directions, torch.ones(dimension), 1 + directions.sum(dim=0) + sigma * noise)
    estimate = estimate_client_epsilon(cosines, dimension, delta=delta)
    assert estimate.value == pytest.approx(analytic_epsilon(sigma, delta), abs=0.5)
    assert estimate.low <= estimate.value <= estimate.high


def test_directions_that_nobody_sent_reveal_almost_nothing():
    moved = torch.randn(10_000, generator=Stream(1).generator())
    unseen = canary_cosines(canary_directions(range(600), 10_000, Stream(0)), torch.zeros(10_000), moved)
    assert estimate_client_epsilon(unseen, 10_000, delta=1e-3).value < 0.3


def test_the_interval_is_that_of_the_mean():
    cosines = np.array([0.02, 0.05, 0.03, 0.04])
    estimate = estimate_client_epsilon(cosines, 400, delta=1e-4, confidence=0.9)
    limits = stats.ttest_1samp(cosines, 0).confidence_interval(0.9)
    for limit, end in ((limits.low, estimate.low), (limits.high, estimate.high)):
        assert end == pytest.approx(epsilon_of_normals(0, 0.05, limit, cosines.std(ddof=1), 1e-4))


def test_directions_have_length_one_and_depend_on_the_client_alone():
    directions = canary_directions([4, 7], 500, Stream(0))
    torch.testing.assert_close(directions.norm(dim=1), torch.ones(2))
    assert torch.equal(canary_directions([7, 9, 4], 500, Stream(0))[[2, 0]], directions)


def test_canary_clients_pass_the_servers_filter_and_are_found(mlp, build):
    """A round of FedAvg in which nobody learns and two of six clients send their direction, longer than the server's
    limit: the model moves by the mean of the clipped directions.
    """
    federation = build((8,) * 6)
    clients = CanaryClients((2, 5), scale=3.0, stream=Stream(7))
    with Engine(mlp) as engine:
        training = Training(
            federation,
            FedAvg(),
            LocalSGD(steps=1, learning_rate=1e-12),
            engine,
            Stream(0),
            update_filter=NormClipping(0.6),
            malicious_clients=clients,
        )
        before = training.start()
        (after, _) = next(iter(training.rounds(before, 1)))
    directions = canary_directions(clients.ids, mlp.layout.size, Stream(7))
    moved = after.models[0] - before.models[0]
    torch.testing.assert_close(moved, 0.6 * directions.sum(dim=0) / 6, atol=1e-6, rtol=0)
    expected = torch.cosine_similarity(directions, directions.sum(dim=0), dim=1).double().numpy()
    np.testing.assert_allclose(canary_cosines(directions, before.models[0], after.models[0]), expected, atol=1e-4)
    # A canary in no cluster has none that moved.
    after = replace(after, assignment=torch.tensor([0, 0, 0, 0, 0, -1]))
    observed, _ = clients.observe(before, after, None, {"start": before.models}, training)
    assert observed["cluster"].tolist() == [0, -1]
    np.testing.assert_allclose(observed["cosine"].numpy(), [expected[0], math.nan], atol=1e-4)


def test_a_run_measures_its_canary_clients(mlp, build):
    """Directions longer than what training moves: each canary's cosine is near that of three orthogonal vectors."""
    canaries = CanaryClients((1, 2, 5), scale=50.0, stream=Stream(7))
    simulation = Simulation(
        build((8,) * 6), mlp, FedAvg(), LocalSGD(), 2, malicious_clients=canaries, round_attack=canaries
    )
    result = Run(simulation).train()
    assert result.updates["client"].tolist() == [1, 2, 5]
    assert result.updates["cosine"].tolist() == pytest.approx([3**-0.5] * 3, abs=0.1)
    epsilons = {end: result.summary.overall[f"canaries.client_epsilon{end}"] for end in ("", ".low", ".high")}
    assert 10 < epsilons[".low"] < epsilons[""] < epsilons[".high"]
    for wrong, sentence in (((1, 9), r"clients of the federation; \[9\] is not one"), ((1,), "at least 2 canary")):
        with pytest.raises(InputError, match=sentence):
            replace(simulation, round_attack=replace(canaries, ids=wrong))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: estimate_client_epsilon(np.ones(1), 10), r"at least 2 numbers \(k,\); got shape \(1,\)"),
        (lambda: estimate_client_epsilon(np.ones(3), 10), "must differ from each other"),
        (lambda: estimate_client_epsilon(np.arange(3.0), 0), "'dimension' must be at least 1; got 0"),
        (lambda: estimate_client_epsilon(np.arange(3.0), 10, delta=0.0), "'delta' must be above 0 and below 1; got 0"),
        (lambda: estimate_client_epsilon(np.arange(3.0), 10, confidence=1.0), "'confidence' must be above 0"),
        (lambda: epsilon_of_normals(0, 0, 1, 1, 1e-5), "standard deviations must be above 0; got 0"),
        (lambda: canary_cosines(torch.ones(1, 3), torch.ones(3), torch.ones(3)), "did not move"),
        (lambda: CanaryClients((), 1.0, Stream(0)), "at least one client"),
        (lambda: CanaryClients((1,), 0.0, Stream(0)), "'scale' must be a finite number above 0; got 0"),
        (lambda: CanaryClients((1,), -1.0, Stream(0)), "'scale' must be a finite number above 0; got -1"),
    ],
)
def test_wrong_canary_cosines_and_clients_are_one_sentence(wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        wrong()
