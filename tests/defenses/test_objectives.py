"""Mixup, flooding, RelaxLoss and CCL against formulas of a few lines, and what none of them can do."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sgd_by_hand import ends_of
from shoal import Federation, simulate, squared_error
from shoal.algorithms import FedAvg, Scaffold
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import (
    CCL,
    DPSGD,
    Flooding,
    Mixup,
    RelaxLoss,
    ShorterTraining,
    TrainingSetup,
    accounting,
    apply_defenses,
)
from shoal.engine import Engine, LocalSGD
from shoal.models import Logistic, Model

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)
OBJECTIVES = [Mixup(0.4), Flooding(0.5), RelaxLoss(0.5), CCL()]


@pytest.fixture
def batch():
    """A linear network in training mode, inputs (6, 5) and labels of 3 classes."""
    torch.manual_seed(0)
    return nn.Linear(5, 3), torch.randn(6, 5), torch.tensor([0, 1, 2, 0, 1, 1])


def cross_entropy(outputs, y):
    return functional.cross_entropy(outputs, y, reduction="none")


def gradient(network, value):
    return torch.cat([each.flatten() for each in torch.autograd.grad(value, list(network.parameters()))])


def of(defense, network, x, y, number=0, seed=0, forward=None):
    """The gradient of what a defence minimises."""
    draws = torch.Generator().manual_seed(seed)
    return gradient(
        network, defense.objective(network if forward is None else forward, x, y, cross_entropy, draws, number)
    )


def test_flooding_turns_the_gradient_round_below_its_level(batch):
    network, x, y = batch
    mean = cross_entropy(network(x), y).mean()
    plain, loss = gradient(network, mean), float(mean.detach())
    torch.testing.assert_close(of(Flooding(loss / 2), *batch), plain)
    torch.testing.assert_close(of(Flooding(loss * 2), *batch), -plain)
    level = Flooding(0.3)
    value = level.objective(network, x, y, cross_entropy, torch.Generator(), 0)
    assert float(value.detach()) == pytest.approx(abs(loss - 0.3) + 0.3)
    assert Flooding(0.8).with_strength(0.25) == Flooding(0.2)


def test_relaxloss_descends_above_its_level_and_below_ascends_or_flattens_in_turn(batch):
    network, x, y = batch
    mean = cross_entropy(network(x), y).mean()
    plain, loss = gradient(network, mean), float(mean.detach())
    for number in range(4):
        torch.testing.assert_close(of(RelaxLoss(loss / 2), *batch, number), plain)
    for number in (0, 2):
        torch.testing.assert_close(of(RelaxLoss(loss * 2), *batch, number), -plain)
    posteriors = network(x).softmax(dim=1).detach()
    for upper in (1.0, 0.2):
        targets = torch.zeros(6, 3)
        for i, label in enumerate(y.tolist()):
            own = min(float(posteriors[i, label]), upper)
            targets[i] = (1 - own) / 2
            targets[i, label] = own
        flat = gradient(network, -(targets * network(x).log_softmax(dim=1)).sum(dim=1).mean())
        for number in (1, 3):
            torch.testing.assert_close(of(RelaxLoss(loss * 2, upper), *batch, number), flat)
    assert RelaxLoss(0.8, 0.3).with_strength(0.25) == RelaxLoss(0.2, 0.3)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_relaxloss_flattens_to_posteriors(classes):
    flat = RelaxLoss(0.5, 0.3)._flat(torch.eye(classes), torch.arange(classes))
    torch.testing.assert_close(flat.sum(dim=1), torch.ones(classes))
    assert bool((flat >= 0).all())


@pytest.mark.parametrize("strength", [1.0, 0.4])
@pytest.mark.parametrize("variant", ["ccel", "ccql"])
def test_ccl_is_the_paper_s_loss_beside_plain_cross_entropy(batch, variant, strength):
    network, x, y = batch
    p = network(x).softmax(dim=1)[torch.arange(6), y]
    concave = p.exp() if variant == "ccel" else p + p**2 / 2
    changed = 0.2 * (0.7 * -p.log() - 0.3 * concave)
    expected = gradient(network, ((1 - strength) * -p.log() + strength * changed).mean())
    torch.testing.assert_close(of(CCL(variant, 0.7, 0.2).with_strength(strength), *batch), expected)
    # The concave term lowers the loss of a probable label: its gradient with the probability is -g'(p).
    probability = torch.tensor([0.6], requires_grad=True)
    value = CCL(variant, 0.0, 1.0).objective(lambda x: x, probability, y[:1], lambda out, _: -out.log(), None, 0)
    slope = math.exp(0.6) if variant == "ccel" else 1.6
    assert float(torch.autograd.grad(value, probability)[0]) == pytest.approx(-slope, rel=1e-5)


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_mixup_mixes_inputs_and_losses_alike(batch, strength):
    network, x, y = batch
    seen = []

    def forward(inputs):
        seen.append(inputs)
        return network(inputs)

    found = of(Mixup(0.8).with_strength(strength), *batch, forward=forward)
    (mixed,) = seen
    draws = torch.Generator().manual_seed(0)
    order = torch.randperm(6, generator=draws)
    assert not torch.equal(order, torch.arange(6))
    i = int(torch.nonzero(order != torch.arange(6))[0])
    kept = float(((mixed[i] - x[order[i]]) / (x[i] - x[order[i]]))[0].detach())
    assert 1 - strength <= kept <= 1
    torch.testing.assert_close(mixed, kept * x + (1 - kept) * x[order])
    outputs = network(kept * x + (1 - kept) * x[order])
    both = kept * cross_entropy(outputs, y) + (1 - kept) * cross_entropy(outputs, y[order])
    torch.testing.assert_close(found, gradient(network, both.mean()), rtol=1e-4, atol=1e-5)


def weights_of(defense, count):
    """The lambdas of many batches of two examples, 0 and 1, in this order."""
    draws, found = torch.Generator().manual_seed(3), []

    def forward(inputs):
        found.append(float(inputs[1, 0]))
        return torch.cat([inputs, -inputs], dim=1)

    x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1])
    for _ in range(count):
        defense.objective(forward, x, y, cross_entropy, draws, 0)
    return np.array(found)


def test_mixup_s_weights_are_drawn_from_beta():
    # A pair of an example with itself, every second one, is not a mixture.
    found = weights_of(Mixup(2.0), 2000)
    mixed = found[np.abs(found - 1) > 1e-6]
    assert len(mixed) == pytest.approx(1000, abs=120)
    # Of Beta(2, 2) the mean is 1/2 and the variance 1/20.
    assert mixed.mean() == pytest.approx(0.5, abs=0.03)
    assert mixed.var() == pytest.approx(0.05, abs=0.01)
    half = weights_of(Mixup(2.0).with_strength(0.5), 2000)
    np.testing.assert_allclose(half, 1 - 0.5 * (1 - found), atol=1e-6)


def test_passes_are_counted_over_the_whole_training(build, mlp):
    """With one epoch a round, even and odd rounds differ, as the parity of RelaxLoss needs."""
    numbers = []

    class Recorded(Flooding):
        def objective(self, forward, x, y, loss, generator, number):
            numbers.append(number)
            return super().objective(forward, x, y, loss, generator, number)

    def found(local, number):
        numbers.clear()
        federation, at = build((8,) * 3), replace(local, objective=Recorded(0.1)).at_round(number)
        one = replace(federation, clients=federation.clients.take(torch.tensor([0])), ids=federation.ids[:1])
        with Engine(mlp) as engine:
            randomness = at.randomness(one.clients, one.ids, Stream(2))
            list(
                engine.train(mlp.init(Stream(1))[None], torch.zeros(1, dtype=torch.int64), one.clients, randomness, at)
            )
        return list(numbers)

    one = LocalSGD(epochs=1, batch_size=4, learning_rate=0.1)
    assert [found(one, number) for number in (1, 2, 3)] == [[0, 0], [1, 1], [2, 2]]
    assert found(replace(one, epochs=3), 2) == [3, 3, 4, 4, 5, 5]
    assert found(replace(one, epochs=None, steps=3), 2) == [2, 2, 3]
    assert found(replace(one, batch_size="all", epochs=2), 3) == [4, 5]
    assert one.at_round(5).rounds_earlier(3).rounds_done == 1
    assert one.at_round(2).rounds_earlier(3).rounds_done == 0


def test_clients_draw_independently_of_each_other(mlp, build):
    """Neither other clients nor threads change a bit of what one trains, and no two of them mix alike."""
    local, federation, order = replace(LOCAL, objective=Mixup(0.4)), build(), torch.tensor([3, 0, 5, 1, 4, 2])
    one = ends_of(mlp, federation, local, threads=1)
    assert torch.equal(ends_of(mlp, federation, local, threads=2), one)
    assert torch.equal(ends_of(mlp, federation.take(order), local, threads=2), one[order])


@pytest.mark.parametrize("defense", OBJECTIVES, ids=repr)
def test_one_objective_and_no_dp_sgd_beside_it(mlp, defense):
    setup, private = TrainingSetup(mlp, LOCAL, kind="images"), DPSGD(1.0, 0.5)
    sentence = "^DP-SGD cannot minimise"
    for both in ((defense, private), (private, defense)):
        with pytest.raises(InputError, match=sentence):
            apply_defenses(setup, both)
    with pytest.raises(InputError, match=sentence):
        LocalSGD(objective=defense, gradient_privacy=private)
    # Steps that are private in name alone are no obstacle.
    apply_defenses(setup, (DPSGD(math.inf, 0.0), defense))
    other = Flooding(0.1)
    name = type(defense).__name__
    with pytest.raises(InputError, match=f"^Flooding cannot be combined with {name}"):
        apply_defenses(setup, (other, defense))
    with pytest.raises(InputError, match=f"^{name} cannot be combined with Flooding"):
        replace(setup, defenses=(defense, other)).first_local()


def test_a_regression_mixes_and_floods_but_has_no_posteriors():
    draws = np.random.default_rng(0)
    data = [(draws.normal(size=(8, 5)).astype("float32"), draws.normal(size=(8, 1)).astype("float32")) for _ in "abc"]
    federation, model = (
        Federation.from_tensors(data, test=data[0], shadow=data[1], task="regression"),
        Model(lambda: nn.Linear(5, 1), squared_error),
    )
    local = replace(LOCAL, learning_rate=0.01)
    for defense in (Mixup(0.4), Flooding(0.5)):
        simulate(federation, model, FedAvg(), local, rounds=1, defenses=[defense])
    for defense in (RelaxLoss(0.5), CCL()):
        name = type(defense).__name__
        with pytest.raises(InputError, match=f"{name} needs a model with cross-entropy"):
            simulate(federation, model, FedAvg(), local, rounds=1, defenses=[defense])


def test_texts_are_not_mixed(batch):
    network, _, y = batch
    sentence = "^'mixup' needs numeric inputs"
    with pytest.raises(InputError, match=sentence):
        Mixup(0.4).apply(TrainingSetup(Model(lambda: Logistic(5, 3)), LOCAL, kind="texts"))
    with pytest.raises(InputError, match=sentence):
        Mixup(0.4).objective(network, torch.ones(6, 5, dtype=torch.int64), y, cross_entropy, torch.Generator(), 0)


# Shorter training


def test_a_share_of_the_steps_is_the_first_of_them(model, build):
    federation = build((8, 8, 8, 8, 8, 8))
    whole = LocalSGD(epochs=4, batch_size=4, learning_rate=0.2)
    for share, steps in ((0.5, 4), (0.37, 3), (0.01, 1)):
        short = ShorterTraining(share).apply(TrainingSetup(model, whole)).first_local()
        assert short.steps_of(8) == steps
        assert short.steps_each(torch.tensor([8, 12])).tolist() == [steps, max(1, round(12 * share))]
        first = LocalSGD(steps=steps, batch_size=4, learning_rate=0.2)
        assert torch.equal(ends_of(model, federation, short), ends_of(model, federation, first))
    twice = TrainingSetup(model, whole, defenses=(ShorterTraining(0.5), ShorterTraining(0.5))).first_local()
    assert twice == replace(whole, share=0.25)
    assert ShorterTraining(0.2).with_strength(0.5) == ShorterTraining(0.6)


def test_the_accountant_counts_the_steps_that_are_taken(mlp, build):
    rule, local = DPSGD(1.0, 1.0), LocalSGD(epochs=4, batch_size=4)
    found = simulate(build(), mlp, FedAvg(), local, rounds=2, defenses=[rule, ShorterTraining(0.5)], seed=1)
    steps = [2 * max(1, round(0.5 * local.steps_of(size))) for size in build().clients.sizes.tolist()]
    for size, count, spent in zip(build().clients.sizes.tolist(), steps, found.clients["epsilon"], strict=True):
        assert spent == accounting.composed_epsilon([(1.0, 4 / size, count)], 1e-5)


def test_scaffold_needs_all_steps(mlp, build):
    with pytest.raises(InputError, match="'share_of_steps' must be 1 with SCAFFOLD"):
        simulate(build(), mlp, Scaffold(), LOCAL, rounds=1, defenses=[ShorterTraining(0.5)])
