"""Gradients of single examples, and sums of clipped ones, against one example at a time by autograd, and Opacus."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from shoal.core.randomness import Stream
from shoal.engine import Engine
from shoal.engine.backends import gradient_clipping
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.engine.backends.gradient_clipping import PerExampleClipper
from shoal.engine.backends.selection import vmap_obstacle
from shoal.models import VGG, MnistCNN, Model, cross_entropy

CPU = torch.device("cpu")


class Convolutions(nn.Module):
    """Of all kinds: strided, dilated, in groups, few places and many, with bias and without."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 8, 3, padding=1, bias=False)
        self.grouped = nn.Conv2d(8, 8, (3, 2), stride=2, groups=4)
        self.last = nn.Conv2d(8, 40, 3, dilation=2, padding=2)
        self.output = nn.Linear(40, 3)

    def forward(self, x):
        x = functional.relu(self.grouped(torch.tanh(self.first(x))))
        return self.output(functional.avg_pool2d(self.last(x), 2).amax(dim=(2, 3)))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.group = nn.Conv2d(2, 8, 3), nn.GroupNorm(4, 8)
        self.layer, self.output = nn.LayerNorm((8, 4)), nn.Linear(32, 3)
        for each in (self.group, self.layer):
            nn.init.uniform_(each.weight, 0.5, 2.0)

    def forward(self, x):
        x = torch.relu(self.group(self.convolution(x))).mean(dim=3)
        return self.output(self.layer(x).flatten(1))


class Words(nn.Module):
    """Tokens through an embedding, linear layers at every place, and a convolution along them."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 6, padding_idx=0)
        self.wide, self.narrow, self.along = nn.Linear(6, 30), nn.Linear(30, 2, bias=False), nn.Conv1d(2, 4, 2)
        self.output = nn.Linear(4, 3)

    def forward(self, words):
        x = self.narrow(torch.tanh(self.wide(self.embedding(words))))
        return self.output(self.along(x.transpose(1, 2)).amax(dim=2))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru, self.output = nn.Embedding(9, 6), nn.GRU(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, words):
        return self.output(self.gru(self.embedding(words))[0][:, -1])


class Tied(nn.Module):
    """Uses one layer twice, and another's weight without calling it."""

    def __init__(self, hidden=True):
        super().__init__()
        self.embedding, self.twice, self.output = nn.Embedding(9, 9), nn.Linear(9, 9), nn.Linear(9, 3)
        self.hidden = hidden

    def forward(self, words):
        x = torch.tanh(self.twice(self.embedding(words).mean(dim=1)))
        x = functional.linear(x, self.embedding.weight) if self.hidden else torch.tanh(self.twice(x))
        return self.output(x)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other, self.output = nn.Linear(72, 72), nn.Linear(72, 72), nn.Linear(72, 3)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.output(torch.tanh(self.other(torch.tanh(self.one(x.flatten(1))))))


class Partly(nn.Module):
    """Some parameters do not train."""

    def __init__(self):
        super().__init__()
        self.frozen, self.later, self.output = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(16, 3)
        for each in (*self.frozen.parameters(), self.later.bias):
            each.requires_grad_(False)

    def forward(self, x):
        return self.output(self.later(self.frozen(x)).flatten(1))


class Mixing(nn.Module):
    """Compares examples with each other: alone, each is what it is compared with."""

    def __init__(self):
        super().__init__()
        self.hidden, self.output = nn.Linear(72, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = self.hidden(x.flatten(1))
        return self.output(torch.sigmoid(x - 0.5 * x.mean(dim=0)))


IMAGES = {
    "convolutions": Convolutions,
    "norms": Normed,
    "instance norm": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)
    ),
    "shared": Shared,
    "partly frozen": Partly,
    "mixing": Mixing,
}
WORDS = {"words": Words, "gru": Recurrent, "tied": Tied, "twice": lambda: Tied(hidden=False)}
FAST = ("convolutions", "norms", "partly frozen", "words")


def batch(name, count=7):
    draw = torch.Generator().manual_seed(3)
    y = torch.randint(0, 3, (count,), generator=draw)
    if name in WORDS:
        return torch.randint(0, 9, (count, 5), generator=draw), y
    return torch.rand(count, 6, 6, 2, generator=draw).movedim(-1, 1), y


def network_of(model, dtype=torch.float32):
    network = BoundNetwork(model, CPU, dtype)
    network.load(model.init(Stream(4)))
    network.network.train()
    return network


def one_by_one(network, x, y, bound):
    """The slow, obvious twin."""
    trained = {name: each for name, each in network.network.named_parameters() if each.requires_grad}
    total = {name: torch.zeros(each.shape) for name, each in trained.items()}
    norms = []
    for i in range(len(x)):
        loss = cross_entropy(network.network(x[i : i + 1]).float(), y[i : i + 1]).sum()
        gradients = [each.float() for each in torch.autograd.grad(loss, list(trained.values()))]
        norms.append(float(torch.cat([each.flatten() for each in gradients]).norm()))
        for name, gradient in zip(trained, gradients, strict=True):
            total[name] += gradient * min(1.0, bound / norms[-1])
    return total, norms


def close(found, expected, share=1e-4):
    assert list(found) == list(expected)
    size = torch.cat([each.flatten() for each in expected.values()]).norm()
    for name, each in found.items():
        assert each.dtype == torch.float32
        assert each.shape == expected[name].shape
        assert float((each - expected[name]).norm()) <= share * float(size), name


@pytest.mark.parametrize("name", [*IMAGES, *WORDS])
def test_clipped_sums_are_those_of_one_example_at_a_time(name, monkeypatch):
    network, (x, y) = network_of(Model((IMAGES | WORDS)[name])), batch(name)
    _, norms = one_by_one(network, x, y, 1.0)
    slow = []
    each = PerExampleClipper._by_example
    monkeypatch.setattr(PerExampleClipper, "_by_example", lambda self, *given: slow.append(1) or each(self, *given))
    sums = PerExampleClipper(network.network, cross_entropy, torch.float32)
    for bound in (sorted(norms)[3], 0.5 * min(norms), 2 * max(norms), float("inf")):
        close(sums(network._forward, x, y, bound), one_by_one(network, x, y, bound)[0])
    assert bool(slow) == (name not in FAST)
    close(sums(network._forward, x[:1], y[:1], 0.1), one_by_one(network, x[:1], y[:1], 0.1)[0])


def test_clipping_without_a_batching_rule_goes_one_by_one(monkeypatch):
    def refuse(*given, **named):
        raise RuntimeError("no batching rule")

    monkeypatch.setattr(gradient_clipping, "vmap", refuse)
    network, (x, y) = network_of(Model(Recurrent)), batch("gru")
    close(
        PerExampleClipper(network.network, cross_entropy, torch.float32)(network._forward, x, y, 0.2),
        one_by_one(network, x, y, 0.2)[0],
    )


@pytest.mark.parametrize("name", ["gru", "tied", "twice", "shared", "mixing"])
def test_networks_without_ghost_norms_are_clipped_by_vmap(name):
    network, (x, y) = network_of(Model((IMAGES | WORDS)[name])), batch(name)
    sums = PerExampleClipper(network.network, cross_entropy, torch.float32)
    sums(network._forward, x, y, 0.2)
    assert sums._batched


def test_a_clipped_gradient_has_at_most_the_bound_s_norm():
    network, (x, y) = network_of(Model(Convolutions)), batch("convolutions")
    sums = PerExampleClipper(network.network, cross_entropy, torch.float32)
    for i in range(len(x)):
        found = sums(network._forward, x[i : i + 1], y[i : i + 1], 0.01)
        assert float(torch.cat([each.flatten() for each in found.values()]).norm()) == pytest.approx(0.01, rel=1e-4)


def test_terms_of_a_norm_that_cancel_do_not_hide_it():
    """The gradient of a word that stands twice is the difference of two numbers that are far above the bound."""
    network = network_of(Model(lambda: nn.Sequential(nn.Embedding(1, 2), nn.Flatten(), nn.Linear(4, 2))))
    sums = PerExampleClipper(network.network, cross_entropy, torch.float32)
    x, y = torch.zeros(1, 2, dtype=torch.int64), torch.tensor([1])
    for part in range(1, 9):
        with torch.no_grad():
            network.network[0].weight.fill_(1.0)
            network.network[2].weight.copy_(1e15 * torch.tensor([[1, 1, 1e-6 * part - 1, -1], [0, 0, 0, 0]]))
        found = torch.cat([each.flatten() for each in sums(network._forward, x, y, 0.1).values()])
        assert float(found.norm()) <= 0.1001


@pytest.mark.parametrize("build", [MnistCNN, lambda: VGG(depth=11, norm="group")], ids=["mnist-cnn", "vgg11"])
def test_networks_of_the_papers_are_clipped_by_ghost_norms(build):
    network = network_of(Model(build))
    shape = (28, 28, 1) if build is MnistCNN else (32, 32, 3)
    draw = torch.Generator().manual_seed(3)
    x, y = torch.rand(3, *shape, generator=draw).movedim(-1, 1), torch.tensor([0, 4, 9])
    bound = one_by_one(network, x, y, 1.0)[1][1]
    sums = PerExampleClipper(network.network, cross_entropy, torch.float32)
    close(sums(network._forward, x, y, bound), one_by_one(network, x, y, bound)[0], 2e-3)
    assert sums._layers is not None


@pytest.mark.parametrize("name", ["convolutions", "words", "gru"])
def test_clipped_sums_in_bf16_are_close_to_one_by_one(name):
    x, y = batch(name)
    x = x if name in WORDS else x.bfloat16()
    network = network_of(Model((IMAGES | WORDS)[name]), torch.bfloat16)
    bound = sorted(one_by_one(network, x, y, 1.0)[1])[3]
    sums = PerExampleClipper(network.network, cross_entropy, torch.bfloat16)
    close(sums(network._forward, x, y, bound), one_by_one(network, x, y, bound)[0], 0.03)
    assert (sums._layers is not None) == (name in FAST)


def test_opacus_finds_the_same_gradients():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.grad_sample import GradSampleModule  # noqa: PLC0415

    def build():
        return nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 40, (3, 2), stride=2), nn.GroupNorm(4, 40),
            nn.ReLU(), nn.Flatten(), nn.Linear(240, 3),
        )  # fmt: skip

    network, (x, y) = network_of(Model(build)), batch("convolutions")
    # Opacus reads images in PyTorch's first layout alone.
    plain = build()
    plain.load_state_dict({name: each.contiguous() for name, each in network.network.state_dict().items()})
    model = GradSampleModule(plain, loss_reduction="sum")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch on the hooks that Opacus sets.
        cross_entropy(model(x.contiguous()), y).sum().backward()
    each = {name: p.grad_sample.detach() for name, p in plain.named_parameters()}
    norms = torch.stack([g.flatten(1).square().sum(dim=1) for g in each.values()]).sum(dim=0).sqrt()
    bound = float(norms.median())
    kept = (bound / norms).clamp(max=1)
    expected = {name: torch.einsum("b,b...->...", kept, g) for name, g in each.items()}
    close(PerExampleClipper(network.network, cross_entropy, torch.float32)(network._forward, x, y, bound), expected)


class RecurrentRows(nn.Module):
    """A recurrent layer, whose backward pass torch.func does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.output = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.layer(x)[0][:, -1])


def partly_frozen() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    network[1].requires_grad_(False)
    return network


@pytest.mark.parametrize("build", [RecurrentRows, partly_frozen], ids=["recurrent", "partly frozen"])
@pytest.mark.parametrize("batch", [1, 2, 4, 5, 9])
def test_each_example_has_its_own_gradient_in_batches_of_any_size(build, batch, monkeypatch):
    monkeypatch.setattr("shoal.engine.engine.batch_of_gradients", lambda _: batch)
    model = Model(build)
    row, x, y = model.init(Stream(0)), torch.randn(9, 2, 3, generator=Stream(1).generator()), torch.arange(9) % 3
    with Engine(model, threads=1) as engine:
        found = torch.cat(list(engine.example_gradients_into(torch.clone, row, x, y)))
    network = build().eval()
    network.load_state_dict(model.state_dict(row))
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for i, gradient in enumerate(found):
        loss = cross_entropy(network(x[i : i + 1]), y[i : i + 1]).sum()
        expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, trained)])
        torch.testing.assert_close(gradient, expected)


class Centred(nn.Linear):
    """A linear layer of inputs without the mean of their batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(dim=0))


class Branching(nn.Linear):
    """A linear layer that looks at its inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if x.sum() > 0 else -x)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize(
    ("network", "obstacle"),
    [
        (lambda: nn.Linear(4, 3), None),
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), None),
        (lambda: Centred(4, 3), "an example's output depends on the other examples of the batch"),
        (lambda: Branching(4, 3), "PyTorch says: It looks like you"),
        (lambda: nn.Linear(5, 3), None),
    ],
    ids=["linear", "layers", "mean of the batch", "if", "neither backend"],
)
def test_vmap_is_refused_where_it_would_not_give_the_loop_s_gradients(network, obstacle, count):
    x, y = torch.randn(count, 4, generator=Stream(0).generator()), torch.arange(count) % 3
    found = vmap_obstacle(Model(network), x, y)
    assert found is None if obstacle is None else found.startswith(obstacle)
