"""n-dimensional Laplace noise: its radius, its four laws, and that the server sees nothing without it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from shoal.algorithms import IFCA, FedAvg
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import LaplaceNoise, NormClipping, TrainingSetup, apply_defenses
from shoal.defenses.laplace_noise import laplace_noise
from shoal.engine import Engine, LocalSGD, Training
from shoal.models import Model

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)
LARGE = 50_186
"""Parameters of the smallest network of the papers."""


def noises(parameters, mean, count):
    return torch.stack([laplace_noise(parameters, mean, Stream(seed)) for seed in range(count)])


def cosine(one, other):
    return float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=-1))


@pytest.mark.parametrize(("parameters", "count"), [(1, 8000), (10, 4000), (LARGE, 60)])
def test_the_radius_has_mean_n_over_epsilon_and_variance_n_over_epsilon_squared(parameters, count):
    epsilon = 2.5
    radii = noises(parameters, parameters / epsilon, count).double().norm(dim=1)
    # Within five standard errors: of the mean, and of the variance of Gamma(n), whose kurtosis is 3 + 6 / n.
    error = 5 / math.sqrt(count)
    assert radii.mean() == pytest.approx(parameters / epsilon, abs=error * math.sqrt(parameters) / epsilon)
    spread = math.sqrt(2 + 6 / parameters)
    assert radii.var() == pytest.approx(parameters / epsilon**2, rel=error * spread)


def test_the_density_is_exponential_in_the_length():
    """In one dimension it is the Laplace distribution, whose distribution function is known."""
    drawn = noises(1, 1 / 2.0, 8000).flatten()
    for x in (-0.7, -0.2, 0.1, 0.5):
        below = 0.5 * math.exp(2 * x) if x < 0 else 1 - 0.5 * math.exp(-2 * x)
        assert float((drawn <= x).double().mean()) == pytest.approx(below, abs=5 * 0.5 / math.sqrt(8000))


def test_the_direction_is_uniform():
    drawn = torch.nn.functional.normalize(noises(3, 1.0, 6000).double(), dim=1)
    # On the sphere in three dimensions each coordinate is uniform in [-1, 1] (Archimedes).
    for axis in range(3):
        for x in (-0.5, 0.0, 0.5):
            assert float((drawn[:, axis] <= x).double().mean()) == pytest.approx((x + 1) / 2, abs=5 * 0.5 / 77)


def test_first_law_the_length_that_is_sent_reveals_the_update_s():
    nu = 3.0
    update = torch.randn(8, LARGE, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 9)[:, None]
    sent = LaplaceNoise(nu).filter(torch.zeros_like(update), update, torch.arange(8))
    guessed = sent.double().norm(dim=1) / math.sqrt(1 + nu**2)
    torch.testing.assert_close(guessed, update.double().norm(dim=1), rtol=0.03, atol=0.0)


@pytest.mark.parametrize("nu", [0.5, 1.0, 10.0])
def test_second_law_the_stated_leakage_is_n_over_nu_and_is_reached(nu):
    draw = torch.Generator().manual_seed(1)
    update = torch.randn(50, generator=draw, dtype=torch.float64)
    epsilon = 50 / (nu * float(update.norm()))

    def log_ratio(sent):
        """Log of how much likelier the density exp(-epsilon |x|) makes ``sent`` for the update than for none."""
        return float(epsilon * (sent.norm() - (sent - update).norm()))

    stated = LaplaceNoise(nu).leakage(50)
    assert stated == pytest.approx(50 / nu)
    assert log_ratio(2 * update) == pytest.approx(stated)
    assert all(abs(log_ratio(torch.randn(50, generator=draw).double())) <= stated for _ in range(50))
    with pytest.raises(InputError, match="'noise_multiplier' must be above 0"):
        LaplaceNoise(epsilon=1.0).leakage(50)


@pytest.mark.parametrize("nu", [0.3, 1.0, 5.0])
def test_third_law_the_cosine_is_one_over_sqrt_of_one_plus_nu_squared(nu):
    update = torch.randn(1, LARGE, generator=torch.Generator().manual_seed(2))
    sent = LaplaceNoise(nu).filter(torch.zeros_like(update), update, torch.tensor([7]))
    assert cosine(sent[0], update[0]) == pytest.approx(1 / math.sqrt(1 + nu**2), abs=5 / math.sqrt(LARGE))


@pytest.mark.parametrize("clients", [4, 16])
def test_fourth_law_m_clients_survive_while_nu_is_below_the_root_of_m(clients):
    update = torch.randn(1, LARGE, generator=torch.Generator().manual_seed(3)).expand(clients, -1)
    for nu in (0.5 * math.sqrt(clients), 2 * math.sqrt(clients)):
        sent = LaplaceNoise(nu).filter(torch.zeros_like(update), update, torch.arange(clients))
        mean = sent.mean(dim=0)
        signal_to_noise = float(update[0].norm() / (mean - update[0]).norm())
        assert signal_to_noise == pytest.approx(math.sqrt(clients) / nu, rel=0.03)
        assert cosine(mean, update[0]) == pytest.approx(1 / math.sqrt(1 + nu**2 / clients), abs=0.03)
        assert (signal_to_noise > 1) == (nu < math.sqrt(clients))


def test_one_epsilon_for_all_updates_does_not_depend_on_them():
    starts, ends = torch.zeros(2, 400), torch.stack([torch.ones(400), torch.zeros(400)])
    sent = LaplaceNoise(epsilon=20.0).filter(starts, ends, torch.tensor([5, 5]))
    torch.testing.assert_close(sent[0] - 1, sent[1], rtol=0.0, atol=1e-5)
    assert float(sent[1].norm()) == pytest.approx(400 / 20, rel=0.3)
    # The paper's scale would be none.
    assert torch.equal(LaplaceNoise(3.0).filter(starts, ends, torch.tensor([5, 5]))[1], ends[1])


def first_round(mlp, build, *defenses, **others):
    setup = apply_defenses(TrainingSetup(mlp, LOCAL), defenses)
    with Engine(setup.model, threads=1) as engine:
        filters = {"client_filter": setup.client_filter, "update_filter": setup.update_filter}
        training = Training(build(), FedAvg(), LOCAL, engine, Stream(5), record_every=1, **filters, **others)
        return training.round(training.start())


def test_the_server_sees_noisy_updates_alone(mlp, build):
    (_, plain), (after, noisy) = first_round(mlp, build), first_round(mlp, build, LaplaceNoise(2.0), NormClipping(1e3))
    truth, seen = plain.updates.updates, noisy.updates.updates
    ratio = (seen - truth).norm(dim=1) / truth.norm(dim=1)
    # 2 within five standard deviations of a Gamma(n) radius.
    assert bool(((ratio - 2).abs() < 2 * 5 / math.sqrt(truth.shape[1])).all())
    sizes = build().clients.sizes.double()
    expected = noisy.updates.models[0] + (sizes / sizes.sum()) @ seen.double()
    torch.testing.assert_close(after.models[0], expected.float(), rtol=1e-4, atol=1e-5)


class Silent:
    """A malicious client, the first, that sends the model back."""

    def __init__(self, client):
        self.clients = torch.tensor([client])

    def start(self, state, stream):
        return {}

    def train(self, request):
        return request.start.clone(), request.state.adversary


def test_a_malicious_client_adds_none(mlp, build):
    client = int(build().ids[0])
    _, report = first_round(mlp, build, LaplaceNoise(epsilon=1.0), malicious_clients=Silent(client))
    still = ~report.updates.updates.any(dim=1)
    assert report.updates.clients[still].tolist() == [client]


def test_noise_is_another_in_each_round_and_the_same_in_each_run(mlp, build):
    def played():
        with Engine(mlp, threads=1) as engine:
            still = replace(LOCAL, learning_rate=1e-9)
            noise = LaplaceNoise(epsilon=1e3)
            training = Training(build(), IFCA(2), still, engine, Stream(5), client_filter=noise, record_every=1)
            return [report.updates.updates for _, report in training.rounds(training.start(), 2)]

    (one, two), again = played(), played()
    assert torch.equal(again[0], one)
    assert float(torch.nn.functional.cosine_similarity(one, two).abs().max()) < 0.3


def test_laplace_noise_refuses_batch_norm_and_a_second_filter(mlp):
    with pytest.raises(InputError, match="another filter"):
        apply_defenses(TrainingSetup(mlp, LOCAL), (LaplaceNoise(1.0), LaplaceNoise(2.0)))
    normed = Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    with pytest.raises(InputError, match=r"without batch norm .*\(got 8 "):
        LaplaceNoise(1.0).apply(TrainingSetup(normed, LOCAL))
