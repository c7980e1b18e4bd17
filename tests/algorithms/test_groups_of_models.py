"""HypCluster and group privacy: IFCA in their limits, a start from unlike clients, and the server's k-means."""

import pytest
import torch
from sklearn.cluster import KMeans

from shoal.algorithms import ClusterSizeFloor, GroupPrivacy, HypCluster
from shoal.algorithms.private.group_privacy import private_k_means
from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, Training


def test_the_server_s_optimizer_steps_by_the_average(play):
    (first, whole), _ = play(HypCluster(), rounds=1)
    (_, half), _ = play(HypCluster(server_learning_rate=0.5), rounds=1)
    torch.testing.assert_close(half.models - first.models, 0.5 * (whole.models - first.models), rtol=1e-4, atol=1e-7)
    pushed = [play(HypCluster(beta1=beta), rounds=2)[0] for beta in (0.0, 0.5)]
    momentum = 0.5 * (pushed[0][1].models - first.models)
    assert torch.equal(pushed[0][1].models, pushed[1][1].models)
    torch.testing.assert_close(pushed[1][2].models - pushed[0][2].models, momentum, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_farthest_first_start_has_a_client_of_each_group(mlp, build, seed):
    federation = build((20,) * 6)
    local = LocalSGD(steps=60, batch_size="all", learning_rate=0.5)
    with Engine(mlp) as engine:
        start = HypCluster(start="farthest-first")
        training = Training(federation, start, local, engine, Stream(seed), record_every=1)
        before = training.start()
        (begun, report), (after, _) = training.rounds(before, 2)
    # Each model is what one client trained from the first, and that client alone is its member.
    sent = dict(zip(report.updates.clients.tolist(), report.updates.updates, strict=True))
    owners = [int(torch.nonzero(begun.trained[:, k])) for k in range(2)]
    for k, owner in enumerate(owners):
        torch.testing.assert_close(begun.models[k], before.models[0] + sent[owner], rtol=1e-4, atol=1e-5)
    assert {owner < 2 for owner in owners} == {True, False}, "the first two clients are one group, the others the other"
    assert after.assignment.tolist() in ([0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0])


def test_candidates_alone_train_and_models_without_one_stay(play):
    algorithm = HypCluster(3, start="farthest-first", candidates=2)
    (first, begun, after), (start, _) = play(algorithm, rounds=2)
    (training,) = start.plan.trainings
    assert int(training.participates.sum()) == 2
    assert begun.trained.sum(dim=0).tolist() == [1, 1, 0]
    assert torch.equal(begun.models[2], first.models[2])
    assert not torch.equal(begun.models[:2], first.models[:2])
    assert int((after.assignment >= 0).sum()) == 6


def test_cluster_size_floor_leaves_the_start_alone(play):
    inner = HypCluster(start="farthest-first")
    (_, plain), _ = play(inner, rounds=1)
    (_, floored, after), (_, report) = play(ClusterSizeFloor(inner, 3), rounds=2)
    assert torch.equal(plain.models, floored.models)
    assert torch.bincount(report.assignment).tolist() == [3, 3]
    assert not torch.equal(after.models, floored.models)


def test_k_means_is_scikit_learn_s():
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(60, 5, generator=draw) + 2 * torch.randint(0, 3, (60, 1), generator=draw)
    start = points[:3].clone()
    centroids, cluster = private_k_means(points, start, 300)
    reference = KMeans(3, init=start.double().numpy(), n_init=1, tol=0, max_iter=300).fit(points.double().numpy())
    torch.testing.assert_close(centroids.double(), torch.tensor(reference.cluster_centers_), rtol=1e-5, atol=1e-6)
    assert cluster.tolist() == reference.labels_.tolist()
    assert len(set(cluster.tolist())) == 3
    one, first = private_k_means(points, start, 1)
    assert torch.equal(first, torch.cdist(points, start).argmin(dim=1))
    assert not torch.allclose(one, centroids)


class Distant:
    """Sends the second model whatever was trained."""

    def __init__(self, model):
        self.model = model

    def filter(self, starts, ends, seeds):
        return self.model.expand_as(ends)


def test_the_server_follows_what_it_received_not_what_clients_chose(play):
    first = play(GroupPrivacy(2), rounds=0)[0][0]
    states, (report,) = play(GroupPrivacy(2), rounds=1, training={"client_filter": Distant(first.models[1])})
    assert len(report.assignment.unique()) == 2
    torch.testing.assert_close(states[-1].models, first.models)
    assert states[-1].trained.tolist() == [[0, 1]] * 6
    assert torch.equal(states[-1].assignment, report.assignment)


def test_group_privacy_remembers_trainers_over_rounds(play):
    states, reports = play(GroupPrivacy(2), rounds=4, training={"participation": 0.5})
    expected = torch.zeros(6, 2, dtype=torch.int64)
    for number, report in enumerate(reports, start=1):
        expected[report.cohort, report.assignment] = number
    assert torch.equal(states[-1].trained, expected)
