"""With DP-SGD, an example on which a model overflows counts as zero: no failure tells that it is there."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from sgd_by_hand import trained
from shoal.algorithms import IFCA
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.defenses import DPSGD, Augmentation
from shoal.engine import Engine, LocalSGD, Training
from shoal.engine.backends import gradient_clipping
from shoal.models import Model

BATCHES = LocalSGD(epochs=2, batch_size=5, learning_rate=0.1, momentum=0.5, weight_decay=0.1)
TWICE = {"augmentation": Augmentation(rotation=5.0), "multiplicity": 2}


def linear(*sizes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, sizes[0], bias=False),
        *(layer for pair in pairwise(sizes) for layer in (nn.ReLU(), nn.Linear(*pair, bias=False))),
    )  # fmt: skip


class Convolutions(nn.Module):
    onednn_layout = True

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.last, self.output = nn.Conv2d(4, 40, 3, stride=3, bias=False), nn.Linear(160, 3, bias=False)

    def forward(self, x):
        return self.output(torch.relu(self.last(torch.relu(self.first(x)))).flatten(1))


class Words(nn.Module):
    """Each pixel is a word: 0, which is left out, unless it is huge."""

    def __init__(self, recurrent=False):
        super().__init__()
        self.embedding, self.wide = nn.Embedding(9, 6), nn.Linear(6, 5, bias=False)
        self.along = nn.GRU(5, 4, bias=False, batch_first=True) if recurrent else nn.Linear(5, 4, bias=False)
        self.output = nn.Linear(4, 3, bias=False)
        with torch.no_grad():
            self.embedding.weight[8] = 3e37

    def forward(self, x):
        words = torch.where(x > 1e9, 8, x.abs().mul(4).long().clamp(0, 7)).flatten(1)
        x = self.wide(self.embedding(words) * 100 * (words > 0)[..., None])
        x = self.along(x)[0] if isinstance(self.along, nn.GRU) else self.along(x)
        return self.output(x.sum(dim=1))


NETWORKS = {
    "logistic": lambda: linear(3),
    "mlp": lambda: linear(8, 3),
    "deep": lambda: linear(8, 8, 3),
    "cnn": Convolutions,
    "dropout": lambda: nn.Sequential(*linear(30), nn.Dropout(0.3), nn.Linear(30, 3, bias=False)),
    "words": Words,
    "gru": lambda: Words(recurrent=True),
}


def with_record(federation, value):
    """``value`` in all pixels of three examples of two clients."""
    x = federation.clients.x.clone()
    rows = torch.cat([federation.clients.indices_of(0)[3:4], federation.clients.indices_of(3)[[0, 7]]])
    x[rows] = value
    return replace(federation, clients=replace(federation.clients, x=x))


@pytest.mark.parametrize("change", [{}, TWICE, {"sampling": "poisson"}], ids=["", "copies", "poisson"])
@pytest.mark.parametrize("vmap", [True, False], ids=["", "no batching rule"])
@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "loop") for name in NETWORKS), ("logistic", "vmap"), ("mlp", "vmap")]
)
def test_an_example_that_overflows_counts_as_zero(build, monkeypatch, name, backend, vmap, change):
    """Without biases the gradient of an image of zeros is zero."""
    if not vmap:
        monkeypatch.setattr(gradient_clipping.PerExampleClipper, "_by_vmap", lambda *_: None)
    if "sampling" in change:
        local = replace(BATCHES, gradient_privacy=DPSGD(0.3, 0.2, **change))
    else:
        local = replace(BATCHES, gradient_privacy=DPSGD(0.3, 0.2), **change)
    model = Model(NETWORKS[name])
    zero = trained(model, with_record(build(), 0.0), local, backend=backend)
    assert zero.isfinite().all()
    for value in (1e30, 3e38, float("nan")):
        assert torch.equal(trained(model, with_record(build(), value), local, backend=backend), zero)


def test_a_choice_by_losses_that_overflow_is_made_with_dp_sgd_alone(build):
    federation, model = with_record(build(), 3e38), Model(NETWORKS["cnn"])
    chosen = replace(BATCHES, gradient_privacy=DPSGD(0.3, 0.2))
    with Engine(model) as engine:
        training = Training(federation, IFCA(clusters=2), chosen, engine, Stream(2))
        state, _ = training.round(training.start())
        assert state.models.isfinite().all()
        training.deployed_models(state)
        with pytest.raises(InputError, match="the loss became NaN in round 1 at client 0"):
            replace(training, local=BATCHES).round(training.start())


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("copies", [1, 2])
def test_a_gradient_whose_factors_underflow_when_squared_is_clipped(backend, copies):
    """Inputs of 1e18 and errors of 1e-23 make a gradient of 1e-4, but a square of 1e-46 is 0."""
    x, y = torch.full((1, 1, 6, 6), 1e18), torch.tensor([0])
    federation = Federation.from_tensors([(x, y)], test=(x, y), classes=3)
    model, local = Model(NETWORKS["logistic"]), LocalSGD(steps=1, batch_size="all", learning_rate=1.0)
    local = replace(local, gradient_privacy=DPSGD(1e-6), multiplicity=copies)
    starts = torch.cat([torch.full((1, 36), 53e-18 / 36), torch.zeros(1, 72)], dim=1)
    moved = trained(model, federation, local, starts=starts, backend=backend) - starts
    assert 0 < float(moved.norm()) <= 1.001e-6


def test_a_bound_near_underflow_is_refused():
    with pytest.raises(InputError, match="max_grad_norm"):
        DPSGD(1e-30, 1.0)
