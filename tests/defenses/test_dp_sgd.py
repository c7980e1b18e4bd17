"""DP-SGD: what a private step is, where it is a plain one, and what it refuses."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from sgd_by_hand import ends_of
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import DPSGD, TrainingSetup
from shoal.engine import LocalSGD
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


def test_neither_clipping_nor_noise_is_the_plain_step_bit_for_bit(model, build, local):
    for backend in (None, "loop"):
        plain = ends_of(model, build(), local, backend=backend)
        assert torch.equal(ends_of(model, build(), replace(local, gradient_privacy=NOTHING), backend=backend), plain)


def test_a_huge_clip_without_noise_is_plain_sgd(model, build, local):
    """Where batches divide the examples: a shorter last batch is divided by its own size in plain SGD alone."""
    federation = build((8, 12, 4, 12, 8, 16))
    plain = ends_of(model, federation, local, backend="loop")
    private = replace(local, gradient_privacy=DPSGD(1e6))
    assert private.private
    torch.testing.assert_close(ends_of(model, federation, private), plain, rtol=1e-4, atol=1e-6)


def test_the_gradients_of_a_shorter_last_batch_are_divided_by_the_nominal_batch_size(model, build):
    federation = build((18,) * 3)
    local = LocalSGD(epochs=2, batch_size=16, learning_rate=0.2, weight_decay=0.1)
    for rule in (DPSGD(1e6), DPSGD(0.3), DPSGD(0.3, 0.7)):
        private = replace(local, gradient_privacy=rule)
        found, expected = ends_of(model, federation, private), by_hand(model, federation, private)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def by_hand(model, federation, local):
    """DP-SGD as the paper writes it, one example after another, and each sum over the nominal batch size."""
    rule, ends = local.gradient_privacy, []
    randomness = local.randomness(federation.clients, federation.ids, Stream(2))
    for i in range(len(federation)):
        seat = BoundNetwork(model, torch.device("cpu"), torch.float32)
        seat.load(model.init(Stream(1)))
        rows, own = federation.clients.indices_of(i), Stream(int(randomness.seeds[i]))
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


# With one example expected, more than a third of the steps have none: they are noise alone.
@pytest.mark.parametrize(("sampling", "batch_size"), [("shuffled", 4), ("poisson", 4), ("poisson", 1)])
def test_private_training_is_the_paper_s(model, build, sampling, batch_size):
    local = LocalSGD(epochs=3, batch_size=batch_size, learning_rate=0.1, weight_decay=0.1)
    private = replace(local, gradient_privacy=DPSGD(0.5, 0.7, sampling=sampling))
    torch.testing.assert_close(ends_of(model, build(), private), by_hand(model, build(), private), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sampling", ["shuffled", "poisson"])
def test_neither_threads_nor_other_clients_change_a_bit(model, build, sampling):
    local = replace(LOCALS["epochs"], gradient_privacy=DPSGD(0.5, 0.7, sampling=sampling))
    federation, order = build(), torch.tensor([3, 0, 5, 1, 4, 2])
    one = ends_of(model, federation, local, threads=1)
    assert torch.equal(ends_of(model, federation, local, threads=2), one)
    assert torch.equal(ends_of(model, federation.take(order), local, threads=2), one[order])
    assert len({row.sum().item() for row in one}) == 6


def test_bf16_learns_on_a_master_copy(cnn, build):
    local = replace(LOCALS["epochs"], gradient_privacy=DPSGD(0.5, 0.1))
    start = cnn.init(Stream(1))
    moved, exact = (ends_of(cnn, build(), local, precision=each) - start for each in ("bf16", "fp32"))
    assert 0 < float((moved - exact).norm()) < 0.05 * float(exact.norm())


def test_batch_norm_is_refused_before_anything_runs():
    setup = TrainingSetup(Model(VGG), LOCALS["epochs"])
    with pytest.raises(InputError, match="norm = 'group'"):
        DPSGD(1.0, 0.5).apply(setup)
    assert NOTHING.apply(setup).first_local().gradient_privacy == NOTHING
    DPSGD(1.0, 0.5).apply(TrainingSetup(Model(lambda: VGG(norm="group")), LOCALS["epochs"]))


def test_steps_are_private_once():
    setup = DPSGD(1.0, 0.5).apply(TrainingSetup(Model(lambda: nn.Linear(2, 2)), LOCALS["epochs"]))
    with pytest.raises(InputError, match="'dp_sgd' must not be applied twice"):
        DPSGD(1.0, 0.5).apply(setup)
