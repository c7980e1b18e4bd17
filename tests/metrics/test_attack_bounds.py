"""The limit that differential privacy sets on attacks, against closed forms."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.special import ndtr

import shoal
from shoal.defenses import DPSGD, accounting
from shoal.engine import LocalSGD
from shoal.metrics.attack_bounds import composed_bound, gaussian_bound
from shoal.protection.ladder import mu_of


@pytest.mark.parametrize(("epsilon", "accuracy", "auc"), [(5.6, 0.73, 0.81), (1.46, 0.575, 0.605), (25.0, 0.98, 1.0)])
def test_the_limits_of_known_epsilons(epsilon, accuracy, auc):
    found = gaussian_bound(mu_of(epsilon, 1e-5))
    assert found == (pytest.approx(accuracy, abs=0.005), pytest.approx(auc, abs=0.005))


@pytest.mark.parametrize(("rate", "noise"), [(0.5, 1.0), (0.1, 0.7), (0.9, 3.0)])
def test_one_sampled_step_is_a_mixture_of_a_gaussian_mechanism_and_nothing(rate, noise):
    accuracy, auc = composed_bound(((noise, rate, 1),))
    whole = gaussian_bound(1 / noise)
    exact = rate * whole.accuracy + (1 - rate) / 2, rate * whole.auc + (1 - rate) / 2
    assert exact[0] <= accuracy < exact[0] + 0.005
    assert exact[1] <= auc < exact[1] + 0.01


def test_steps_compose_and_almost_all_examples_are_as_all():
    whole, nearly = (
        composed_bound(((4.0, 1.0, 12), (2.0, 1.0, 1))),
        composed_bound(((4.0, 1 - 1e-9, 12), (2.0, 1.0, 1))),
    )
    assert whole == gaussian_bound(1.0)
    assert nearly == (pytest.approx(whole.accuracy, abs=1e-6), pytest.approx(whole.auc, abs=1e-6))
    # Many steps on few examples approach a Gaussian mechanism (Bu et al. 2020, arXiv:1911.11607).
    mu = 0.02 * math.sqrt(5000 * (math.exp(1 / 4) - 1))
    limit = composed_bound(((2.0, 0.02, 5000),))
    assert limit.accuracy == pytest.approx(ndtr(mu / 2), abs=0.006)
    assert limit.auc == pytest.approx(ndtr(mu / math.sqrt(2)), abs=0.006)


def test_without_noise_there_is_no_limit_and_without_steps_nothing_to_attack():
    assert composed_bound(((0.0, 0.5, 3),)) == (1.0, 1.0)
    assert composed_bound(()) == composed_bound(((0.0, 0.5, 0),)) == (0.5, 0.5)
    assert composed_bound(((0.05, 0.3, 100),)) == (1.0, 1.0), "too many cells"


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
