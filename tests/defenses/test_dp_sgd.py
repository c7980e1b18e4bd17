"""DP-SGD: what a private step is, where it is a plain one, and what it refuses."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from full_simulation import simulate_with
from shoal import FedAvg
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import DPSGD, TrainingSetup
from shoal.engine import Engine, LocalSGD, resolve_backend
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.models import VGG, Model

NOTHING = DPSGD(math.inf, 0.0)
LOCALS = {
    "epochs": LocalSGD(epochs=3, batch_size=4, learning_rate=0.2),
    "steps": LocalSGD(steps=7, batch_size=4, learning_rate=0.2, weight_decay=0.1),
    "full batch": LocalSGD(steps=5, batch_size="all", learning_rate=0.3),
}


@pytest.fixture(params=list(LOCALS))
def local(request):
    return LOCALS[request.param]


def trained(model, federation, local, **settings):
    """(N, P): where every client's training ends."""
    starts = model.init(Stream(1))[None]
    which = torch.zeros(len(federation), dtype=torch.int64)
    randomness = local.randomness(federation.clients, federation.ids, Stream(2))
    ends = torch.empty(len(federation), model.layout.size)
    with Engine(model, **settings) as engine:
        ready = engine.prepare(federation)
        for owners, rows in engine.train(starts, which, ready.clients, randomness, local):
            ends[owners] = rows
    return ends


def test_neither_clipping_nor_noise_is_the_plain_step_bit_for_bit(model, build, local):
    for backend in (None, "loop"):
        plain = trained(model, build(), local, backend=backend)
        assert torch.equal(trained(model, build(), replace(local, gradient_privacy=NOTHING), backend=backend), plain)


def test_a_huge_clip_without_noise_is_plain_sgd(model, build, local):
    """Where batches divide the examples: a shorter last batch is divided by its own size in plain SGD alone."""
    federation = build((8, 12, 4, 12, 8, 16))
    plain = trained(model, federation, local, backend="loop")
    private = replace(local, gradient_privacy=DPSGD(1e6))
    assert private.private
    torch.testing.assert_close(trained(model, federation, private), plain, rtol=1e-4, atol=1e-6)


def test_the_noise_of_a_shorter_last_batch_is_divided_by_the_nominal_batch_size(mlp, build):
    """18 examples in batches of 16 and 2, and gradients of nothing beside the noise: two steps of lr sigma C / 16."""
    rate, sigma, clip = 0.1, 1e4, 1e-4
    federation = build((18,) * 4)
    local = LocalSGD(epochs=1, batch_size=16, learning_rate=rate, gradient_privacy=DPSGD(clip, sigma))
    moved = trained(mlp, federation, local) - mlp.init(Stream(1))
    randomness = local.randomness(federation.clients, federation.ids, Stream(2))
    second = []
    for i, row in enumerate(moved):
        assert local.steps_of(18) == 2
        noise = Stream(int(randomness.seeds[i]))("noise").generator()
        first, drawn = (sigma * clip * torch.randn(mlp.layout.size, generator=noise) for _ in range(2))
        second.append(row + rate * first / 16)
        torch.testing.assert_close(second[-1], -rate * drawn / 16, rtol=0, atol=rate * clip * 18 / 16)
    # The standard deviation of 4 * 323 numbers is known to 2 %.
    assert float(torch.stack(second).std()) == pytest.approx(rate * sigma * clip / 16, rel=0.06)


def test_the_gradients_of_a_shorter_last_batch_are_divided_by_the_nominal_batch_size(model, build):
    federation = build((18,) * 3)
    local = LocalSGD(epochs=2, batch_size=16, learning_rate=0.2, weight_decay=0.1)
    for rule in (DPSGD(1e6), DPSGD(0.3), DPSGD(0.3, 0.7)):
        private = replace(local, gradient_privacy=rule)
        found, expected = trained(model, federation, private), by_hand(model, federation, private)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_coins_that_always_fall_for_every_example_are_full_batches(model, build):
    local = LocalSGD(steps=5, batch_size=12, learning_rate=0.3)
    coins = replace(local, gradient_privacy=DPSGD(math.inf, sampling="poisson"))
    full = replace(local, batch_size="all")
    torch.testing.assert_close(
        trained(model, build((12,) * 3), coins),
        trained(model, build((12,) * 3), full, backend="loop"),
        rtol=1e-4,
        atol=1e-6,
    )


def by_hand(model, federation, local):
    """DP-SGD as the paper writes it, one example after another, and each sum over the nominal batch size."""
    rule, ends = local.gradient_privacy, []
    randomness = local.randomness(federation.clients, federation.ids, Stream(2))
    for i in range(len(federation)):
        seat = BoundNetwork(model, torch.device("cpu"), torch.float32)
        seat.load(model.init(Stream(1)))
        rows, own = federation.clients.owned(i), Stream(int(randomness.seeds[i]))
        x, y, size = federation.clients.x[rows], federation.clients.y[rows], len(rows)
        batch = local.batch(size)
        if rule.poisson:
            coins = own("coins").generator()
            taken = [
                torch.nonzero(torch.rand(size, generator=coins, dtype=torch.float64) < batch / size).flatten()
                for _ in range(local.steps_of(size))
            ]
        else:
            taken = [each for order in randomness.orders[i] for each in order[:size].split(batch)][
                : local.steps_of(size)
            ]
        noise = own("noise").generator()
        for each in taken:
            total = torch.zeros(model.layout.size)
            for j in each.tolist():
                loss = nn.functional.cross_entropy(seat.network(x[j : j + 1]), y[j : j + 1])
                slopes = torch.autograd.grad(loss, list(seat.network.parameters()))
                row = model.layout.pack(dict(zip(dict(seat.network.named_parameters()), slopes, strict=True)))
                total += row * min(1.0, rule.max_grad_norm / float(row.norm()))
            total += rule.noise_multiplier * rule.max_grad_norm * torch.randn(model.layout.size, generator=noise)
            seat.row -= local.learning_rate * (total / batch + local.weight_decay * seat.row)
        ends.append(seat.row.clone())
    return torch.stack(ends)


@pytest.mark.parametrize("sampling", ["shuffled", "poisson"])
def test_private_training_is_the_paper_s(model, build, sampling):
    local = LocalSGD(epochs=3, batch_size=4, learning_rate=0.1, weight_decay=0.1)
    private = replace(local, gradient_privacy=DPSGD(0.5, 0.7, sampling=sampling))
    torch.testing.assert_close(trained(model, build(), private), by_hand(model, build(), private), rtol=1e-4, atol=1e-5)


def test_an_empty_batch_is_a_step_of_noise_alone(mlp, build):
    # With one of 60 examples expected, more than a third of the steps have none.
    local = LocalSGD(steps=1, batch_size=1, learning_rate=0.1, gradient_privacy=DPSGD(0.5, 2.0, sampling="poisson"))
    federation = build((60,) * 6)
    ends, randomness = trained(mlp, federation, local), local.randomness(federation.clients, federation.ids, Stream(2))
    lone = 0
    for i in range(6):
        own = Stream(int(randomness.seeds[i]))
        if not (torch.rand(60, generator=own("coins").generator(), dtype=torch.float64) < 1 / 60).any():
            lone += 1
            expected = mlp.init(Stream(1)) - 0.1 * torch.randn(mlp.layout.size, generator=own("noise").generator())
            torch.testing.assert_close(ends[i], expected)
    assert 0 < lone < 6


@pytest.mark.parametrize("sampling", ["shuffled", "poisson"])
def test_neither_threads_nor_other_clients_change_a_bit(model, build, sampling):
    local = replace(LOCALS["epochs"], gradient_privacy=DPSGD(0.5, 0.7, sampling=sampling))
    federation, order = build(), torch.tensor([3, 0, 5, 1, 4, 2])
    one = trained(model, federation, local, threads=1)
    assert torch.equal(trained(model, federation, local, threads=2), one)
    assert torch.equal(trained(model, federation.take(order), local, threads=2), one[order])
    assert len({row.sum().item() for row in one}) == 6


def test_bf16_learns_on_a_master_copy(cnn, build):
    local = replace(LOCALS["epochs"], gradient_privacy=DPSGD(0.5, 0.1))
    start = cnn.init(Stream(1))
    moved, exact = (trained(cnn, build(), local, precision=each) - start for each in ("bf16", "fp32"))
    assert 0 < float((moved - exact).norm()) < 0.05 * float(exact.norm())


def test_private_steps_are_the_loop_s(mlp, build):
    private = replace(LOCALS["epochs"], gradient_privacy=DPSGD(1.0, 0.5))
    assert (resolve_backend(mlp), resolve_backend(mlp, private)) == ("vmap", "loop")
    assert torch.equal(trained(mlp, build(), private), trained(mlp, build(), private, backend="loop"))
    # A directive may ask for them in one round alone, so an engine of vmap loops them; a configuration is refused.
    assert torch.equal(trained(mlp, build(), private, backend="vmap"), trained(mlp, build(), private, backend="loop"))
    with pytest.raises(InputError, match="backend 'vmap' cannot clip the gradients"):
        simulate_with(build(), mlp, FedAvg(), LOCALS["epochs"], rounds=1, defenses=[DPSGD(1.0, 0.5)], backend="vmap")


def test_batch_norm_is_refused_before_anything_runs():
    setup = TrainingSetup(Model(VGG), LOCALS["epochs"])
    with pytest.raises(InputError, match="norm = 'group'"):
        DPSGD(1.0, 0.5).applied(setup)
    assert NOTHING.applied(setup).first_local().gradient_privacy == NOTHING
    DPSGD(1.0, 0.5).applied(TrainingSetup(Model(lambda: VGG(norm="group")), LOCALS["epochs"]))


def test_steps_are_private_once():
    setup = DPSGD(1.0, 0.5).applied(TrainingSetup(Model(lambda: nn.Linear(2, 2)), LOCALS["epochs"]))
    with pytest.raises(InputError, match="private already"):
        DPSGD(1.0, 0.5).applied(setup)
