"""The risk from histograms of losses: the cross-fitted threshold, the noise, and what is not needed for it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.attacks import Gap, LossHistograms
from shoal.attacks.membership_attack import losses
from shoal.attacks.queries import loss_histograms
from shoal.attacks.queries.loss_histograms import cross_fitted_accuracy, discrete_laplace, own_risks
from shoal.audit import RedTeam
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Shards
from shoal.engine import LocalSGD

LOCAL = LocalSGD(epochs=1, batch_size=4)
TEAM = RedTeam(1, "histogram", Gap())


def risks_of(clustered, team=TEAM, stream=None):
    return team.estimate(*clustered, (LOCAL,) * 2, stream or Stream(2)).risks


def losses_of(clustered, k, client):
    """Of model k on a client's training examples and on its hold-outs."""
    state, federation, engine = clustered
    both = []
    for shards in (federation.clients, federation.holdout):
        rows = shards.indices_of(client)
        both.append(losses(engine.outputs(state.models[k], shards.x[rows]), shards.y[rows]))
    return both


def exact(halves):
    """Cross-fitted over two halves of (members' losses, hold-outs' losses): the best observed loss as a threshold."""
    right, total = np.zeros(2), np.zeros(2)
    for (inside, outside), (fit_inside, fit_outside) in zip(halves, reversed(halves), strict=True):
        candidates = [-np.inf, *np.sort(np.concatenate([fit_inside, fit_outside]))]
        gains = [(fit_inside <= t).mean() - (fit_outside <= t).mean() for t in candidates]
        # Equal but for rounding is equal: the lowest of the best.
        threshold = candidates[int(np.argmax(np.round(gains, 9)))]
        right += (inside <= threshold).sum(), (outside > threshold).sum()
        total += len(inside), len(outside)
    return (right / total).mean()


def test_bins_that_separate_all_losses_lose_nothing(clustered, monkeypatch):
    state, federation, _ = clustered
    every = np.sort(np.concatenate([
        values for i, k in enumerate(state.assignment.tolist()) for values in losses_of(clustered, k, i)
    ]))  # fmt: skip
    assert len(np.unique(every)) == len(every) > 70
    monkeypatch.setattr(loss_histograms, "EDGES", (every[1:] + every[:-1]) / 2)
    risks = risks_of(clustered)
    for k in (0, 1):
        clients = torch.nonzero(state.assignment == k).flatten()
        half = loss_histograms._halves(federation.ids[clients], Stream(2)("histograms", "halves", k))
        assert sorted(half) == [0] * (len(clients) // 2) + [1] * (len(clients) // 2)
        halves = [
            [np.concatenate([losses_of(clustered, k, int(i))[kind] for i in clients[half == h]]) for kind in (0, 1)]
            for h in (0, 1)
        ]
        assert float(risks[k]) == pytest.approx(exact(halves))


def test_own_risks_judge_each_half_of_one_s_own_examples_by_the_other(clustered, monkeypatch):
    state, federation, engine = clustered
    every = np.sort(np.concatenate([values for k in (0, 1) for values in losses_of(clustered, k, 1)]))
    monkeypatch.setattr(loss_histograms, "EDGES", (every[1:] + every[:-1]) / 2)
    client = torch.tensor([1])
    risks = own_risks(state.models, federation.clients.take(client), federation.holdout.take(client), engine)
    for k in (0, 1):
        halves = [[values[first::2] for values in losses_of(clustered, k, 1)] for first in (0, 1)]
        assert float(risks[k]) == pytest.approx(exact(halves))
    with pytest.raises(InputError, match="at least 2 training examples and 2 hold-out"):
        own_risks(state.models, federation.clients.take(client), federation.holdout.take(client[:0]), engine)


def test_shipped_bins_lose_little():
    """Losses of members and of others as two lognormals: the threshold in bins is nearly as good as any."""
    generator = np.random.default_rng(0)
    inside, outside = (np.exp(generator.normal(mean, 1.0, (2, 4000))) for mean in (-2.5, -1.5))
    counts = np.zeros((2, 2, len(loss_histograms.EDGES) + 1))
    for half in (0, 1):
        for kind, values in enumerate((inside, outside)):
            np.add.at(counts[half, kind], np.searchsorted(loss_histograms.EDGES, values[half], side="right"), 1)
    estimate = cross_fitted_accuracy(counts, np.array([0, 1]), np.zeros(counts.shape[1:]))
    assert estimate.value == pytest.approx(exact(list(zip(inside, outside, strict=True))), abs=0.01)


MEMBERS_LOW, MEMBERS_HIGH = np.array([[4.0, 0.0], [0.0, 4.0]]), np.array([[0.0, 4.0], [4.0, 0.0]])
NOTHING = np.zeros((2, 2))


@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_histogram_estimate_is_at_chance_without_memorisation(epsilon):
    """Chosen and judged on the same clients, the threshold would be above 0.5 by chance alone."""
    generator, estimates, half = np.random.default_rng(1), [], np.arange(10) % 2
    for _ in range(400):
        counts = generator.multinomial(20, np.full(8, 1 / 8), (10, 2)).astype(np.float64)
        if epsilon is not None:
            counts += discrete_laplace(epsilon, counts.shape, generator)
        estimates.append(cross_fitted_accuracy(counts, half, NOTHING.repeat(4, axis=1)))
    values = np.array([estimate.value for estimate in estimates])
    assert abs(values.mean() - 0.5) < 4 * values.std() / np.sqrt(len(values))
    assert values.min() < 0.48, "below 0.5 it is not clipped"
    if epsilon is None:
        assert np.mean([estimate.low <= 0.5 <= estimate.high for estimate in estimates]) >= 0.95 - 0.02, "of 400"


def test_a_threshold_that_does_not_carry_over_is_worse_than_guessing():
    """What is learnt from the first client is wrong for the second; the second teaches to call nobody a member."""
    counts, half = np.stack([MEMBERS_LOW, MEMBERS_HIGH]), np.array([0, 1])
    assert cross_fitted_accuracy(counts, half, NOTHING).value == 0.25
    assert cross_fitted_accuracy(np.stack([MEMBERS_LOW] * 2), half, NOTHING).value == 1.0
    assert cross_fitted_accuracy(np.stack([MEMBERS_HIGH] * 2), half, NOTHING).value == 0.5


def test_a_lone_client_is_judged_by_the_other_models_threshold():
    lone, half = MEMBERS_LOW[None], np.array([0])
    assert cross_fitted_accuracy(lone, half, MEMBERS_LOW).value == 1.0
    assert cross_fitted_accuracy(lone, half, MEMBERS_HIGH).value == 0.5
    assert np.isnan(cross_fitted_accuracy(lone, half, NOTHING)).all()


def test_without_histograms_to_judge_by_the_last_estimate_stays(clustered):
    state, federation, engine = clustered
    risks = torch.tensor([0.6, 0.77], dtype=torch.float64)
    alone = replace(state, assignment=torch.zeros(6, dtype=torch.int64), risks=risks)
    estimates = risks_of((alone, federation, engine))
    assert float(estimates[1]) == 0.77
    assert float(estimates[0]) != 0.6
    # The clients of model 1 are the only ones with hold-outs; the others cannot be told from strangers.
    x, y = federation.holdout.x, federation.holdout.y
    some = Shards.from_indices(x, y, torch.arange(8, 24), torch.tensor([0, 0, 4, 4, 4, 4]))
    estimates = risks_of((replace(state, risks=risks), replace(federation, holdout=some), engine))
    assert float(estimates[0]) == 0.6
    assert float(estimates[1]) != 0.77


def test_counts_are_of_the_model_that_a_client_trains(clustered):
    state, federation, engine = clustered
    state = replace(state, assignment=torch.tensor([0, 0, 1, 1, 1, -1]))
    counts = LossHistograms().received(state, federation, engine, Stream(0))
    for client, k in enumerate(state.assignment.tolist()):
        for kind in (0, 1):
            edges = [-np.inf, *loss_histograms.EDGES, np.inf]
            expected = np.histogram(losses_of((state, federation, engine), k, client)[kind], edges)[0] if k >= 0 else 0
            np.testing.assert_array_equal(counts[client, kind], expected)
    noisy = LossHistograms(epsilon=0.5).received(state, federation, engine, Stream(0))
    assert not noisy[5].any(), "who trains nothing sends nothing"
    assert (noisy[:5] != counts[:5]).any(axis=(1, 2)).all()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_noise_is_unbiased_and_as_wide_as_epsilon_says(epsilon):
    drawn = discrete_laplace(epsilon, (100_000,), np.random.default_rng(5))
    decay = np.exp(-epsilon)
    variance = 2 * decay / (1 - decay) ** 2
    assert (drawn == drawn.round()).all()
    assert abs(drawn.mean()) < 4 * np.sqrt(variance / len(drawn))
    # The density falls by exp(-epsilon) from each number to the next: what one example more or less can change.
    expected = (1 - decay) / (1 + decay) * decay ** np.abs(np.arange(-3, 4))
    seen = np.array([(drawn == x).mean() for x in range(-3, 4)])
    np.testing.assert_allclose(seen, expected, atol=4 * np.sqrt(0.25 / len(drawn)))


def test_noise_is_named_by_client_and_estimate(clustered):
    state, federation, engine = clustered
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = replace(state, assignment=state.assignment[order])
    noisy = LossHistograms(epsilon=1.0)
    straight = noisy.received(state, federation, engine, Stream(7))
    turned = noisy.received(permuted, federation.take(order), engine, Stream(7))
    np.testing.assert_array_equal(turned, straight[order.numpy()])
    noise = straight - LossHistograms().received(state, federation, engine, Stream(7))
    assert len({row.tobytes() for row in noise}) == 6
    assert not np.array_equal(noisy.received(state, federation, engine, Stream(8)), straight)


@pytest.mark.parametrize("epsilon", [None, 0.5])
def test_estimates_are_accuracies_whatever_the_order_of_clients(clustered, epsilon):
    state, federation, engine = clustered
    team = replace(TEAM, histograms=LossHistograms(epsilon))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    turned = replace(state, assignment=state.assignment[order]), federation.take(order), engine
    risks = risks_of(clustered, team)
    assert torch.equal(risks, risks_of(turned, team))
    assert ((risks >= 0) & (risks <= 1)).all()
    assert torch.equal(risks, risks_of(clustered, team)), "the same again"


def test_no_shadow_example_is_needed_for_it(clustered):
    state, federation, engine = clustered
    bare = replace(federation, shadow=federation.shadow.take(torch.arange(0)))
    assert torch.isfinite(risks_of((state, bare, engine), RedTeam(1, "histogram"))).all()


@pytest.mark.parametrize("estimator", ["federated", "histogram"])
def test_hold_outs_are_needed(clustered, estimator):
    state, federation, engine = clustered
    nothing = [(federation.clients.x[:0], federation.clients.y[:0])] * 6
    bare = replace(federation, holdout=Shards.from_pairs(nothing))
    with pytest.raises(InputError, match=rf"^the '{estimator}' estimator needs hold-out examples \(got none\)"):
        risks_of((state, bare, engine), RedTeam(1, estimator, Gap()))


def test_relative_losses_are_less_those_on_the_other_model_and_of_one_model_the_loss(clustered):
    state, federation, engine = clustered
    counts = LossHistograms().received(state, federation, engine, Stream(0), relative=True)
    for i, k in enumerate(state.assignment.tolist()):
        for kind, (own, other) in enumerate(
            zip(losses_of(clustered, k, i), losses_of(clustered, 1 - k, i), strict=True)
        ):
            expected, _ = np.histogram(own - other, [-np.inf, *loss_histograms.RELATIVE_EDGES, np.inf])
            np.testing.assert_array_equal(counts[i, kind], expected)
    alone = (replace(state, models=state.models[:1], assignment=0 * state.assignment), federation, engine)
    both = [risks_of(alone, RedTeam(1, name, Gap()))[0] for name in ("histogram", "relative-histogram")]
    assert both[0] == both[1]


def test_relative_histograms_see_what_the_difficulty_of_examples_hides():
    draw = np.random.default_rng(0)
    difficulty, trained = draw.exponential(2.0, (40, 2, 25)), np.array([0.3, 0.0])[:, None]
    own = np.maximum(difficulty - trained + 0.1 * draw.normal(size=difficulty.shape), 0.0)
    half = np.arange(40) % 2

    def risk(values, edges):
        counts = np.stack([[np.histogram(row, [-np.inf, *edges, np.inf])[0] for row in client] for client in values])
        return cross_fitted_accuracy(counts.astype(float), half, np.zeros(counts.shape[1:])).value

    assert risk(own - difficulty, loss_histograms.RELATIVE_EDGES) > risk(own, loss_histograms.EDGES) + 0.2
