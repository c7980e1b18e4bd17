"""DP-SGD with its noise in the sum over a model's clients, and clusters from private means: laws and epsilons."""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch

import shoal
from shoal.core.errors import InputError
from shoal.defenses import DPSGD, accounting
from shoal.engine import LocalTraining, RoundPlan, averaging_weights

LOCAL = shoal.LocalSGD(steps=1, batch_size="all", learning_rate=0.5)
RULE = DPSGD(max_grad_norm=1.0, noise_multiplier=4.0, noise="sum", min_clients=3)


def federation(clients=4, size=6, seed=0):
    draw, y = torch.Generator().manual_seed(seed), torch.arange(size) % 2
    examples = [(torch.randn(size, 3, generator=draw) + y[:, None], y) for _ in range(clients)]
    return shoal.Federation.from_tensors(examples, test=examples[0])


def simulation(own=None, rule=RULE, algorithm=None, **further):
    model = shoal.create_model("logistic", shoal.VectorShape(3, 2))
    algorithm = shoal.FedAvg() if algorithm is None else algorithm
    own = federation() if own is None else own
    return shoal.Simulation(own, model, algorithm, LOCAL, rounds=2, defenses=[rule], **further)


def moves(count, rule, clients):
    """The moves of the model in one round of each of so many runs, (count, P)."""
    own, rows = federation(clients), []
    with shoal.Engine(shoal.create_model("logistic", shoal.VectorShape(3, 2)), threads=1) as engine:
        for seed in range(count):
            training = replace(simulation(own, rule).on(engine), stream=shoal.Stream(seed))
            before = replace(training.start(), models=torch.zeros(1, 8))
            rows.append(training.round(before)[0].models[0])
    return torch.stack(rows)


@pytest.mark.parametrize("clients", [3, 6])
def test_the_sum_of_as_many_clients_as_stated_has_the_stated_noise_and_of_more_no_less(clients):
    moved = moves(150, RULE, clients)
    # One step of 0.5 on the mean over 6 examples a client; 8 parameters in each of 150 draws.
    noise = moved.std(dim=0).mean() * 6 * clients / LOCAL.learning_rate
    expected = RULE.noise_multiplier * math.sqrt(clients / 3)
    assert abs(float(noise) / expected - 1) < 0.06


def test_without_noise_a_round_is_the_mean_of_clipped_gradients():
    moved = moves(1, replace(RULE, noise_multiplier=0.0), 4)
    plain = moves(1, DPSGD(max_grad_norm=1.0), 4)
    torch.testing.assert_close(moved, plain)


def test_a_model_with_fewer_clients_stays_as_it_is():
    sizes, assignment = torch.tensor([4, 4, 4, 4]), torch.tensor([0, 0, 0, 1])
    training = LocalTraining(torch.zeros(2, 8), assignment, averaging_weights(assignment, sizes, 2))
    planned = RULE.adjust_plan(RoundPlan(assignment, (training,)), sizes).trainings[0].weights
    assert planned is not None
    assert planned[0].equal(training.weights[0])
    assert not planned[1].any()
    with pytest.raises(shoal.InputError, match="'min_clients' must be at most the number of clients, 2"):
        simulation(federation(clients=2))


def test_epsilons_by_view_are_those_of_a_gaussian_mechanism():
    phi = NormalDist().cdf
    epsilons = accounting.epsilons_by_view(RULE, torch.tensor([0, 9]), choice_noise=2.0)
    for view, share in {"outsider": 1.0, "client": 2 / 3, "server": 1 / 3}.items():
        mu, value = math.sqrt(9 / (16 * share) + 1 / 4), float(epsilons[view][1])
        delta = phi(mu / 2 - value / mu) - math.exp(value) * phi(-mu / 2 - value / mu)
        assert abs(delta - RULE.delta) < 1e-8
        assert float(epsilons[view][0]) == accounting.gaussian_epsilon(0.5, RULE.delta)
    assert epsilons["outsider"][1] < epsilons["client"][1] < epsilons["server"][1]
    secure = accounting.epsilons_by_view(RULE, torch.tensor([0, 9]), choice_noise=2.0, secure=True)
    assert torch.equal(secure["server"], epsilons["client"]), "a server that knows one client's share"


def test_a_sum_of_one_hides_nothing_from_that_client_and_no_noise_nothing_from_anybody():
    alone = accounting.epsilons_by_view(replace(RULE, min_clients=1), torch.tensor([1]))
    assert alone["outsider"] == alone["server"]
    assert alone["client"].isinf().all()
    silent = accounting.epsilons_by_view(replace(RULE, noise_multiplier=0.0), torch.tensor([1]))
    assert all(values.isinf().all() for values in silent.values())


def test_the_exact_epsilon_is_below_that_by_renyi_divergences():
    exact = accounting.gaussian_epsilon(math.sqrt(20) / 4, 1e-5)
    assert exact < accounting.composed_epsilon([(4.0, 1.0, 20)], 1e-5) < 1.3 * exact


def test_a_run_states_its_epsilons_and_that_of_the_choice():
    algorithm = shoal.PrivateMeans(clusters=2, noise_multiplier=3.0)
    overall = shoal.Run(simulation(algorithm=algorithm, rule=replace(RULE, min_clients=2))).train().summary.overall
    assert overall["epsilon"] == overall["epsilon.client"]
    assert overall["epsilon.choice"] == accounting.gaussian_epsilon(1 / 3, 1e-5) < overall["epsilon.outsider"]
    assert "epsilon.choice" not in shoal.Run(simulation()).train().summary.overall


def test_the_choice_is_counted_with_noise_at_each_client_too():
    rule, counts = DPSGD(1.0, 4.0), (torch.tensor([6]), torch.tensor([2]))
    plain, chosen = (accounting.client_epsilons([(LOCAL, *counts)], rule, choice) for choice in (None, 2.0))
    assert float(chosen[0]) == accounting.composed_epsilon([(4.0, 1.0, 2), (2.0, 1.0, 1)], 1e-5) > float(plain[0])


def test_one_record_moves_a_private_mean_by_its_clipped_share():
    own = federation()
    x = own.clients.x.clone()
    x[own.clients.indices_of(2)[1]] = 0.0
    other = replace(own.clients, x=x)
    algorithm = shoal.PrivateMeans(max_norm=0.8, noise_multiplier=1.5)
    one, two = (algorithm.means(clients, own.ids, shoal.Stream(0)) for clients in (own.clients, other))
    moved = (one - two).norm(dim=1)
    assert moved[[0, 1, 3]].eq(0).all()
    assert 0 < moved[2] <= 0.8 / 6 + 1e-12
    many = torch.stack([algorithm.means(own.clients, own.ids, shoal.Stream(seed))[0] for seed in range(500)])
    assert abs(float(many.std(dim=0).mean()) / (1.5 * 0.8 / 6) - 1) < 0.08


def test_private_means_find_groups_whose_inputs_differ_and_do_not_depend_on_the_order_of_clients():
    draw = torch.Generator().manual_seed(1)
    examples = [(torch.randn(8, 3, generator=draw) * 0.1 + 2 * (i % 2), torch.arange(8) % 2) for i in range(6)]
    own = shoal.Federation.from_tensors(examples, test=examples[0])
    shuffled = own.take(torch.tensor([3, 0, 5, 1, 4, 2]))
    algorithm = shoal.PrivateMeans(max_norm=5.0, noise_multiplier=0.3)
    results = [shoal.Run(simulation(data, algorithm=algorithm, rule=DPSGD(1.0))).train() for data in (own, shuffled)]
    clusters = [dict(zip(result.clients["client"], result.clients["cluster"], strict=True)) for result in results]
    assert clusters[0] == clusters[1] == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0, 5: 1}


@pytest.mark.parametrize("local", [shoal.LocalSGD(), replace(LOCAL, steps=2), replace(LOCAL, momentum=0.5)])
def test_more_than_one_full_step_is_refused(local):
    own, model = federation(), shoal.create_model("logistic", shoal.VectorShape(3, 2))
    with pytest.raises(InputError, match="needs one plain step per round"):
        shoal.Simulation(own, model, shoal.FedAvg(), local, rounds=1, defenses=[RULE])


@pytest.mark.parametrize("defense", [shoal.NormClipping(0.1), shoal.LaplaceNoise(noise_multiplier=1.0)])
@pytest.mark.parametrize("first", [True, False])
def test_a_defence_that_changes_a_share_of_the_noise_is_refused(defense, first):
    defenses, model = (
        [defense, RULE] if first else [RULE, defense],
        shoal.create_model("logistic", shoal.VectorShape(3, 2)),
    )
    with pytest.raises(InputError, match=f"cannot be combined with {type(defense).__name__}"):
        shoal.Simulation(federation(), model, shoal.FedAvg(), LOCAL, rounds=1, defenses=defenses)


def test_training_after_the_last_round_is_refused():
    with pytest.raises(InputError, match="after the last round"):
        simulation(algorithm=shoal.FineTuning(shoal.FedAvg()))


def test_updates_that_are_no_sum_are_refused():
    with pytest.raises(InputError, match="each client sends one update"):
        shoal.Run(simulation(algorithm=shoal.Ditto())).train()
    unequal = shoal.Federation.from_tensors(
        [(torch.rand(size, 3), torch.arange(size) % 2) for size in (4, 6, 8)], test=(torch.rand(2, 3), [0, 1])
    )
    with pytest.raises(InputError, match="weights clients by their examples"):
        shoal.Run(simulation(unequal, algorithm=shoal.IFCA(clusters=2))).train()
