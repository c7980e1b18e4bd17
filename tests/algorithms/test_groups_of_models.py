"""HypCluster and group privacy: IFCA in their limits, a start from unlike clients, and the server's k-means."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from sklearn.cluster import KMeans

from shoal.algorithms import (
    IFCA,
    IFCAMIR,
    ByGroup,
    ClusterSizeFloor,
    FedAvg,
    GroupPrivacy,
    HypCluster,
    IFCAWithinLimit,
)
from shoal.algorithms.private.cluster_size_floor import rebalance
from shoal.algorithms.private.group_privacy import private_k_means
from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, Training, averaging_weights


def test_each_group_trains_as_a_federation_of_its_own(play, build):
    whole = build()
    whole = replace(whole, group=torch.tensor([0, 1, 0, 1, 1, 0]), groups=("north", "south"))
    states, _ = play(ByGroup(), federation=whole)
    for group in (0, 1):
        own = whole.take(torch.nonzero(whole.group == group).flatten())
        (*_, alone), (*_, one_group) = (play(each, federation=own)[0] for each in (FedAvg(), ByGroup()))
        assert torch.equal(one_group.models, alone.models)
        torch.testing.assert_close(states[-1].models[group], alone.models[0], rtol=1e-5, atol=1e-7)
    assert torch.equal(states[-1].assignment, whole.group)


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


def drawn(seed, clients=12):
    draw = torch.Generator().manual_seed(seed)
    # Unequal: most choose the first.
    assignment = (torch.rand(clients, generator=draw) ** 3 * 4).long()
    return assignment, torch.randperm(clients, generator=draw)


@pytest.mark.parametrize("least", [1, 2, 3, 5, 20])
def test_no_model_is_below_the_floor_while_another_is_above_it(least):
    moved = 0
    for seed in range(50):
        before, order = drawn(seed)
        after = rebalance(before, torch.full((4,), least), least, order)
        had, has = (torch.bincount(each, minlength=4) for each in (before, after))
        assert has.min() >= least or has.max() <= least
        # Nobody moves in vain: givers were above the floor and stay at it, receivers were below and end at it at most.
        givers, receivers = had > has, has > had
        assert bool((had[givers] > least).all())
        assert bool((has[givers] >= least).all())
        assert bool((has[receivers] <= least).all())
        assert int((before != after).sum()) == int((has - had).clamp(min=0).sum())
        moved += int((before != after).sum())
    assert (moved > 0) == (least < 20)


def test_the_smallest_models_are_filled_first():
    assignment = torch.tensor([0, 0, 0, 0, 0, 1])
    after = rebalance(assignment, torch.tensor([3, 3, 3]), 3, torch.arange(6))
    # Two can be given: one goes where nobody is, and then both others lack two. A third would leave the first lacking.
    assert torch.bincount(after, minlength=3).tolist() == [3, 2, 1]
    after = rebalance(torch.tensor([0, 0, 0, 0, 1]), torch.tensor([3, 3, 3]), 3, torch.arange(5))
    assert torch.bincount(after, minlength=3).tolist() == [3, 1, 1]
    after = rebalance(torch.tensor([0, 1, 1, 1, 1, 1]), torch.tensor([3, 3, 3]), 3, torch.arange(6))
    assert torch.bincount(after, minlength=3).tolist() == [2, 3, 1]


def test_models_have_floors_of_their_own_and_give_no_client_below_the_full_floor():
    assignment = torch.tensor([0] * 8 + [1] * 4 + [2])
    # The clients of the second model are asked before those of the first.
    after = rebalance(assignment, torch.tensor([0, 0, 2]), 5, torch.arange(13).flip(0))
    assert torch.bincount(after, minlength=3).tolist() == [7, 4, 2]
    assert torch.equal(rebalance(assignment, torch.tensor([0, 0, 0]), 5, torch.arange(13)), assignment)


def test_every_client_above_the_floor_is_equally_likely_to_move():
    """Of six clients of two models above the floor, two go: each in a third of the permutations."""
    gone, draw = Counter(), torch.Generator().manual_seed(0)
    assignment = torch.tensor([0, 0, 0, 1, 1, 1])
    for _ in range(3000):
        after = rebalance(assignment, torch.tensor([2, 2, 2]), 2, torch.randperm(6, generator=draw))
        gone.update(torch.nonzero(after != assignment).flatten().tolist())
    # The standard deviation is 26.
    assert all(abs(gone[i] - 1000) < 110 for i in range(6)), gone


@pytest.mark.parametrize("ifca", [IFCA(3), IFCA(3, weighting="examples")], ids=repr)
@pytest.mark.parametrize("wrapped", [lambda ifca: ifca, IFCAMIR, IFCAWithinLimit], ids=["IFCA", "MIR", "limit"])
def test_starts_weights_and_assignment_follow_the_moves(play, ifca, wrapped):
    _, (report,) = play(ClusterSizeFloor(wrapped(ifca), 2), rounds=1)
    _, (chosen,) = play(wrapped(ifca), rounds=1)
    (training,) = report.plan.trainings
    assert torch.bincount(report.assignment, minlength=3).tolist() == [2, 2, 2]
    assert not torch.equal(report.assignment, chosen.assignment)
    assert torch.equal(training.init_index, report.assignment)
    sizes = torch.tensor([9, 12, 7, 12, 5, 10]) if ifca.weighting == "examples" else torch.ones(6)
    assert torch.equal(training.weights, averaging_weights(report.assignment, sizes, 3))
    torch.testing.assert_close(training.weights.sum(dim=1), torch.ones(3).double())
    assert torch.equal(report.losses, chosen.losses)


def test_moved_clients_train_the_new_model_and_use_their_choice(play, mlp, build):
    base, algorithm = IFCA(2), ClusterSizeFloor(IFCA(2), 3)
    states, reports = play(algorithm, rounds=4)
    assert all(torch.bincount(each.assignment).tolist() == [3, 3] for each in reports)
    last = states[-1]
    assert torch.equal(last.assignment, reports[-1].assignment)
    assert torch.equal((last.trained == 4).nonzero()[:, 1], last.assignment)
    again = play(algorithm, rounds=4)[1]
    assert all(torch.equal(one.assignment, other.assignment) for one, other in zip(reports, again, strict=True))
    cohort = cohort_with(torch.tensor([[0.0, 1.0]] * 6, dtype=torch.float64), mlp, build, algorithm, last)
    assert algorithm.deployed_models(last, cohort).model.tolist() == [0] * 6
    assert base.deployed_models(last, cohort).model.tolist() == [0] * 6
    assert sorted(algorithm.plan(last, cohort).assignment.tolist()) == [0, 0, 0, 1, 1, 1]


def cohort_with(losses, mlp, build, algorithm, state):
    with Engine(mlp) as engine:
        training = Training(build(), algorithm, LocalSGD(), engine, Stream(5))
        return replace(training.cohort_of(state, torch.arange(6)), scores=lambda *_: losses)


def test_a_floor_that_everybody_meets_is_the_base_bit_for_bit(play):
    one, base = (play(each)[0][-1] for each in (ClusterSizeFloor(FloorMet(), 1), FloorMet()))
    assert torch.equal(one.models, base.models)


class FloorMet(IFCA):
    """IFCA in which every other client trains the first model."""

    def plan(self, state, cohort):
        return self.plan_of(cohort.clients % 2, None, state, cohort)
