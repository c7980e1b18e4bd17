"""Preference inference on made-up choices: near 1 where thresholds decide, at chance where they do not."""

import numpy as np
import pytest
import torch

from shoal.attacks import PreferenceInference
from shoal.attacks.updates.choices import LAXER, NEITHER, STRICTER, strictness
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data.preferences import Preferences

GROUP = np.repeat([0, 1], [40, 20])


def tolerated(count, seed=0):
    draw = np.random.default_rng(seed)
    return Preferences(torch.from_numpy(draw.uniform(0.5, 0.8, count)), torch.full((count,), 0.5).double())


def guess(assignment, group, preferences, clients=None):
    clients = np.arange(len(group)) if clients is None else clients
    return PreferenceInference().guess(np.asarray(assignment), np.asarray(group), preferences, clients, Stream(0))


def test_choices_that_thresholds_decide_give_them_away():
    preferences = tolerated(60)
    threshold = preferences.threshold.numpy()
    strict = threshold < np.array([np.median(threshold[g == GROUP]) for g in (0, 1)])[GROUP]
    draw = np.random.default_rng(1)
    # The safer model has another number in each round; one client in ten strays.
    chosen = [np.where(draw.random(60) < 0.1, ~strict, strict) ^ bool(swap) for swap in (0, 1, 1, 0, 1, 0)]
    found = guess(np.array(chosen).astype(np.int64), GROUP, preferences)
    assert (found.clients, found.chance) == (60, 0.5)
    assert found.accuracy > 0.97
    assert found.low > 0.85


def test_choices_that_do_not_depend_on_thresholds_tell_nothing():
    inside, found = 0, []
    for seed in range(40):
        draw = np.random.default_rng(100 + seed)
        one = guess(draw.integers(0, 2, (6, 60)), GROUP, tolerated(60, seed))
        inside += one.low <= one.chance <= one.high
        found.append(one.accuracy)
    assert inside >= 36, "of 40 intervals of 95 %"
    assert np.mean(found) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_choices_that_groups_decide_tell_exactly_nothing(seed):
    """Though a whole group may be the stricter one: halves are within groups, among the known clients too."""
    preferences = tolerated(60, seed)
    preferences = Preferences(preferences.threshold + 0.3 * torch.from_numpy(GROUP), preferences.beta)
    found = guess(np.tile(GROUP, (5, 1)), GROUP, preferences)
    assert (found.accuracy, found.last_round) == (0.5, 0.5)


def test_one_group_is_enough():
    preferences = tolerated(20)
    strict = (preferences.threshold < preferences.threshold.median()).long().numpy()
    assert guess(strict[None], np.zeros(20, dtype=np.int64), preferences).accuracy > 0.9


def test_each_group_has_as_many_stricter_as_laxer_clients_and_ties_go_by_beta_or_are_left_out():
    threshold = torch.tensor([0.5, 0.7, 0.6, 0.8, 0.9, 0.6, 0.6, 0.6, 0.6, 0.6, 0.7])
    beta = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.2, 0.9, 0.1, 0.4, 0.4, 0.4])
    group = np.array([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, -1])
    found = strictness(Preferences(threshold, beta), group, np.arange(11))
    assert found.tolist() == [
        STRICTER, NEITHER, STRICTER, LAXER, LAXER, NEITHER, STRICTER, LAXER, NEITHER, NEITHER, NEITHER,
    ]  # fmt: skip
    # Three of four are alike: one of them, by its number, is stricter than the fourth.
    tied = Preferences(torch.tensor([0.5, 0.5, 0.5, 0.6]), torch.zeros(4))
    assert strictness(tied, np.zeros(4, dtype=np.int64), np.arange(4)).tolist() == [1, -1, -1, 0]


def test_the_order_of_clients_changes_nothing():
    draw, order, clients = np.random.default_rng(0), np.random.default_rng(1).permutation(60), np.arange(60) * 7
    assignment, preferences = draw.integers(-1, 2, (6, 60)), tolerated(60)
    moved = Preferences(preferences.threshold[order], preferences.beta[order])
    one, other = (
        guess(assignment, GROUP, preferences, clients),
        guess(assignment[:, order], GROUP[order], moved, clients[order]),
    )
    names = ("clients", "accuracy", "low", "high", "last_round")
    assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]


@pytest.mark.parametrize(
    ("assignment", "thresholds", "sentence"),
    [
        (np.tile([0, 1], (2, 4)), np.full(8, 0.65), "at least two clients that are stricter .*; there are 0"),
        (np.tile([0, 1], (2, 4)), np.where(np.arange(8) == 3, 0.5, 0.65), "there are 1"),
        (np.zeros((2, 8), dtype=np.int64), np.linspace(0.5, 0.8, 8), "needs clients that chose at least two clusters"),
        (np.full((2, 8), -1), np.linspace(0.5, 0.8, 8), "there are 0"),
    ],
    ids=["all equal", "one differs", "one cluster", "nobody there"],
)
def test_too_little_to_guess_from_is_one_sentence(assignment, thresholds, sentence):
    with pytest.raises(InputError, match=sentence):
        guess(assignment, np.repeat([0, 1], 4), Preferences(torch.from_numpy(thresholds), torch.full((8,), 0.5)))
