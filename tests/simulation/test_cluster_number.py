"""The number of clusters by clients' held-out losses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import shoal
import shoal.toy
from shoal.algorithms import IFCA
from shoal.core.randomness import Stream
from shoal.runs.run import run
from shoal.simulation.cluster_number import smallest_unbeaten, split_for_trials, with_cluster_number


def opposite(clients=8):
    """Half of the clients have swapped labels; six examples each, and a few of noise."""
    draw, pairs = torch.Generator().manual_seed(0), []
    for i in range(clients):
        y = torch.arange(10) % 2
        x = (2.0 * y - 1)[:, None] * (1 if i < clients // 2 else -1) + 0.3 * torch.randn(10, 1, generator=draw)
        pairs.append((x, y))
    return shoal.Federation.from_tensors(pairs, test=pairs[0], shadow=pairs[0])


TRAINING = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2)), shoal.LocalSGD(learning_rate=0.5)


def chosen(federation, algorithm, **settings):
    model, local = TRAINING
    simulation = shoal.Simulation(federation, model, algorithm, local, rounds=5, **settings)
    return shoal.Run(simulation).train()


def test_the_smallest_number_that_no_larger_one_is_shown_to_beat():
    noise = np.random.default_rng(1).normal(size=(3, 50))
    client = 10 * np.random.default_rng(2).normal(size=50)  # A difference between clients is not an error.
    assert smallest_unbeaten(np.array([[1.0], [0.0], [0.0]]) + 0.1 * noise + client) == 2
    assert (
        smallest_unbeaten(np.array([[1.0], [1.1], [0.0]]) + 0.1 * noise + client) == 3
    )  # Two may fail where three fit.
    assert smallest_unbeaten(np.tile(client, (3, 1))) == 1
    assert smallest_unbeaten(np.array([[np.nan, 1.0], [0.3, 0.3]])) == 2
    assert smallest_unbeaten(np.full((2, 2), np.inf)) == 1


def test_where_more_clusters_do_not_help_one_is_chosen_with_95_percent():
    draw = np.random.default_rng(3)
    more = sum(smallest_unbeaten(draw.normal(size=(4, 30))) > 1 for _ in range(2000))
    assert more < 0.05 * 2000 + 2 * (2000 * 0.05 * 0.95) ** 0.5


def test_a_fifth_is_held_out_once_and_a_hold_out_set_is_used_where_all_have_one(build):
    pairs = [(torch.arange(n)[:, None].float(), torch.zeros(n).long()) for n in (1, 2, 4, 10)]
    federation = shoal.Federation.from_tensors(pairs, test=pairs[0], classes=2)
    left, held_out = split_for_trials(federation, Stream(0))
    assert held_out.sizes.tolist() == [0, 1, 1, 2]
    for i in range(4):
        both = [*left.clients.indices_of(i).tolist(), *held_out.indices_of(i).tolist()]
        assert sorted(both) == sorted(federation.clients.indices_of(i).tolist())
    whole = build()
    assert split_for_trials(whole, Stream(0)) == (whole, whole.holdout)


@pytest.mark.parametrize("wrap", [lambda one: one, shoal.FedProx, shoal.OneShotStart])
def test_two_opposite_groups_are_several_clusters_and_the_run_is_that_of_the_number(wrap):
    federation = opposite()
    result = chosen(federation, wrap(IFCA("auto", max_clusters=3)))
    number = result.summary.overall["auto.clusters"]
    assert number == len(result.models) > 1
    assert {f"auto.loss.{k}" for k in (1, 2, 3)} <= set(result.summary.overall)
    by_hand = chosen(federation, with_cluster_number(wrap(IFCA("auto")), int(number)))
    assert result.state is not None
    assert by_hand.state is not None
    assert torch.equal(result.state.models, by_hand.state.models)


@pytest.mark.parametrize("seed", range(5))
def test_two_groups_are_two_clusters_and_clients_that_are_alike_share_one_model(seed):
    assert len(chosen(opposite(12), IFCA("auto"), seed=seed).models) == 2
    federation, model, local = shoal.toy.one_group()
    result = shoal.simulate(federation, model, IFCA("auto"), local, rounds=3, seed=seed)
    assert len(result.models) == 1


def test_a_rule_of_choice_over_ifca_takes_the_number_too():
    result = chosen(opposite(), shoal.IFCAMIR(IFCA("auto", max_clusters=2)), red_team=shoal.RedTeam(every=1))
    assert len(result.models) == int(result.summary.overall["auto.clusters"])


def test_the_written_configuration_has_the_number_and_resumes_with_it(toy_config, tmp_path):
    config = toy_config(algorithm={"name": "ifca", "clusters": "auto", "max_clusters": 2, "rounds": 2})
    out = run(config, tmp_path / "run")
    first = shoal.load(out)
    section = shoal.read_config(out / "config.toml").table()["algorithm"]
    number = section.get("base", section)["clusters"]
    assert number == first.summary.overall["auto.clusters"] == len(first.models)
    longer = replace(config, algorithm=replace(config.algorithm, rounds=3))
    again = shoal.load(run(longer, out, resume=True))
    assert again.summary.overall["auto.loss.1"] == first.summary.overall["auto.loss.1"]
    assert again.summary.run["rounds"] == 3


def test_a_number_is_not_chosen_where_trials_would_spend_privacy():
    with pytest.raises(shoal.InputError, match="differential privacy"):
        chosen(opposite(), IFCA("auto"), defenses=[shoal.DPSGD(noise_multiplier=1.0)])
    with pytest.raises(shoal.InputError, match="redraw"):
        IFCA("auto", redraw=shoal.Redraw())
