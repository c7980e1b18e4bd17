"""One-shot clustering, FeSEM and the starts that find groups: whose models they average, and whom they group."""

from dataclasses import replace

import pytest
import torch

from relabelled import FULL, LINEAR, TWO, ari, relabelled, trained
from shoal.algorithms import (
    IFCA,
    Ditto,
    FedAvg,
    FedAvgStart,
    FedOpt,
    FeSEM,
    OneShotClustering,
    OneShotStart,
)  # fmt: skip
from shoal.algorithms.wrappers.starts import noisy_copies
from shoal.core.randomness import Stream
from shoal.engine import Engine, Training, client_updates

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
ALL = torch.arange(len(TWO))


def sent(federation, algorithm, state, report) -> torch.Tensor:
    """(n, P), the models that clients sent in the round after ``state``."""
    with Engine(LINEAR, threads=1) as engine:
        training = Training(federation, algorithm, FULL, engine, Stream(3))
        starts = list(report.plan.trainings)
        ends = []
        for i in range(len(federation)):
            update = next(client_updates(training, state, report, i))[2]
            ends.append(starts[0].initial_params[starts[0].init_index[i]] + update)
    return torch.stack(ends)


def first_round(algorithm):
    federation = relabelled(TWO)
    with Engine(LINEAR, threads=1) as engine:
        training = Training(federation, algorithm, FULL, engine, Stream(3))
        before = training.start()
        after, report = training.round(before)
    return before, after, sent(federation, algorithm, before, report)


@pytest.mark.parametrize("algorithm", [OneShotClustering(), FeSEM(), OneShotStart()], ids=repr)
def test_the_first_round_groups_what_clients_trained_from_one_model(algorithm):
    _, after, ends = first_round(algorithm)
    assert ari(after, TWO) == 1
    for k in range(2):
        mine = after.assignment == k
        torch.testing.assert_close(after.models[k], ends[mine].mean(dim=0), **CLOSE)
        assert ((after.trained[:, k] == 1) == mine).all(), "others count as members of the model"


@pytest.mark.parametrize("algorithm", [OneShotClustering(), FeSEM()], ids=repr)
def test_newcomers_go_to_the_nearest_and_move_nothing(algorithm):
    federation = relabelled(TWO)
    settled = trained(federation, algorithm, 4)[-1]
    (name,) = settled.clients
    new = dict(settled.clients)
    new[name] = torch.where(ALL == 3, -1, settled.clients[name])
    state = replace(settled, clients=new, trained=settled.trained * (ALL != 3)[:, None])
    with Engine(LINEAR, threads=1) as engine:
        training = Training(federation, algorithm, FULL, engine, Stream(3))
        after, report = training.round(state)
    _, newcomers = report.plan.trainings
    assert newcomers.participates.tolist() == (ALL == 3).tolist()
    assert not bool(newcomers.weights.any())
    assert torch.equal(after.clients[name], settled.clients[name])
    assert after.assignment[3] == settled.assignment[3]
    assert int(after.trained[3].max()) == 0


def test_absent_clients_find_their_clusters():
    for algorithm in (OneShotClustering(), FeSEM()):
        *_, state = trained(relabelled(TWO), algorithm, 8, participation=0.7)
        assert ari(state, TWO) == 1


def test_a_center_is_the_mean_of_those_that_are_nearest_to_it():
    """Client 1 is put into the other group's cluster, and leaves it when what it trained says so."""
    federation, algorithm = relabelled(TWO), FeSEM()
    state = trained(federation, algorithm, 1)[-1]
    wrong = 1 - state.clients["fesem.cluster"][1]
    clusters = torch.where(ALL == 1, wrong, state.clients["fesem.cluster"])
    # Centers that are close together, so that a round of training leads from one to the other.
    near = state.models.mean(dim=0) + 0.05 * (state.models - state.models.mean(dim=0))
    state = replace(state, models=near, clients={"fesem.cluster": clusters})
    with Engine(LINEAR, threads=1) as engine:
        training = Training(federation, algorithm, FULL, engine, Stream(3))
        after, report = training.round(state)
    ends = sent(federation, algorithm, state, report)
    nearest = (ends[:, None] - near[None]).square().sum(dim=2).argmin(dim=1)
    assert torch.equal(after.assignment, nearest)
    assert nearest[1] != wrong
    for k in range(2):
        torch.testing.assert_close(after.models[k], ends[nearest == k].mean(dim=0), **CLOSE)


def test_before_its_copies_the_start_is_fedavg_bit_for_bit(play):
    states, _ = play(FedAvgStart(IFCA(3), 2), rounds=3)
    average, _ = play(FedAvg(), rounds=2)
    assert torch.equal(states[1].models[0], average[1].models[0])
    copies = states[2].models - average[2].models[0]
    assert not torch.equal(copies[0], copies[1])
    assert float(copies.norm(dim=1).max()) < 0.3 * float(average[2].models[0].norm())
    assert (states[2].trained == 2).all(), "all clients taught the one model, and so each copy"
    assert [int(each.server["FedAvgStart.left"]) for each in states] == [2, 1, 0, 0]


def test_noise_is_a_share_of_each_tensor_s_root_mean_square(mlp):
    model = mlp.init(Stream(0)) * 100
    copies = noisy_copies(model, 200, 0.1, mlp.layout, Stream(1))
    for slot in mlp.layout.slots:
        own = slice(slot.start, slot.start + slot.size)
        rms = model[own].square().mean().sqrt()
        assert float((copies - model)[:, own].std()) == pytest.approx(0.1 * float(rms), rel=0.1)
    assert torch.equal(noisy_copies(model, 2, 0.1, mlp.layout, Stream(1)), copies[:2])


@pytest.mark.parametrize("start", [OneShotStart(), FedAvgStart(fedavg_rounds=1)], ids=repr)
def test_ifca_goes_on_from_a_start(start):
    states = trained(relabelled(TWO), start, 6)
    assert ari(states[-1], TWO) == 1
    with Engine(LINEAR, threads=1) as engine:
        training = Training(relabelled(TWO), IFCA(), FULL, engine, Stream(3))
        again = training.round(states[4])[0]
    assert torch.equal(again.models, states[5].models)


@pytest.mark.parametrize("base", [FedOpt(IFCA(2), "sgd", 1.0, 0.0), Ditto(IFCA(2), 0.1)], ids=repr)
def test_a_start_keeps_its_base_s_own_tensors(play, base):
    states, _ = play(OneShotStart(base), rounds=3)
    before, _ = play(base, rounds=1)
    assert {*states[-1].server, *states[-1].clients} >= {*before[0].server, *before[0].clients}
