"""Random rebalancing: floors hold wherever clients are left to give, and the draws are the round's alone."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from shoal.algorithms import IFCA, IFCAMIR, ClusterSizeFloor, IFCAWithinLimit
from shoal.algorithms.private.cluster_size_floor import rebalance
from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, Training, averaging_weights


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
    assert algorithm.deployed(last, cohort).model.tolist() == [0] * 6
    assert base.deployed(last, cohort).model.tolist() == [0] * 6
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
