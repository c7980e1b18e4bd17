"""One-shot clustering, FeSEM and the starts that find groups: the models they average, and the clients they group."""

from dataclasses import replace

import pytest
import torch
from scipy.linalg import subspace_angles

from relabelled import FULL, LINEAR, TWO, ari, relabelled, trained
from shoal.algorithms import (
    IFCA,
    PACFL,
    Ditto,
    FedAvg,
    FedAvgStart,
    FedOpt,
    FeSEM,
    OneShotClustering,
    OneShotStart,
)  # fmt: skip
from shoal.algorithms.clusters.pacfl import basis, principal_angles
from shoal.algorithms.wrappers.starts import noisy_copies
from shoal.core.randomness import Stream
from shoal.data import Federation
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


def bases(count: int = 6) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [basis(torch.randn(20, 7, generator=draw), 3) for _ in range(count)]


def test_angles_are_those_of_scipy():
    for one, other in zip(bases(), bases()[1:], strict=False):
        expected = torch.tensor(subspace_angles(one.numpy(), other.numpy())).rad2deg().flip(0)
        torch.testing.assert_close(principal_angles(one, other), expected)


def test_angles_are_of_subspaces_and_not_of_basis_vectors():
    """The entries of U_i' U_j, which the authors' code takes, change with the basis of the same subspace."""
    one, other, *_ = bases()
    turned = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).double())[0]
    torch.testing.assert_close(principal_angles(one @ turned, -other), principal_angles(one, other))
    assert float(principal_angles(one, one @ turned).max()) < 1e-4
    entries = (one.T @ one @ turned).clamp(-1, 1).acos().rad2deg()
    assert float(entries.min()) > 1, "by entries a subspace is far from itself"


@pytest.mark.parametrize("distance", ["smallest", "sum"])
def test_clients_with_the_same_directions_are_one_cluster(build, mlp, distance):
    federation = spans([0, 1, 0, 1, 1, 0, 2])
    found = PACFL(30.0, 2, distance).clusters_of(federation.clients, federation.ids)
    assert found.tolist() == [0, 1, 0, 1, 1, 0, 2]
    order = torch.tensor([3, 0, 6, 5, 1, 4, 2])
    permuted = federation.take(order)
    assert torch.equal(PACFL(30.0, 2, distance).clusters_of(permuted.clients, permuted.ids), found[order])


def spans(groups: list[int], noise: float = 0.01) -> Federation:
    """Clients whose rows lie near planes of their groups, which are orthogonal to each other."""
    draw, clients = torch.Generator().manual_seed(1), []
    for group in groups:
        x = noise * torch.randn(30, 8, generator=draw)
        x[:, 2 * group : 2 * group + 2] += torch.randn(30, 2, generator=draw)
        clients.append((x, torch.arange(30) % 4))
    return Federation.from_tensors(clients, test=clients[0], classes=4)


def test_each_cluster_is_fedavg_of_its_clients():
    federation = spans(TWO)
    states = trained(federation, PACFL(30.0, 2), 3)
    assert ari(states[-1], TWO) == 1
    for k in range(2):
        mine = torch.nonzero(states[-1].assignment == k).flatten()
        clients = federation.clients
        pairs = [(clients.x[rows], clients.y[rows]) for rows in map(clients.indices_of, mine)]
        alone = Federation.from_tensors(pairs, test=pairs[0], classes=4)
        expected = trained(alone, FedAvg(), 3)[-1].models[0]
        torch.testing.assert_close(states[-1].models[k], expected, rtol=1e-4, atol=1e-6)


def test_pacfl_does_not_see_groups_that_differ_in_labels_alone():
    assert len(trained(relabelled(TWO), PACFL(20.0), 1)[-1].models) == 1


def test_a_single_client_and_one_with_fewer_examples_than_vectors_have_a_cluster():
    few = [(torch.eye(8)[:1], torch.tensor([0])), (torch.eye(8)[:5], torch.arange(5) % 4)]
    single = Federation.from_tensors(few[:1], test=few[1], classes=4)
    assert PACFL().clusters_of(single.clients, single.ids).tolist() == [0]
    federation = Federation.from_tensors(few, test=few[1], classes=4)
    assert PACFL(10.0, 5).clusters_of(federation.clients, federation.ids).tolist() == [0, 0]
