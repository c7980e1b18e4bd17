"""Local training against `torch.optim.SGD`, and the two backends against each other."""

from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import nn

from sgd_by_hand import CLOSE, by_hand, trained
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.data.shards import Shards
from shoal.defenses import DPSGD
from shoal.engine import Engine, LinearTerm, LocalSGD, TorchOptimizer, require_plain_sgd
from shoal.engine.backends import vmap_backend
from shoal.engine.backends.loop_backend import LoopBackend
from shoal.engine.engine import DivergenceError
from shoal.models import MnistCNN, Model, squared_error

CPU = torch.device("cpu")

LOCALS = {
    "epochs": LocalSGD(epochs=3, batch_size=4, learning_rate=0.2),
    "steps": LocalSGD(steps=7, batch_size=4, learning_rate=0.2),
    "full batch": LocalSGD(steps=5, batch_size="all", learning_rate=0.3),
    "weight decay": LocalSGD(epochs=2, batch_size=5, learning_rate=0.2, weight_decay=0.1),
    "momentum": LocalSGD(epochs=2, batch_size=4, learning_rate=0.1, momentum=0.7),
    "momentum, weight decay": LocalSGD(steps=5, batch_size="all", learning_rate=0.1, momentum=0.9, weight_decay=0.1),
    "clipping": LocalSGD(epochs=2, batch_size=4, learning_rate=0.3, clip_norm=0.5),
    "clipping, momentum": LocalSGD(epochs=2, batch_size=4, learning_rate=0.3, clip_norm=0.5, momentum=0.5),
}
OPTIMIZERS = {
    "adam": LocalSGD(
        epochs=2, batch_size=4, learning_rate=0.01, optimizer=TorchOptimizer("Adam", {"betas": [0.8, 0.9]})
    ),
    "rmsprop": LocalSGD(
        steps=3, batch_size=5, learning_rate=0.01, weight_decay=0.1, optimizer=TorchOptimizer("RMSprop")
    ),
    "nesterov": LocalSGD(
        epochs=1,
        batch_size=4,
        clip_norm=0.5,
        optimizer=TorchOptimizer("SGD", {"momentum": 0.5, "nesterov": True}),
    ),
}


@pytest.fixture(params=list(LOCALS))
def local(request: pytest.FixtureRequest) -> LocalSGD:
    return LOCALS[request.param]


@pytest.fixture(scope="module")
def plain(build):
    """The ends of plain local training of a network on two threads, by backend, each computed once."""
    return cache(lambda network, local, backend: trained(Model(network), build(), local, backend=backend, threads=2))


@pytest.fixture(scope="module")
def slow(build):
    """The same by hand."""
    return cache(lambda network, local: by_hand(Model(network), build(), local))


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_local_training_equals_torch_sgd(plain, slow, model, local, backend):
    torch.testing.assert_close(plain(model.build, local, backend), slow(model.build, local), **CLOSE)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_local_training_equals_torch_optimizers(model, build, name):
    federation, local = build(), OPTIMIZERS[name]
    torch.testing.assert_close(trained(model, federation, local), by_hand(model, federation, local), **CLOSE)


def term_of(federation, model) -> LinearTerm:
    """A term that is another for every client."""
    draw, count = torch.Generator().manual_seed(3), len(federation)
    return LinearTerm(
        torch.linspace(0, 1, count),
        torch.randn(count, model.layout.size, generator=draw),
        offset=0.1 * torch.randn(count, model.layout.size, generator=draw),
    )


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("name", list(LOCALS) + list(OPTIMIZERS))
def test_a_linear_term_is_added_to_the_gradient(model, build, name, backend):
    if name in OPTIMIZERS and backend == "vmap":
        with pytest.raises(InputError, match=r"torch\.optim"):
            trained(model, build(), OPTIMIZERS[name], backend=backend)
        return
    federation, local = build(), (LOCALS | OPTIMIZERS)[name]
    term = term_of(federation, model)
    torch.testing.assert_close(
        trained(model, federation, local, term, backend=backend),
        by_hand(model, federation, local, term),
        rtol=1e-3,
        atol=1e-5,
    )


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_linear_term_of_zero_changes_nothing(plain, model, build, local, backend):
    nothing = LinearTerm(torch.zeros(6), torch.zeros(1, model.layout.size), torch.zeros(6, dtype=torch.int64))
    found = trained(model, build(), local, nothing, backend=backend)
    torch.testing.assert_close(found, plain(model.build, local, backend), **CLOSE)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("name", list(LOCALS) + list(OPTIMIZERS))
def test_example_weights_scale_losses_in_the_batch_mean(model, build, name, backend):
    local = (LOCALS | OPTIMIZERS)[name]
    if name in OPTIMIZERS and backend == "vmap":
        pytest.skip("vmap trains by SGD alone")
    federation = build()
    weights = torch.rand(len(federation.clients.indices), generator=torch.Generator().manual_seed(0))
    # A client whose examples weigh nothing takes its steps all the same: weight decay and momentum go on.
    weights[federation.clients.owners() == 2] = 0
    found = trained(model, federation, local, weights=weights, backend=backend)
    torch.testing.assert_close(found, by_hand(model, federation, local, weights=weights), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_example_weights_of_1_change_no_bit(plain, model, build, local, backend):
    federation = build()
    ones = torch.ones(len(federation.clients.indices))
    weighed = trained(model, federation, local, weights=ones, backend=backend)
    assert torch.equal(weighed, plain(model.build, local, backend))


def test_shards_take_their_example_weights_along():
    x, y = torch.arange(6.0), torch.arange(6)
    shards = Shards.from_indices(x, y, torch.tensor([5, 3, 1, 0, 2]), torch.tensor([2, 1, 2]))
    taken = replace(shards, weights=torch.tensor([0.5, 0.3, 0.1, 0.0, 0.2])).take(torch.tensor([2, 0]))
    assert taken.indices.tolist() == [0, 2, 5, 3]
    assert taken.weights_of(0).tolist() == pytest.approx([0.0, 0.2])
    assert taken.weights_of(1).tolist() == pytest.approx([0.5, 0.3])


def test_owners_may_start_from_mixtures(model, build):
    federation, local = build(), LOCALS["steps"]
    starts = torch.stack([model.init(Stream(1)(k)) for k in range(2)])
    mixture = torch.tensor([[0.5, 0.5]] * 6)
    randomness = local.randomness(federation.clients, federation.ids, Stream(2))
    with Engine(model) as engine:
        mixed = engine.train(starts, mixture, federation.clients, randomness, local)
        plain = engine.train(starts.mean(dim=0)[None], torch.zeros(6).long(), federation.clients, randomness, local)
        for (_, one), (_, other) in zip(mixed, plain, strict=True):
            torch.testing.assert_close(one, other, **CLOSE)


def test_adamw_without_weight_decay_is_adam():
    """AdamW decays unless it is told not to; without, it is Adam."""
    for decay, same in ((0.0, True), (0.01, False)):
        adam, adamw = (TorchOptimizer(name).made([torch.ones(2)], 0.1, decay) for name in ("Adam", "AdamW"))
        for each in (adam, adamw):
            (parameter,) = each.param_groups[0]["params"]
            parameter.grad = torch.tensor([1.0, -2.0])
            each.step()
        one, other = (each.param_groups[0]["params"][0] for each in (adam, adamw))
        assert torch.equal(one, other) == same


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_threads_change_no_bit_of_local_training(plain, model, build, local, backend):
    federation, two = build(), plain(model.build, local, backend)
    for threads in (1, 3):
        assert torch.equal(trained(model, federation, local, backend=backend, threads=threads), two)


@pytest.mark.parametrize("sizes", [(5,), (3, 9, 4), tuple(range(1, 700))])
@pytest.mark.parametrize(
    "trainer", [LoopBackend(), vmap_backend.VmapBackend(Model(lambda: nn.Linear(4, 2)), CPU, torch.float32)]
)
def test_units_have_every_owner_once_and_the_largest_first(sizes, trainer):
    shards = Shards.from_contiguous(torch.zeros(sum(sizes), 4), torch.zeros(sum(sizes)).long(), torch.tensor(sizes))
    units = trainer.units(shards, LocalSGD(epochs=1, batch_size=4))
    order = torch.cat(units)
    assert order.sort().values.tolist() == list(range(len(sizes)))
    assert shards.sizes[order].tolist() == sorted(sizes, reverse=True)
    assert max(map(len, units)) <= 256


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("name", ["steps", "full batch"])
def test_a_regression_is_the_same_on_both_backends(name, targets):
    draw = torch.Generator().manual_seed(4)
    given = [(torch.randn(8, 30, generator=draw), torch.randn(8, targets, generator=draw)) for _ in range(3)]
    federation = Federation.from_tensors(given, test=given[0], task="regression")
    model = Model(lambda: nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, targets)), squared_error)
    loop, vmap = (trained(model, federation, LOCALS[name], backend=each) for each in ("loop", "vmap"))
    torch.testing.assert_close(vmap, loop, rtol=1e-4, atol=1e-5)


def test_onednn_s_layout_changes_no_result():
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.rand(12, 1, 28, 28, generator=draw), torch.arange(12) % 10) for _ in range(2)]
    federation, local = Federation.from_tensors(clients, test=clients[0]), LocalSGD(epochs=2, batch_size=5)
    model = Model(MnistCNN)
    torch.testing.assert_close(trained(model, federation, local), by_hand(model, federation, local), **CLOSE)
    row = model.init(Stream(3))
    network = model.network().eval()
    network.load_state_dict(model.state_dict(row))
    with Engine(model) as engine:
        found = engine.outputs(row, clients[0][0])
    torch.testing.assert_close(found, network(clients[0][0]).detach(), rtol=1e-5, atol=1e-6)


class Centred(nn.Module):
    """Writes to its buffers in ``forward``."""

    changing_buffers = ("running_mean", "running_var")

    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(2))
        self.register_buffer("running_var", torch.ones(2))

    def forward(self, x):
        if self.training:
            self.running_mean.mul_(0.9).add_(0.1 * x.detach().mean(dim=(0, 2, 3)))
            self.running_var.mul_(0.9).add_(0.1 * x.detach().var(dim=(0, 2, 3)))
        return x - x.mean(dim=(2, 3), keepdim=True)


@pytest.mark.parametrize(
    "norm", [partial(nn.BatchNorm2d, 2), partial(nn.InstanceNorm2d, 2, track_running_stats=True), Centred]
)
def test_layers_with_statistics_train_as_by_hand_and_keep_them(norm):
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(1, 2, 3), norm()
            self.next, self.output = nn.Conv2d(2, 2, 1), nn.Linear(32, 3)

        def forward(self, x):
            return self.output(torch.relu(self.next(self.norm(self.convolution(x)))).flatten(1))

    stream = Stream(9).generator()
    clients = [(torch.rand(8, 1, 6, 6, generator=stream), torch.arange(8) % 3) for _ in range(3)]
    federation = Federation.from_tensors(clients, test=clients[0])
    model, local = Model(Normed), LocalSGD(epochs=2, batch_size=4)
    ends = trained(model, federation, local)
    torch.testing.assert_close(ends, by_hand(model, federation, local), **CLOSE)
    assert not torch.equal(ends[:, model.layout.trainable :], torch.tensor([0.0, 0, 1, 1]).expand(3, 4))


def test_bf16_stays_near_fp32(cnn, build):
    local = LOCALS["epochs"]
    federation = build()
    coarse, fine = (trained(cnn, federation, local, precision=p) for p in ("bf16", "fp32"))
    assert not torch.equal(coarse, fine)
    assert (coarse - fine).norm() < 0.1 * (fine - cnn.init(Stream(1)(0))).norm()


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_frozen_layers_stay(build, backend):
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.output = nn.Linear(36, 4), nn.Linear(4, 3)
            self.first.requires_grad_(False)

        def forward(self, x):
            return self.output(torch.relu(self.first(x.flatten(1))))

    model = Model(Frozen)
    ends = trained(model, build(), LocalSGD(epochs=1, batch_size=4), backend=backend)
    start = model.init(Stream(1)(0))
    assert torch.equal(ends[0, model.layout.trainable :], start[model.layout.trainable :])
    assert not torch.equal(ends[0, : model.layout.trainable], start[: model.layout.trainable])


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_shared_tensors_are_trained_in_all_their_places(build, backend):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.output = nn.Linear(36, 36), nn.Linear(36, 36), nn.Linear(36, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.output(torch.relu(self.second(torch.relu(self.first(x.flatten(1))))))

    model, federation, local = Model(Tied), build(), LocalSGD(epochs=2, batch_size=4)
    assert model.parameters == 36 * 36 + 36 + 36 + 36 * 3 + 3
    expected = by_hand(model, federation, local)
    torch.testing.assert_close(trained(model, federation, local, backend=backend), expected, **CLOSE)


def test_batch_norm_refuses_a_batch_of_one_in_one_sentence():
    x, y = torch.rand(5, 4), torch.tensor([0, 1, 0, 1, 0])
    model = Model(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)))
    with pytest.raises(InputError, match=r"local\.batch_size"):
        trained(model, Federation.from_tensors([(x, y)], test=(x, y)), LocalSGD(epochs=1, batch_size=2))


def test_batch_norm_without_momentum_is_refused():
    with pytest.raises(InputError, match="momentum"):
        _ = Model(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2))).layout


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_divergence_names_the_owner(mlp, build, backend):
    federation = build()
    federation.clients.x[federation.clients.indices_of(3)[0]] = float("inf")
    with pytest.raises(DivergenceError) as caught:
        trained(mlp, federation, LocalSGD(epochs=1), backend=backend)
    assert caught.value.owner == 3


def test_losses_are_the_mean_loss_per_client_and_model(model, build):
    federation = build()
    rows = torch.stack([model.init(Stream(1)(k)) for k in range(3)])
    with Engine(model) as engine:
        found = engine.losses(rows, engine.prepare(federation).clients)
        some = engine.losses(rows, engine.prepare(federation).clients.take(torch.tensor([4, 1])))
    for k in range(3):
        network = model.network().eval()
        network.load_state_dict(model.state_dict(rows[k]))
        for i in range(len(federation)):
            mine = federation.clients.indices_of(i)
            expected = nn.functional.cross_entropy(network(federation.clients.x[mine]), federation.clients.y[mine])
            assert float(found[i, k]) == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(some, found[[4, 1]], rtol=1e-6, atol=0)


def test_closing_gives_pytorch_its_threads_back(mlp):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Engine(mlp, threads=2):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


ADAM = TorchOptimizer("Adam")


def require_plain(local):
    require_plain_sgd(local, "it")


WRONG = [
    (LocalSGD, {"epochs": 1, "steps": 1}, "epochs and steps"),
    (LocalSGD, {"epochs": 0}, "'epochs"),
    (LocalSGD, {"batch_size": 0}, "'batch_size"),
    (LocalSGD, {"momentum": 0.9, "optimizer": ADAM}, "local.momentum"),
    *((LocalSGD, {name: value}, f"'{name}'") for name, values in (
        ("learning_rate", (0.0, float("nan"))), ("decay", (1.5,)), ("weight_decay", (-1.0,)), ("momentum", (1.0,)),
        ("clip_norm", (0.0,))) for value in (*values, "0.5", True)),
    *((LocalSGD, {"share": share}, "'share'") for share in (0.0, -0.5, 1.5)),
    (TorchOptimizer, {"name": "Adamm"}, "torch.optim has no optimizer 'Adamm'; did you mean 'Adam'?"),
    (TorchOptimizer, {"name": "LBFGS"}, "torch.optim has no optimizer 'LBFGS'"),
    (TorchOptimizer, {"name": "Adam", "options": {"lr": 0.1}}, "'options' must not contain 'lr'"),
    (TorchOptimizer, {"name": "Adam", "options": {"mu": 0.1}}, "torch.optim.Adam rejects these options"),
    (TorchOptimizer, {"name": "Adam", "options": {"betas": [2.0, 0.9]}}, "torch.optim.Adam rejects these options"),
    (Engine, {"model": Model(lambda: nn.Linear(4, 2)), "threads": 0}, "'threads'"),
    *((require_plain, {"local": LocalSGD(**more)}, "it needs plain SGD in local training")
      for more in ({"momentum": 0.5}, {"clip_norm": 1.0}, {"optimizer": ADAM}, {"tensors": frozenset({"output.bias"})},
                   {"gradient_privacy": DPSGD(1.0, 1.0)})),
]  # fmt: skip


@pytest.mark.parametrize(("made", "settings", "words"), WRONG, ids=lambda value: getattr(value, "__name__", str(value)))
def test_wrong_settings_are_refused_in_one_sentence(made, settings, words):
    with pytest.raises(InputError) as error:
        made(**settings)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_plain_sgd_and_its_numbers_are_taken():
    require_plain_sgd(LocalSGD(weight_decay=0.1, decay=0.5), "it")
    assert LocalSGD(learning_rate=0.5, clip_norm=0.5).clip_norm == 0.5


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_named(mlp):
    with pytest.raises(InputError, match="no CUDA device"):
        Engine(mlp, device="cuda")


def test_local_training_is_one_epoch_by_default():
    assert LocalSGD() == LocalSGD(epochs=1)
    assert LocalSGD(steps=3).epochs is None


def test_local_trainings_that_differ_in_their_round_alone_are_equal():
    first, later = (LocalSGD(learning_rate=rate, decay=0.5).at_round(number) for rate, number in ((0.1, 1), (0.4, 3)))
    assert first == later == LocalSGD(learning_rate=0.1)
    assert first != LocalSGD(learning_rate=0.4, decay=0.5).at_round(2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_and_cpu_agree(model, build, local):
    federation = build()
    there, here = (trained(model, federation, local, device=device) for device in ("cuda", "cpu"))
    torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-4)
