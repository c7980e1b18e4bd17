"""Stopped clusters: their models stay, nobody trains for them, and nobody becomes their member."""

from dataclasses import replace

import pytest
import torch

from shoal.algorithms import IFCA, Ditto, EarlyStopping, FedAvg, FedOpt, Pooling, Scaffold
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, Training, client_updates


@pytest.fixture
def trained_clients(monkeypatch):
    """How many clients trained, for each call of the engine."""
    seen, train = [], Engine.train_into

    def counted(self, finish, starts, which, shards, *rest, **others):
        seen.append(len(shards))
        return train(self, finish, starts, which, shards, *rest, **others)

    monkeypatch.setattr(Engine, "train_into", counted)
    return seen


def test_a_stopped_cluster_is_chosen_but_not_trained(play, trained_clients):
    plain, chosen = play(IFCA(2), rounds=1)
    assignment = chosen[0].assignment
    trained_clients.clear()
    (first, after), (report,) = play(EarlyStopping(IFCA(2)), rounds=1, stop=(0.0, 1.0))
    assert torch.equal(report.assignment, assignment)
    assert 0 < int((assignment == 1).sum()) < 6
    assert torch.equal(after.models[1], first.models[1])
    assert torch.equal(after.models[0], plain[1].models[0])
    assert trained_clients == [int((assignment == 0).sum())]
    (training,) = report.plan.trainings
    assert float(training.weights[:, assignment == 1].abs().sum()) == 0.0
    assert after.trained[:, 1].tolist() == [0] * 6
    assert torch.equal(after.trained[:, 0], (assignment == 0).long())


def test_members_of_a_stopped_model_are_those_who_trained_it_before(play):
    (*_, last), _ = play(EarlyStopping(IFCA(2), after=2), rounds=5)
    (*_, then), _ = play(IFCA(2), rounds=2)
    assert last.round == 5
    assert torch.equal(last.models, then.models)
    assert torch.equal(last.trained, then.trained)
    assert torch.equal(last.trainers(1), then.trainers(1))


@pytest.mark.parametrize("base", [Scaffold(), Ditto(FedAvg()), FedOpt(), Ditto(IFCA(2))], ids=repr)
def test_after_so_many_rounds_nothing_changes(play, trained_clients, base):
    (*_, then), _ = play(base, rounds=2)
    trained_clients.clear()
    (*_, last), _ = play(EarlyStopping(base, after=2), rounds=4)
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
    (first, plain), (report,) = play(Ditto(IFCA(2)), rounds=1)
    (_, after), _ = play(EarlyStopping(Ditto(IFCA(2))), rounds=1, stop=(0.0, 1.0))
    stopped = report.assignment == 1
    began, ended, free = (each.personal["ditto"].tensor() for each in (first, after, plain))
    assert torch.equal(ended[stopped], began[stopped])
    assert torch.equal(ended[~stopped], free[~stopped])
    assert not torch.equal(free[stopped], began[stopped])


class Counting(IFCA):
    """IFCA that counts how often each client took part."""

    def init(self, engine, federation, local, stream):
        state = super().init(engine, federation, local, stream)
        return replace(state, clients={"count": torch.zeros(len(federation), dtype=torch.int64)})

    def server_update(self, state, cohort, plan, aggregate):
        after = super().server_update(state, cohort, plan, aggregate)
        assert len(cohort) == len(plan.assignment) == len(plan.losses) == len(cohort.losses(state.models))
        count = state.clients["count"].index_add(0, cohort.clients, torch.ones_like(cohort.sizes))
        return replace(after, clients={"count": count})


def test_its_base_hears_of_those_who_trained_alone(play):
    (_, after), (report,) = play(EarlyStopping(Counting(2)), rounds=1, stop=(0.0, 1.0))
    assert after.clients["count"].tolist() == (report.assignment == 0).long().tolist()


def test_a_stopped_model_stays_where_its_base_would_pool_it(play):
    (first, after), _ = play(EarlyStopping(Pooling(IFCA(2), 1.0)), rounds=1, stop=(0.0, 1.0))
    assert torch.equal(after.models[1], first.models[1])
    assert not torch.equal(after.models[0], first.models[0])


def test_the_server_receives_nothing_of_those_who_sit_out(play):
    _, (report,) = play(EarlyStopping(IFCA(2)), rounds=1, stop=(0.0, 1.0), training={"record_every": 1})
    _, (whole,) = play(EarlyStopping(IFCA(2)), rounds=1, stop=(0.0, 0.0), training={"record_every": 1})
    sent = report.assignment == 0
    assert report.updates.clients.tolist() == report.cohort[sent].tolist()
    assert torch.equal(report.updates.updates, whole.updates.updates[sent])
    assert len(whole.updates) == 6


def test_an_update_of_who_sits_out_cannot_be_computed_once_more(mlp, build):
    with Engine(mlp) as engine:
        training = Training(build(), EarlyStopping(IFCA(2)), LocalSGD(steps=1, batch_size=4), engine, Stream(5))
        state = replace(training.start(), directives={"stop": torch.tensor([0.0, 1.0], dtype=torch.float64)})
        _, report = training.round(state)
        found = [len(list(client_updates(training, state, report, client))) for client in range(6)]
    assert found == (report.assignment == 0).long().tolist()


def test_less_than_1_does_not_stop_and_rounds_do_not_either_where_the_server_says(play):
    plain = play(IFCA(2))[0][-1]
    for algorithm in (EarlyStopping(IFCA(2)), EarlyStopping(IFCA(2), after=0)):
        assert torch.equal(play(algorithm, stop=(0.99, 0.0))[0][-1].models, plain.models)
    assert torch.equal(play(EarlyStopping(IFCA(2)))[0][-1].models, plain.models)


def test_other_numbers_are_one_sentence():
    with pytest.raises(InputError, match=r"^'after' must be at least 0; got -1$"):
        EarlyStopping(after=-1)
