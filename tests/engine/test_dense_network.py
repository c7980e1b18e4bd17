"""Written-out gradients against `torch.optim.SGD`, and augmentation, private steps and units of either backend."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from sgd_by_hand import CLOSE, by_hand, starts_of, trained
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.defenses import DPSGD, Augmentation
from shoal.engine import Engine, LinearTerm, LocalSGD
from shoal.engine.backends import vmap_backend
from shoal.engine.backends.dense_network import DenseNetwork, dense_network, row_class
from shoal.engine.local_sgd import Gradient
from shoal.models import MLP, Logistic, Model, cross_entropy, squared_error

NETWORKS = {
    "mlp": lambda: MLP(36, 8, 3),
    "logistic": lambda: Logistic(36, 3),
    "no bias": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(36, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)
    ),
}
LOCALS = {
    "mini-batches": LocalSGD(epochs=2, batch_size=5, learning_rate=0.2),
    "full batches": LocalSGD(steps=7, batch_size="all", learning_rate=0.3),
    "a full batch of some": LocalSGD(epochs=6, batch_size=12, learning_rate=0.2),
    "weight decay": LocalSGD(steps=5, batch_size=4, learning_rate=0.2, weight_decay=0.1),
    "full batches, weight decay": LocalSGD(steps=7, batch_size="all", learning_rate=0.2, weight_decay=0.2),
    "momentum": LocalSGD(epochs=2, batch_size=5, learning_rate=0.1, momentum=0.7, weight_decay=0.1),
    "clipping": LocalSGD(epochs=2, batch_size="all", learning_rate=0.3, clip_norm=0.5),
    "some tensors": LocalSGD(steps=4, batch_size="all", learning_rate=0.3),
}


def local_of(name, model):
    tensors = frozenset(model.layout.trainable_names[-1:]) if name == "some tensors" else None
    return replace(LOCALS[name], tensors=tensors)


@pytest.fixture(params=list(NETWORKS))
def dense(request: pytest.FixtureRequest) -> Model:
    return Model(NETWORKS[request.param])


@pytest.fixture
def spans(monkeypatch):
    """The calls of `train_in_span`."""
    calls, train = [], DenseNetwork.train_in_span
    monkeypatch.setattr(DenseNetwork, "train_in_span", lambda *given: (calls.append(given), train(*given))[1])
    return calls


@pytest.mark.parametrize("name", list(LOCALS))
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
def test_written_out_gradients_are_torch_sgd_s(dense, build, spans, name, weighted):
    federation, local, weights = build(), local_of(name, dense), None
    if weighted:
        weights = torch.rand(len(federation.clients.indices), generator=torch.Generator().manual_seed(0))
    found = trained(dense, federation, local, weights=weights, backend="vmap")
    torch.testing.assert_close(found, by_hand(dense, federation, local, weights=weights), rtol=1e-4, atol=1e-5)
    # Full batches are cheaper in the span of their inputs; one client has as many examples as a mini-batch.
    assert bool(spans) == ("full batch" in name or name == "mini-batches")


def test_images_of_several_channels_reach_the_first_layer_in_order(spans):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(8, 3, 4, 4, generator=draw), torch.arange(8) % 3
    federation, model = Federation.from_tensors([(x, y)] * 2, test=(x, y)), Model(lambda: MLP(48, 8, 3))
    for local in (LocalSGD(steps=2, batch_size=4), LocalSGD(steps=20, batch_size="all", learning_rate=0.3)):
        expected = by_hand(model, federation, local)
        torch.testing.assert_close(trained(model, federation, local, backend="vmap"), expected, **CLOSE)
    assert len(spans) == 1


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("steps", [2, 30])
def test_a_regression_is_the_loop_s(targets, steps):
    draw = torch.Generator().manual_seed(4)
    given = [(torch.randn(8, 30, generator=draw), torch.randn(8, targets, generator=draw)) for _ in range(3)]
    federation = Federation.from_tensors(given, test=given[0], task="regression")
    model, local = Model(lambda: MLP(30, 20, targets), squared_error), LocalSGD(steps=steps, batch_size="all")
    loop, dense = (trained(model, federation, local, backend=each) for each in ("loop", "vmap"))
    torch.testing.assert_close(dense, loop, rtol=1e-4, atol=1e-5)


def frozen_head() -> nn.Module:
    network = MLP(36, 8, 3)
    network.output.requires_grad_(requires_grad=False)
    return network


def tied() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer)


class Own(MLP):
    """Another network of the same layers."""


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (Model(lambda: MLP(4, 3, 2)), 2),
        (Model(lambda: nn.Linear(4, 2)), 1),
        (Model(lambda: nn.Sequential(nn.Linear(4, 2))), 1),
        (Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), squared_error), 2),
        (Model(lambda: nn.Sequential(nn.Flatten(0), nn.Linear(4, 2))), 0),
        (Model(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))), 0),
        (Model(lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))), 0),
        (Model(lambda: nn.Linear(4, 2), lambda outputs, labels: 2 * cross_entropy(outputs, labels)), 0),
        (Model(lambda: nn.Linear(4, 2), outputs=lambda result: 2 * result), 0),
        (Model(frozen_head), 0),
        (Model(tied), 0),
        (Model(lambda: Own(4, 3, 2)), 0),
    ],
)
def test_the_rule_takes_these_networks_alone(model, layers):
    found = dense_network(model)
    assert (0 if found is None else len(found.layers)) == layers


AUGMENTED = Augmentation(20.0, 1.0, flip=True, crop=0.2)
MORE = {
    **LOCALS,
    "augmented": replace(LOCALS["mini-batches"], augmentation=AUGMENTED),
    "augmented, full batches": replace(LOCALS["full batches"], augmentation=AUGMENTED),
    "two copies": replace(LOCALS["momentum"], augmentation=AUGMENTED, multiplicity=2),
    "two copies, full batches": replace(LOCALS["full batches, weight decay"], augmentation=AUGMENTED, multiplicity=2),
    "private": replace(LOCALS["mini-batches"], gradient_privacy=DPSGD(0.3, 0.2)),
    "private, two copies": replace(
        LOCALS["momentum"], gradient_privacy=DPSGD(0.3, 0.0), augmentation=AUGMENTED, multiplicity=2
    ),
    "private, full batches, three copies": replace(
        LOCALS["full batches"], gradient_privacy=DPSGD(0.2, 0.1), augmentation=AUGMENTED, multiplicity=3
    ),
}


@pytest.mark.parametrize("name", [name for name in MORE if name not in LOCALS])
def test_augmented_and_private_steps_are_the_loop_s(dense, build, name):
    """Clients of unequal sizes; the loop is held to its slow twin elsewhere."""
    federation = build()
    found, loop = (trained(dense, federation, MORE[name], backend=backend) for backend in ("vmap", "loop"))
    torch.testing.assert_close(found, loop, rtol=1e-4, atol=1e-5)
    plain = replace(MORE[name], augmentation=None, gradient_privacy=None, multiplicity=1)
    assert not torch.allclose(found, trained(dense, federation, plain, backend="vmap"), atol=1e-3)


@pytest.mark.parametrize("name", [name for name in MORE if name.startswith(("augmented", "two"))])
def test_augmentation_under_vmap_is_the_loop_s(model, build, name):
    found, loop = (trained(model, build(), MORE[name], backend=backend) for backend in ("vmap", "loop"))
    torch.testing.assert_close(found, loop, rtol=1e-4, atol=1e-5)


def test_private_steps_train_some_tensors_and_take_terms_as_the_loop_does(build):
    model, federation = Model(NETWORKS["mlp"]), build()
    draw = torch.Generator().manual_seed(3)
    term = LinearTerm(torch.linspace(0, 1, 6), torch.randn(6, model.layout.size, generator=draw))
    for name in model.layout.trainable_names:
        local = replace(MORE["private"], tensors=frozenset({name}))
        found, loop = (trained(model, federation, local, term, backend=backend) for backend in ("vmap", "loop"))
        torch.testing.assert_close(found, loop, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(MORE))
def test_who_shares_a_unit_and_the_threads_change_no_bit(dense, build, name, monkeypatch):
    sizes = (9, 40, 7, 12, 7, 39, 12, 12)
    federation, local = build(sizes), local_of(name, dense) if name in LOCALS else MORE[name]
    starts = starts_of(dense, federation)
    whole = trained(dense, federation, local, starts=starts, backend="vmap", threads=1)
    for order in (torch.tensor([6, 1, 3, 5]), torch.tensor([3, 0, 2])):
        few = trained(dense, federation.take(order), local, starts=starts[order], backend="vmap", threads=3)
        assert torch.equal(few, whole[order])
    for kind in ("dense", "span"):
        monkeypatch.setitem(vmap_backend._IN_CACHE, kind, 1)
    monkeypatch.setattr(vmap_backend, "AUGMENTED", 1)
    assert torch.equal(trained(dense, federation, local, starts=starts, backend="vmap", threads=1), whole)


@pytest.mark.parametrize("network", [lambda: MLP(400, 24, 3), lambda: Logistic(400, 3)], ids=["mlp", "logistic"])
def test_ends_in_the_span_are_the_loop_s_and_do_not_depend_on_who_else_trains(spans, monkeypatch, network):
    monkeypatch.setattr(DenseNetwork, "cheaper_in_span", lambda *_: True)
    draw, sizes = torch.Generator().manual_seed(0), (9, 7, 9, 30, 9, 7, 9)
    clients = [(torch.rand(n, 1, 20, 20, generator=draw), torch.arange(n) % 3) for n in sizes]
    federation, model = Federation.from_tensors(clients, test=clients[0]), Model(network)
    local = LocalSGD(steps=3, batch_size="all", learning_rate=0.2, weight_decay=0.1)
    starts = starts_of(model, federation)
    rows = trained(model, federation, local, starts=starts, backend="vmap")
    assert len(spans) == 3
    loop = trained(model, federation, local, starts=starts, backend="loop")
    torch.testing.assert_close(rows, loop, rtol=1e-4, atol=1e-5)
    few = torch.tensor([4, 1, 0])
    assert torch.equal(trained(model, federation.take(few), local, starts=starts[few], backend="vmap"), rows[few])


def test_rows_of_a_class_are_at_most_a_sixteenth_more():
    examples = torch.arange(1, 5000)
    rows = row_class(examples)
    assert bool((rows >= examples).all())
    assert bool((rows - examples <= examples / 16).all())
    assert torch.equal(row_class(rows), rows)


@dataclass(frozen=True)
class Lookahead:
    """The gradient at a step ahead, on the second batch."""

    batches: int = 2

    def step(self, rows: torch.Tensor, gradient: Gradient, learning_rate: float) -> torch.Tensor:
        return rows - learning_rate * gradient(rows - learning_rate * gradient(rows, 0), 1)


@pytest.mark.parametrize("network", ["mlp", "vmap"])
def test_a_rule_s_batches_are_augmented_as_the_loop_s(mlp, build, network):
    model = mlp if network == "vmap" else Model(NETWORKS[network])
    federation, local = build((9, 12, 7, 12, 3, 10)), replace(MORE["augmented"], weight_decay=0.1)
    randomness = local.randomness(federation.clients, federation.ids, Stream(2))
    ends = []
    for backend in ("vmap", "loop"):
        with Engine(model, backend=backend) as engine:
            task = starts_of(model, federation), torch.arange(6), federation.clients, randomness, local
            parts = [*engine.train_into(lambda owners, ends: (owners, ends.clone()), *task, rule=Lookahead())]
        owners = torch.cat([owners for owners, _ in parts])
        ends.append(torch.cat([rows for _, rows in parts])[owners.argsort()])
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)
