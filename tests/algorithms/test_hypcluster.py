"""HypCluster: IFCA where its options say so, and a start from clients that are unlike each other."""

import pytest
import torch

from shoal.algorithms import IFCA, HypCluster, RRCluster
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, Training, client_updates

CLOSE = {"rtol": 1e-5, "atol": 1e-7}


def test_sgd_with_rate_1_and_equal_clients_is_ifca(play, build):
    (first, *_, mine), _ = play(HypCluster(3), federation=build((8,) * 6))
    (*_, ifca), reports = play(IFCA(3), federation=build((8,) * 6))
    assert len(set(reports[-1].assignment.tolist())) > 1
    assert torch.equal(mine.assignment, ifca.assignment)
    torch.testing.assert_close(mine.models, ifca.models, **CLOSE)
    assert not torch.equal(mine.models, first.models)


def test_clients_count_by_their_examples(play):
    """Which IFCA's equal weights do not."""
    sizes, equal = (play(each)[0][-1] for each in (IFCA(2, weighting="examples"), IFCA(2)))
    (*_, mine), _ = play(HypCluster())
    torch.testing.assert_close(mine.models, sizes.models, **CLOSE)
    assert (mine.models - equal.models).abs().max() > 1e-4


def test_the_server_s_optimizer_steps_by_the_average(play):
    (first, whole), _ = play(HypCluster(), rounds=1)
    (_, half), _ = play(HypCluster(server_learning_rate=0.5), rounds=1)
    torch.testing.assert_close(half.models - first.models, 0.5 * (whole.models - first.models), rtol=1e-4, atol=1e-7)
    pushed = [play(HypCluster(beta1=beta), rounds=2)[0] for beta in (0.0, 0.5)]
    momentum = 0.5 * (pushed[0][1].models - first.models)
    assert torch.equal(pushed[0][1].models, pushed[1][1].models)
    torch.testing.assert_close(pushed[1][2].models - pushed[0][2].models, momentum, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_the_farthest_first_start_has_a_client_of_each_group(mlp, build, seed):
    federation = build((20,) * 6)
    local = LocalSGD(epochs=60, batch_size=5, learning_rate=0.5)
    with Engine(mlp) as engine:
        training = Training(federation, HypCluster(start="farthest-first"), local, engine, Stream(seed))
        before = training.start()
        (begun, report), (after, _) = training.rounds(before, 2)
        # Each model is what one client trained from the first, and that client alone is its member.
        sent = {i: next(client_updates(training, before, report, i))[2] for i in range(6)}
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


def test_rr_cluster_leaves_the_start_alone(play):
    inner = HypCluster(start="farthest-first")
    (_, plain), _ = play(inner, rounds=1)
    (_, floored, after), (_, report) = play(RRCluster(inner, 3), rounds=2)
    assert torch.equal(plain.models, floored.models)
    assert torch.bincount(report.assignment).tolist() == [3, 3]
    assert not torch.equal(after.models, floored.models)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clusters": 0}, {"start": "kmeans"}, {"candidates": 0}, {"optimizer": "adamw"}, {"server_learning_rate": 0.0},
        {"beta1": 1.0}, {"beta2": -0.1}, {"tau": 0.0},
    ],
    ids=str,
)  # fmt: skip
def test_other_values_are_one_sentence(wrong):
    (name,) = wrong
    with pytest.raises(InputError, match=rf"^'{name}' must be [^\n]*; got [^\n]*$"):
        HypCluster(**wrong)
