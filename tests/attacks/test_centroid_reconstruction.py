"""Clients' updates from released models: exact where sets of clients tell, the mean where they do not."""

import math
from dataclasses import replace

import pytest
import torch

from shoal.algorithms import IFCA
from shoal.attacks.updates.centroid_reconstruction import reconstruct_from_rounds, reconstruct_updates
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import LaplaceNoise
from shoal.engine import Engine, LocalSGD, Training, averaging_weights


def moved(points, assignment, models, sizes=None):
    """How each model moves if client i always sends points[i]."""
    weights = torch.ones(len(points)) if sizes is None else sizes
    moves = []
    for chosen in assignment:
        there = chosen >= 0
        moves.append(averaging_weights(chosen[there], weights[there], models) @ points[there].double())
    return torch.stack(moves)


def points_of(count, parameters=40):
    return torch.randn(count, parameters, generator=torch.Generator().manual_seed(0))


def test_a_client_that_leaves_is_the_difference_of_the_two_means():
    points, assignment = points_of(5), torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]])
    moves = moved(points, assignment, 2)
    made = reconstruct_updates(moves, assignment, torch.arange(5))
    expected = 3 * moves[0, 0] - 2 * moves[1, 0]
    torch.testing.assert_close(made.updates[2], expected)
    torch.testing.assert_close(made.updates[2], points[2].double())
    torch.testing.assert_close(made.resolution, torch.tensor([0.5, 0.5, 1.0, 0.5, 0.5]).double())
    # Those who were never apart share their mean.
    torch.testing.assert_close(made.updates[0], points[:2].double().mean(dim=0))
    torch.testing.assert_close(made.updates[0], made.updates[1])


def test_a_client_alone_in_a_model_is_exact_at_once():
    points, assignment = points_of(4), torch.tensor([[0, 1, 1, 1]])
    made = reconstruct_updates(moved(points, assignment, 2), assignment, torch.arange(4))
    torch.testing.assert_close(made.updates[0], points[0].double())
    torch.testing.assert_close(made.resolution, torch.tensor([1, 1 / 3, 1 / 3, 1 / 3]).double())


@pytest.mark.parametrize("sizes", [None, torch.tensor([3.0, 9.0, 4.0, 1.0, 7.0, 5.0])], ids=["equal", "examples"])
def test_with_enough_changes_everybody_is_recovered(sizes):
    draw = torch.Generator().manual_seed(1)
    points, assignment = points_of(6), torch.randint(-1, 2, (12, 6), generator=draw)
    made = reconstruct_updates(moved(points, assignment, 2, sizes), assignment, torch.arange(6), sizes)
    torch.testing.assert_close(made.updates, points.double())
    torch.testing.assert_close(made.resolution, torch.ones(6).double())


def test_reconstruction_averages_out_changes_of_a_client_s_update():
    draw = torch.Generator().manual_seed(2)
    points = points_of(6, 400).double()
    errors = []
    for rounds in (10, 1000):
        assignment = torch.randint(0, 2, (rounds, 6), generator=draw)
        moves = moved(points, assignment, 2) + torch.randn(rounds, 2, 400, generator=draw).double() / 2
        errors.append(float((reconstruct_updates(moves, assignment, torch.arange(6)).updates - points).norm()))
    # The error falls as the root of the number of rounds: by 10 here.
    assert errors[1] < errors[0] / 5


def recorded(mlp, build, rounds, **settings):
    """Rounds of IFCA in which clients' updates hardly change: a small learning rate, full batches."""
    local = LocalSGD(steps=1, batch_size="all", learning_rate=1e-3)
    with Engine(mlp, threads=1) as engine:
        training = Training(build(), IFCA(1), local, engine, Stream(5), participation=0.5, record_every=1, **settings)
        return [report.updates for _, report in training.rounds(training.start(), rounds)]


def test_rounds_of_a_run_give_each_client_away_and_noise_hides_it(mlp, build):
    rounds = recorded(mlp, build, 25)
    made = reconstruct_from_rounds(rounds)
    assert made.clients.tolist() == sorted(build().ids.tolist())
    torch.testing.assert_close(made.resolution, torch.ones(6).double())
    cosines = made.cosines(rounds)
    assert float(cosines.min()) > 0.95
    # What anybody sees without solving anything: the mean move of the model.
    mean = (rounds[-1].models[0] - rounds[0].models[0])[None].double()
    blind = replace(made, updates=mean.expand(6, -1)).cosines(rounds)
    assert bool((cosines > blind).all())
    noisy = recorded(mlp, build, 25, client_filter=LaplaceNoise(20.0))
    quiet = {updates.round: updates for updates in rounds}
    assert float(reconstruct_from_rounds(noisy).cosines(list(quiet.values())).abs().max()) < 0.7


def test_reconstruction_reads_models_and_choices_alone(mlp, build):
    rounds = recorded(mlp, build, 4)
    blank = [replace(updates, updates=torch.full_like(updates.updates, math.nan)) for updates in rounds]
    assert torch.equal(reconstruct_from_rounds(blank).updates, reconstruct_from_rounds(rounds).updates)


def test_models_that_do_not_move_are_explained_by_updates_of_0():
    choices = torch.tensor([[0, 0, 1], [1, 0, 1]])
    made = reconstruct_updates(torch.zeros(2, 2, 5), choices, torch.arange(3))
    assert torch.equal(made.updates, torch.zeros(3, 5, dtype=torch.float64))
    assert made.explained == 1


def test_reconstruction_refuses_rounds_that_do_not_fit(mlp, build):
    rounds = recorded(mlp, build, 3)
    with pytest.raises(InputError, match=r"got no two consecutive rounds$"):
        reconstruct_from_rounds([rounds[0], rounds[2]])
    with pytest.raises(InputError, match=r"in round \[1\] there are two$"):
        reconstruct_from_rounds([replace(rounds[0], clients=torch.zeros_like(rounds[0].clients)), rounds[1]])
    with pytest.raises(InputError, match="the same models in all rounds"):
        reconstruct_from_rounds([rounds[0], replace(rounds[1], models=rounds[1].models.repeat(2, 1))])
    for shape, clients in (((2, 1, 3), 4), ((4, 1, 3), 4), ((3, 3), 4), ((3, 1, 3), 3), ((3, 1, 3), 5)):
        with pytest.raises(InputError, match="must be of the same rounds and clients"):
            reconstruct_updates(torch.zeros(shape), torch.zeros(3, 4, dtype=torch.int64), torch.arange(clients))
    with pytest.raises(InputError, match=r"nobody did$"):
        reconstruct_updates(torch.zeros(1, 1, 3), torch.full((1, 4), -1), torch.arange(4))
