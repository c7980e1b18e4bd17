"""Wrappers that change models or trainings: early stopping, pooling, a shared body; and their directives."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.algorithms.wrappers.pooling import pool_models
from shoal.algorithms.wrappers.shared_body import head_of
from shoal.core.errors import InputError
from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, State, Training, client_updates
from shoal.models import Model

MEANS = {
    "pooling": lambda base: shoal.Pooling(base, 0.7),
    "price": lambda base: shoal.PricedChoice(base, (0.0, 5.0)),
    "size_floor": lambda base: shoal.ClusterSizeFloor(base, 3),
    "shared_body": shoal.SharedBody,
    "stop": lambda base: shoal.EarlyStopping(base, after=0),
}
FIXED = [name for name in MEANS if name != "price"]  # A price is not a fraction of another.


def same(one: State, other: State) -> bool:
    names = ("models", "assignment", "trained")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


BASES = [shoal.IFCA(2), shoal.IFCAMIR(shoal.IFCA(2, weighting="examples")), shoal.FedOpt(shoal.IFCA(2))]
# ClusterSizeFloor is wrapped by FedOpt, and not the other way round.
PAIRS = [(name, base) for name in MEANS for base in BASES if name != "size_floor" or not isinstance(base, shoal.FedOpt)]


@pytest.mark.parametrize(("name", "base"), PAIRS, ids=str)
def test_a_directive_of_0_is_the_base_bit_for_bit(play, name, base):
    steered, plain, fixed = (
        play(MEANS[name](base), risks=(0.7, 0.6), **{name: (0.0, 0.0)})[0][-1],
        play(base, risks=(0.7, 0.6))[0][-1],
        play(MEANS[name](base), risks=(0.7, 0.6))[0][-1],
    )
    assert same(steered, plain)
    assert not same(fixed, plain), "what changes nothing at full strength shows nothing at none"


@pytest.mark.parametrize("name", FIXED)
def test_a_directive_of_1_is_the_means_without_one(play, name):
    assert same(play(MEANS[name](shoal.IFCA(2)), **{name: (1.0, 1.0)})[0][-1], play(MEANS[name](shoal.IFCA(2)))[0][-1])


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("wrong", [(0.5, 1.5), (-0.1, 0.0), (float("nan"), 0.0)])
def test_other_directives_are_one_sentence(play, name, wrong):
    sentence = rf"^directive '{name}' must be [^\n]*$"
    with pytest.raises(InputError, match=sentence):
        play(MEANS[name](shoal.IFCA(2)), **{name: wrong})


@pytest.mark.parametrize("name", MEANS)
def test_steered_clusters_go_on_after_an_interruption_and_with_their_clients_permuted(mlp, build, name):
    algorithm = MEANS[name](shoal.IFCA(2))
    local, order = LocalSGD(epochs=1, batch_size=4, learning_rate=0.3), torch.tensor([3, 0, 5, 1, 4, 2])
    strength = {name: torch.tensor([0.3, 1.0], dtype=torch.float64)}

    def played(federation, stops):
        with Engine(mlp, threads=1) as engine:
            training = Training(engine.prepare(federation), algorithm, local, engine, Stream(5), participation=0.7)
            state = replace(training.start(), directives=strength)
            for upto in stops:
                state = pickle.loads(pickle.dumps([each for each, _ in training.rounds(state, upto)][-1]))
        return state

    whole = played(build(), (4,))
    assert same(played(build(), (2, 4)), whole)
    permuted = played(build().take(order), (4,))
    assert torch.equal(permuted.assignment, whole.assignment[order])
    torch.testing.assert_close(permuted.models, whole.models, rtol=1e-5, atol=1e-7)


@pytest.fixture
def trained_clients(monkeypatch):
    """How many clients trained, for each call of the engine."""
    seen, train = [], Engine.train_into

    def counted(self, finish, starts, which, shards, *rest, **others):
        seen.append(len(shards))
        return train(self, finish, starts, which, shards, *rest, **others)

    monkeypatch.setattr(Engine, "train_into", counted)
    return seen


class Counting(shoal.IFCA):
    """IFCA that counts how often each client took part."""

    def init(self, engine, federation, local, stream):
        state = super().init(engine, federation, local, stream)
        return replace(state, clients={"count": torch.zeros(len(federation), dtype=torch.int64)})

    def server_update(self, state, cohort, plan, aggregate):
        after = super().server_update(state, cohort, plan, aggregate)
        assert len(cohort) == len(plan.assignment) == len(plan.losses) == len(cohort.losses(state.models))
        count = state.clients["count"].index_add(0, cohort.clients, torch.ones_like(cohort.sizes))
        return replace(after, clients={"count": count})


def test_clients_of_a_stopped_cluster_choose_it_and_sit_the_round_out(play, trained_clients, mlp, build):
    (_, plain), (chosen,) = play(shoal.IFCA(2), rounds=1, training={"record_every": 1})
    trained_clients.clear()
    algorithm, recorded = shoal.EarlyStopping(Counting(2)), {"record_every": 1}
    (first, after), (report,) = play(algorithm, rounds=1, stop=(0.0, 1.0), training=recorded)
    trains = report.assignment == 0
    assert torch.equal(report.assignment, chosen.assignment)
    assert 0 < int(trains.sum()) < 6
    assert torch.equal(after.models[1], first.models[1])
    assert torch.equal(after.models[0], plain.models[0])
    assert trained_clients == [int(trains.sum())]
    (training,) = report.plan.trainings
    assert float(training.weights[:, ~trains].abs().sum()) == 0.0
    assert torch.equal(after.trained, torch.stack([trains, torch.zeros_like(trains)], dim=1).long())
    assert after.clients["count"].tolist() == trains.long().tolist(), "its base is told of others"
    # The server receives nothing of them, and none of their updates can be computed again.
    assert report.updates.clients.tolist() == report.cohort[trains].tolist()
    assert torch.equal(report.updates.updates, chosen.updates.updates[trains])
    with Engine(mlp) as engine:
        again = Training(build(), algorithm, LocalSGD(steps=1, batch_size=4), engine, Stream(5))
        found = [len(list(client_updates(again, first, report, client))) for client in range(6)]
    assert found == trains.long().tolist()


def test_members_of_a_stopped_model_are_those_who_trained_it_before(play):
    (*_, last), _ = play(shoal.EarlyStopping(shoal.IFCA(2), after=2), rounds=5)
    (*_, then), _ = play(shoal.IFCA(2), rounds=2)
    assert last.round == 5
    assert torch.equal(last.models, then.models)
    assert torch.equal(last.trained, then.trained)
    assert torch.equal(last.trainers(1), then.trainers(1))


@pytest.mark.parametrize(
    "base", [shoal.Scaffold(), shoal.Ditto(shoal.FedAvg()), shoal.FedOpt(), shoal.Ditto(shoal.IFCA(2))], ids=repr
)
def test_after_so_many_rounds_nothing_changes(play, trained_clients, base):
    (*_, then), _ = play(base, rounds=2)
    trained_clients.clear()
    (*_, last), _ = play(shoal.EarlyStopping(base, after=2), rounds=4)
    expected = list(trained_clients)
    trained_clients.clear()
    play(base, rounds=2)
    assert expected == trained_clients, "time was spent on stopped clusters"
    for name in ("models", "trained"):
        assert torch.equal(getattr(last, name), getattr(then, name))
    for kind in ("clients", "server"):
        one, other = getattr(last, kind), getattr(then, kind)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_personal_models_of_a_stopped_cluster_stay_and_others_move_as_ever(play):
    (first, plain), (report,) = play(shoal.Ditto(shoal.IFCA(2)), rounds=1)
    (_, after), _ = play(shoal.EarlyStopping(shoal.Ditto(shoal.IFCA(2))), rounds=1, stop=(0.0, 1.0))
    stopped = report.assignment == 1
    began, ended, free = (each.personal["ditto"].tensor() for each in (first, after, plain))
    assert torch.equal(ended[stopped], began[stopped])
    assert torch.equal(ended[~stopped], free[~stopped])
    assert not torch.equal(free[stopped], began[stopped])


def test_a_stopped_model_stays_where_its_base_would_pool_it(play):
    (first, after), _ = play(shoal.EarlyStopping(shoal.Pooling(shoal.IFCA(2), 1.0)), rounds=1, stop=(0.0, 1.0))
    assert torch.equal(after.models[1], first.models[1])
    assert not torch.equal(after.models[0], first.models[0])


def test_less_than_1_does_not_stop_and_rounds_do_not_either_where_the_server_says(play):
    plain = play(shoal.IFCA(2))[0][-1]
    for algorithm in (shoal.EarlyStopping(shoal.IFCA(2)), shoal.EarlyStopping(shoal.IFCA(2), after=0)):
        assert torch.equal(play(algorithm, stop=(0.99, 0.0))[0][-1].models, plain.models)


def by_hand(models, rho, counts):
    mean = sum(n * theta for n, theta in zip(counts, models, strict=True)) / sum(counts)
    return np.stack([(1 - r) * theta + r * mean for r, theta in zip(rho, models, strict=True)])


@pytest.mark.parametrize("directive", [None, (1.0, 0.25, 0.0)])
def test_models_move_towards_the_mean_by_clients(play, directive):
    steered = {} if directive is None else {"pooling": directive}
    (first, after), (report,) = play(shoal.Pooling(shoal.IFCA(3), 0.4), rounds=1, **steered)
    (_, plain), _ = play(shoal.IFCA(3), rounds=1)
    counts = np.bincount(report.assignment, minlength=3)
    assert len(set(counts.tolist())) > 1, "the weights of the mean must matter"
    rho = 0.4 * np.array(directive or (1, 1, 1))
    expected = by_hand(plain.models.double().numpy(), rho, counts)
    np.testing.assert_allclose(after.models.numpy(), expected, rtol=1e-6, atol=1e-8)
    assert not torch.equal(after.models, first.models)


def test_a_model_that_nobody_trained_has_no_weight(play):
    """Its directive draws it to the others, and it draws nobody to itself."""
    (_, after), _ = play(
        shoal.Pooling(shoal.EarlyStopping(shoal.IFCA(2)), 1.0), rounds=1, stop=(0.0, 1.0), pooling=(0.0, 1.0)
    )
    (_, plain), _ = play(shoal.IFCA(2), rounds=1)
    assert torch.equal(after.models[0], plain.models[0])
    assert torch.equal(after.models[1], plain.models[0])


def test_where_nobody_trained_or_there_is_one_model_nothing_changes():
    models = torch.rand(2, 3)
    whole = torch.ones(2, 1, dtype=torch.float64)
    assert pool_models(models, whole, torch.zeros(2).double()) is models
    assert pool_models(models[:1], whole[:1], torch.ones(1).double()).tolist() == models[:1].tolist()


def test_a_model_that_is_not_drawn_does_not_notice_one_that_diverged():
    models = torch.tensor([[1.0, -2.0], [torch.inf, torch.nan]])
    after = pool_models(models, torch.tensor([[0.0], [0.5]]).double(), torch.ones(2).double())
    assert torch.equal(after[0], models[0])


NETWORKS = {
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)), "2."),
    "batch norm after it": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2), nn.BatchNorm1d(2)), "1."),
    "texts": (lambda: nn.Sequential(nn.Embedding(9, 4), nn.GRU(4, 3), nn.Linear(3, 2)), "2."),
}


@pytest.mark.parametrize(("network", "head"), NETWORKS.values(), ids=NETWORKS)
def test_the_head_is_the_last_linear_layer_and_nothing_else(network, head):
    layout = Model(network).layout
    found = layout.views(head_of(layout, "last"))
    assert {name for name, each in found.items() if bool(each.any())} == {name for name in found if name[:2] == head}
    assert all(bool(each.all()) or not bool(each.any()) for each in found.values())


def test_a_shared_body_is_pooling_with_share_1_of_the_body_and_0_of_the_head(play, mlp):
    (_, shared), _ = play(shoal.SharedBody(shoal.IFCA(2)), rounds=1)
    (_, together), _ = play(shoal.Pooling(shoal.IFCA(2), 1.0), rounds=1)
    (_, apart), _ = play(shoal.IFCA(2), rounds=1)
    head = head_of(mlp.layout, "last")
    assert torch.equal(head, torch.arange(mlp.layout.size) >= 36 * 8 + 8)
    assert torch.equal(shared.models[:, ~head], together.models[:, ~head])
    assert torch.equal(shared.models[:, head], apart.models[:, head])
    assert not torch.equal(together.models, apart.models)


def test_another_layer_may_be_the_head(play, mlp):
    (*_, last), _ = play(shoal.SharedBody(shoal.IFCA(2), head="hidden"))
    views = mlp.layout.views(last.models)
    assert torch.equal(*views["output.weight"])
    assert not torch.equal(*views["hidden.weight"])


def test_networks_without_such_a_head_are_one_sentence(play):
    with pytest.raises(
        InputError, match=r"^'head' must be 'last' or a layer of the network, 'hidden' or 'output' \(got "
    ):
        play(shoal.SharedBody(head="outptu"))
    for network, sentence in (
        (lambda: nn.Linear(4, 3), "^'head' must not be"),
        (lambda: nn.Conv2d(1, 2, 3), "^'head' must be the name of a layer"),
    ):
        with pytest.raises(InputError, match=sentence):
            head_of(Model(network).layout, "last")


def test_frozen_layers_are_no_head():
    layout = Layout.from_tensors(
        {"a.weight": torch.zeros(2, 3), "b.weight": torch.zeros(2, 2)}, {"c.weight": torch.zeros(1, 2)}
    )
    assert head_of(layout, "last").tolist() == [False] * 6 + [True] * 4 + [False] * 2
