"""Groups and preferences guessed from made-up choices: what is known of them, by hand, and what is refused."""

from math import log

import numpy as np
import pytest
import torch

from shoal.attacks import ClusterIdentity, PreferenceInference
from shoal.attacks.updates.choices import LAXER, NEITHER, STRICTER, _halves, strictness
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data.preferences import Preferences

STREAM = Stream(0)


def guess(assignment, group, clients=None, **settings):
    clients = np.arange(len(group)) if clients is None else clients
    return ClusterIdentity(**settings).guess(np.asarray(assignment), np.asarray(group), clients, STREAM)


def choices(group, rounds, right, seed=0, clusters=2):
    """Choices (T, N): the group's own cluster with probability ``right``, else another; numbers swap over rounds."""
    draw = np.random.default_rng(seed)
    assignment = []
    for _ in range(rounds):
        strays = draw.random(len(group)) >= right
        chosen = np.where(strays, (group + draw.integers(1, clusters, len(group))) % clusters, group % clusters)
        assignment.append(draw.permutation(clusters)[chosen])
    return np.array(assignment)


def test_groups_that_are_clusters_are_always_guessed_though_clusters_swap():
    group = np.repeat([0, 1, 2], [20, 10, 6])
    assignment = choices(group, 5, 1.0, clusters=3)
    assert len(np.unique(assignment[:, 0])) > 1, "the clusters do swap"
    guesses = guess(assignment, group)
    assert (guesses.accuracy, guesses.last_round, guesses.chance) == (1.0, 1.0, 1 / 3)
    assert guesses.low < 1.0
    assert guesses.high == 1.0
    assert guesses.clients == 36
    assert (np.diff(guesses.margin) > 0).all(), "each round makes the guess more certain"


def test_choices_that_do_not_depend_on_groups_tell_nothing():
    group, inside, guesses = np.repeat([0, 1], [40, 20]), 0, []
    for seed in range(40):
        one = guess(choices(np.zeros_like(group), 6, 0.5, seed=seed), group, splits=4)
        inside += one.low <= one.chance <= one.high
        guesses.append(one)
    assert {one.chance for one in guesses} == {0.5}
    assert inside >= 36, "of 40 intervals of 95 %"
    assert np.mean([one.accuracy for one in guesses]) == pytest.approx(0.5, abs=0.03)
    assert np.mean([one.margin[-1] for one in guesses]) == pytest.approx(0, abs=0.05)


def test_of_noisy_choices_the_history_tells_more_than_the_last_round():
    group = np.repeat([0, 1], [60, 40])
    guesses = guess(choices(group, 20, 0.6), group)
    # Of 20 rounds at 60 % a majority vote with perfect knowledge is right in about four of five cases.
    assert guesses.last_round == pytest.approx(0.6, abs=0.1)
    assert guesses.low > guesses.last_round
    assert 0.7 < guesses.accuracy < 0.9


def test_the_last_choice_is_each_client_s_own_last_one():
    group = np.repeat([0, 1], 8)
    perfect, early = choices(group, 3, 1.0), np.arange(16) % 2 == 0
    perfect[1:, early] = -1
    assert guess(perfect, group).last_round == 1.0
    assert guess(perfect[::-1], group).last_round == 1.0


def test_each_group_counts_alike_in_the_margin_however_large():
    """All of a large group choose at random, a small one always its own cluster: the margin is a mean of both."""
    group = np.repeat([0, 1], [60, 6])
    guesses = guess(np.where(group == 1, 1, np.arange(66) % 2)[None], group, splits=200)
    # P(0), P(1) are 1/2, 1/2 in the table of the large group, where half chose each; 1/5, 4/5 in that of the other.
    large, small = (log(0.5 / 0.2) + log(0.5 / 0.8)) / 2, log(0.8 / 0.5)
    assert guesses.margin == pytest.approx([(large + small) / 2], abs=0.02)


def test_the_order_of_clients_changes_nothing():
    group = np.repeat([0, 1, 2], 11)
    assignment, order = choices(group, 6, 0.6, clusters=3), np.random.default_rng(1).permutation(33)
    assignment[2, 4] = assignment[5, 4] = -1
    clients = np.arange(33) * 7
    one, other = guess(assignment, group, clients), guess(assignment[:, order], group[order], clients[order])
    names = ("clients", "accuracy", "low", "high", "last_round", "chance")
    assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
    np.testing.assert_allclose(one.margin, other.margin, rtol=0, atol=1e-12)


def test_the_guess_is_naive_bayes_with_a_table_of_each_round():
    """Two clients of each group, so one of each is known: by hand."""
    group = np.array([0, 0, 1, 1])
    twice = guess([[0, 0, 1, 1], [1, 1, 0, 0]], group, smoothing=1.0)
    # P(own cluster) = (1 + 1) / (1 + 2), P(other cluster) = 1 / 3.
    assert twice.margin == pytest.approx([log(2), 2 * log(2)])
    assert guess([[0, 0, 1, 1]], group, smoothing=3.0).margin == pytest.approx([log(4 / 3)])
    # Without anybody of group 1 its table is even, 1 / 2; in that of group 0 a choice nobody made has 1 / 3.
    away = guess([[0, 0, 1, 1], [0, 0, -1, -1], [0, 1, -1, -1]], group)
    assert away.margin[:2] == pytest.approx([log(2), log(2)]), "one cluster is not a choice"
    assert away.margin[2] == pytest.approx(log(2) + (log(1 / 3) - log(1 / 2)) / 2)


def test_uninformative_choices_give_every_client_the_same_guess():
    """All choose one cluster, but for a client whose choice nobody else made in its round."""
    assignment = np.stack([np.zeros(12, dtype=np.int64), np.where(np.arange(12) == 0, 1, -1)])
    guesses = guess(assignment, np.repeat([0, 1], [8, 4]))
    assert (guesses.accuracy, guesses.last_round, guesses.chance) == (0.5, 0.5, 0.5)
    assert guesses.margin.tolist() == [0, 0]


def test_halves_are_of_each_cell_and_of_an_odd_one_the_larger_by_a_coin():
    cell = np.repeat([0, 1], [4, 5])
    sizes = np.array([np.bincount(cell, _halves(cell, Stream(seed))) for seed in range(60)])
    assert set(sizes[:, 0]) == {2}
    assert set(sizes[:, 1]) == {2, 3}
    assert sizes[:, 1].mean() == pytest.approx(2.5, abs=0.25)


def test_clients_of_unknown_group_and_those_that_were_never_there_are_left_out():
    group = np.repeat([0, 1], 6)
    assignment = choices(group, 3, 1.0)
    with_more = np.concatenate([assignment, np.tile([0, -1], (3, 1))], axis=1)
    guesses = guess(with_more, np.append(group, [-1, 1]))
    assert (guesses.clients, guesses.accuracy) == (12, 1.0)


@pytest.mark.parametrize(
    ("assignment", "group", "sentence"),
    [
        ([[0, 1, 0, 1]], [0, 0, 0, 0], "two groups .got 1"),
        ([[-1, -1, -1, -1]], [0, 0, 1, 1], "two groups .got 0"),
        ([[0, 1, 0, 1]], [0, 0, 0, 1], r"group with 1\)"),
        ([[2, 2, 2, 2]] * 3, [0, 0, 1, 1], "two clusters .* .got 1"),
    ],
)
def test_too_little_to_guess_from_is_one_sentence(assignment, group, sentence):
    with pytest.raises(InputError, match=sentence):
        guess(assignment, group)


GROUP = np.repeat([0, 1], [40, 20])


def tolerated(count, seed=0):
    draw = np.random.default_rng(seed)
    return Preferences(torch.from_numpy(draw.uniform(0.5, 0.8, count)), torch.full((count,), 0.5).double())


def infer(assignment, group, preferences, clients=None):
    clients = np.arange(len(group)) if clients is None else clients
    return PreferenceInference().guess(np.asarray(assignment), np.asarray(group), preferences, clients, Stream(0))


def test_choices_that_thresholds_decide_give_them_away():
    preferences = tolerated(60)
    threshold = preferences.threshold.numpy()
    strict = threshold < np.array([np.median(threshold[g == GROUP]) for g in (0, 1)])[GROUP]
    draw = np.random.default_rng(1)
    # The safer model has another number in each round; one client in ten strays.
    chosen = [np.where(draw.random(60) < 0.1, ~strict, strict) ^ bool(swap) for swap in (0, 1, 1, 0, 1, 0)]
    guesses = infer(np.array(chosen).astype(np.int64), GROUP, preferences)
    assert (guesses.clients, guesses.chance) == (60, 0.5)
    assert guesses.accuracy > 0.97
    assert guesses.low > 0.85


def test_choices_that_do_not_depend_on_thresholds_tell_nothing():
    inside, guesses = 0, []
    for seed in range(40):
        draw = np.random.default_rng(100 + seed)
        one = infer(draw.integers(0, 2, (6, 60)), GROUP, tolerated(60, seed))
        inside += one.low <= one.chance <= one.high
        guesses.append(one.accuracy)
    assert inside >= 36, "of 40 intervals of 95 %"
    assert np.mean(guesses) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_choices_that_groups_decide_tell_exactly_nothing(seed):
    """Though a whole group may be the stricter one: halves are within groups, among the known clients too."""
    preferences = tolerated(60, seed)
    preferences = Preferences(preferences.threshold + 0.3 * torch.from_numpy(GROUP), preferences.beta)
    guesses = infer(np.tile(GROUP, (5, 1)), GROUP, preferences)
    assert (guesses.accuracy, guesses.last_round) == (0.5, 0.5)


def test_each_group_has_as_many_stricter_as_laxer_clients_and_ties_go_by_beta_or_are_left_out():
    threshold = torch.tensor([0.5, 0.7, 0.6, 0.8, 0.9, 0.6, 0.6, 0.6, 0.6, 0.6, 0.7])
    beta = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.2, 0.9, 0.1, 0.4, 0.4, 0.4])
    group = np.array([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, -1])
    classes = strictness(Preferences(threshold, beta), group, np.arange(11))
    assert classes.tolist() == [
        STRICTER, NEITHER, STRICTER, LAXER, LAXER, NEITHER, STRICTER, LAXER, NEITHER, NEITHER, NEITHER,
    ]  # fmt: skip
    # Three of four are alike: one of them, by its number, is stricter than the fourth.
    tied = Preferences(torch.tensor([0.5, 0.5, 0.5, 0.6]), torch.zeros(4))
    assert strictness(tied, np.zeros(4, dtype=np.int64), np.arange(4)).tolist() == [1, -1, -1, 0]


@pytest.mark.parametrize(
    ("assignment", "thresholds", "sentence"),
    [
        (np.tile([0, 1], (2, 4)), np.full(8, 0.65), "stricter .* .got 0"),
        (np.tile([0, 1], (2, 4)), np.where(np.arange(8) == 3, 0.5, 0.65), "stricter .* .got 1"),
        (np.zeros((2, 8), dtype=np.int64), np.linspace(0.5, 0.8, 8), r"two clusters in total \(got 1\)"),
        (np.full((2, 8), -1), np.linspace(0.5, 0.8, 8), "stricter .* .got 0"),
    ],
    ids=["all equal", "one differs", "one cluster", "nobody there"],
)
def test_too_little_to_infer_preferences_from_is_one_sentence(assignment, thresholds, sentence):
    with pytest.raises(InputError, match=sentence):
        infer(assignment, np.repeat([0, 1], 4), Preferences(torch.from_numpy(thresholds), torch.full((8,), 0.5)))
