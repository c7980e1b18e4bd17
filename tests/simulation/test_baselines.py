"""Clusters against one model for all, local training and one model per group."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import t as student

import shoal
import shoal.toy
from shoal.simulation.baselines import GroupValues, difference, group_values, train_alone
from shoal.simulation.round_metrics import metric_values


@pytest.fixture
def grouped():
    """Two groups whose labels are swapped, each with test examples of its own clients."""
    one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])
    test = shoal.Examples([[-1.0], [1.0]] * 2, [0, 1, 1, 0], ["north", "north", "south", "south"])
    groups = ["north", "north", "south", "south"]
    _, model, local = shoal.toy.two_groups()
    return shoal.Federation.from_tensors([one, one, other, other], test=test, groups=groups), model, local


def run_of(toy, algorithm, **settings):
    federation, model, local = toy
    simulation = shoal.Simulation(federation, model, algorithm, local, rounds=3, baselines=True, **settings)
    return shoal.Run(simulation).train()


def plain_run(toy, algorithm):
    federation, model, local = toy
    return shoal.simulate(federation, model, algorithm, local, rounds=3)


def test_where_each_client_has_one_example_the_interval_is_student_s_of_paired_differences():
    draw = np.random.default_rng(0)
    ours, theirs = draw.random(30), draw.random(30)
    one, other = ({"all": GroupValues(1.0, values, np.arange(30))} for values in (ours, theirs))
    gain = ours - theirs
    interval = student.interval(0.95, 29, gain.mean(), gain.std(ddof=1) / np.sqrt(30))
    assert difference(one, other) == pytest.approx((gain.mean(), *interval))


def test_examples_of_a_client_count_as_one_where_they_are_alike():
    values, none, owners = np.repeat([1.0, 0.0, 1.0, 1.0], 10), np.zeros(40), np.repeat(np.arange(4), 10)
    many = difference({"all": GroupValues(1.0, values, owners)}, {"all": GroupValues(1.0, none, owners)})
    single = [GroupValues(1.0, each[::10], np.arange(4)) for each in (values, none)]
    assert many == pytest.approx(difference({"all": single[0]}, {"all": single[1]}))


def test_clusters_that_serve_two_opposite_groups_gain_what_one_model_cannot_learn(grouped):
    overall = run_of(grouped, shoal.IFCA(clusters=2)).summary.overall
    alone = plain_run(grouped, shoal.FedAvg()).summary.overall["accuracy.overall"]
    assert overall["baseline.fedavg.accuracy"] == alone
    assert overall["baseline.fedavg.difference"] == pytest.approx(overall["accuracy.overall"] - alone)
    assert overall["baseline.by-group.accuracy"] == overall["baseline.local.accuracy"] == 1
    assert overall["baseline.by-group.difference"] == 0
    assert overall["seconds.baselines"] > 0


def test_each_group_has_figures_of_its_own(grouped):
    result = run_of(grouped, shoal.IFCA(clusters=2))
    fedavg = plain_run(grouped, shoal.FedAvg())
    assert result.engine is not None
    assert fedavg.state is not None
    with result.engine.reopened() as engine:
        values, rows = metric_values(fedavg.state.models[0], grouped[0], engine), grouped[0].test.group
    for g, name in enumerate(grouped[0].groups):
        own = result.summary.by_group[name]
        assert own["baseline.fedavg.accuracy"] == pytest.approx(float(values[rows == g].mean()))
        assert own["baseline.fedavg.difference"] == pytest.approx(own["accuracy"] - own["baseline.fedavg.accuracy"])


def test_the_run_itself_is_the_same_with_baselines(grouped):
    with_baselines = run_of(grouped, shoal.IFCA(clusters=2))
    plain = plain_run(grouped, shoal.IFCA(clusters=2))
    assert with_baselines.state is not None
    assert plain.state is not None
    assert torch.equal(with_baselines.state.models, plain.state.models)
    ours, theirs = (
        {key: value for key, value in run.summary.overall.items() if not key.startswith(("baseline.", "seconds."))}
        for run in (with_baselines, plain)
    )
    assert ours == theirs


@pytest.mark.parametrize(("algorithm", "names"), [
    (shoal.FedAvg(), set()), (shoal.LocalOnly(), set()), (shoal.IFCA(clusters=1), set()),
    (shoal.ByGroup(), {"fedavg", "local"}), (shoal.FedProx(shoal.IFCA()), {"fedavg", "local", "by-group"}),
])  # fmt: skip
def test_only_what_has_clusters_is_compared_and_never_with_itself(grouped, algorithm, names):
    overall = run_of(grouped, algorithm).summary.overall
    assert {key.split(".")[1] for key in overall if key.startswith("baseline.")} - {"clusters"} == names


def test_a_baseline_that_a_defence_of_sums_refuses_is_left_out(grouped):
    federation, model, _ = grouped
    private = shoal.DPSGD(noise_multiplier=1.0, noise="sum", min_clients=2)
    whole = shoal.LocalSGD(steps=1, batch_size="all")
    overall = run_of((federation, model, whole), shoal.ByGroup(), defenses=[private]).summary.overall
    assert "baseline.fedavg.accuracy" in overall
    assert "baseline.local.accuracy" not in overall


def test_a_client_is_measured_on_its_own_test_examples_where_they_are_known(grouped):
    federation, model, local = grouped
    test = replace(federation.test, client=torch.tensor([0, 1, 2, 3]))
    owned = replace(federation, test=test)
    simulation = shoal.Simulation(owned, model, shoal.LocalOnly(), local, rounds=1)
    with shoal.Engine(model) as engine:
        deployed = train_alone(simulation, engine)
        values = group_values(deployed, owned, engine)["south"]
        alone = [replace(owned, test=test.take(torch.tensor([i]))) for i in (2, 3)]
        expected = [float(metric_values(deployed.models[i + 2], each, engine)) for i, each in enumerate(alone)]
    assert values.values.tolist() == expected
    assert values.owners.tolist() == [2, 3]
