"""Networks of users: each is trained, or refused with one sentence that names the true cause and its layer."""

import random
import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import shoal
from full_simulation import simulate_with
from shoal import FedAvg, Federation, LocalSGD, Model
from shoal.core.errors import InputError
from shoal.engine import check_examples, resolve_backend

LOCAL = LocalSGD(epochs=2, batch_size=3, learning_rate=0.05)


def examples(count: int, *shape: int, seed: int = 0, words: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    return (
        torch.randint(words, (count, *shape), generator=draw) if words else torch.randn(count, *shape, generator=draw)
    ), y


def trained(build, *shape: int, words: int = 0, **settings):
    """A simulation of clients of different sizes, so that vmap would pad them."""
    of = [examples(size, *shape, seed=size, words=words) for size in (3, 5, 8)]
    model = build if isinstance(build, Model) else Model(build)
    federation = Federation.from_tensors(of, test=examples(3, *shape, seed=4, words=words), classes=3)
    return simulate_with(federation, model, FedAvg(), LOCAL, rounds=2, **settings)


class Net(nn.Module):
    """A linear layer of four inputs, and in front of it what a test is about."""

    changing_buffers = ("mean",)

    def __init__(self, before=None, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.before, self.layer, self.output = before, layer, nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.before is None else self.before(self, x)
        return self.output(x if self.layer is None else self.layer(x))


# --- backends ----------------------------------------------------------------------------------------------------


class Sign(torch.autograd.Function):
    """A function of one's own without the form that torch.func asks for."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient * (ctx.saved_tensors[0].abs() < 1)


def masked(_: Net, x: Tensor) -> Tensor:
    x = x.clone()
    x[x < 0] = x[x < 0] * 0.1
    return x


def centred(net: Net, x: Tensor) -> Tensor:
    if net.training:
        net.mean.mul_(0.9).add_(0.1 * x.detach().mean(dim=0))
    return x - net.mean


def weight_normed() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)))


LOOPED = {
    "an if on the data": (lambda: Net(lambda _, x: x if x.sum() > 0 else 2 * x), "PyTorch says: It looks like"),
    "item": (lambda: Net(lambda _, x: x / x.abs().max().item()), "PyTorch says: It looks like"),
    "a boolean mask": (lambda: Net(masked), "PyTorch says: We do not support batching operators"),
    "nonzero": (lambda: Net(lambda _, x: x[torch.nonzero(x[:, 0] < 9).flatten()]), "PyTorch says: We do not support"),
    "checkpoints": (
        lambda: Net(lambda n, x: checkpoint(n.layer, x, use_reentrant=False), nn.Linear(4, 4)),
        "saved tensor hooks",
    ),
    "a function of one's own": (lambda: Net(lambda _, x: Sign.apply(x)), "autograd.Function"),
    "numpy": (lambda: Net(lambda _, x: x * float(x.numpy().std())), "PyTorch says: Cannot access data pointer"),
    "an old weight norm": (weight_normed, "batching rule"),
    "a buffer that is updated": (lambda: Net(centred), "it changes buffers in training"),
    "a mean of the batch": (lambda: Net(lambda _, x: x - x.mean(dim=0)), "depends on the other"),
}


@pytest.mark.parametrize("case", list(LOOPED))
def test_networks_that_vmap_cannot_compute_are_looped_with_a_warning(case, caplog):
    build, words = LOOPED[case]
    result = trained(build, 4)
    assert result.engine.backend == "loop"
    assert 'backend = "loop"' in result.description.settings
    (said,) = (each for each in caplog.messages if "backend 'loop'" in each)
    assert words in said
    assert "\n" not in said
    assert torch.equal(trained(build, 4, backend="loop").state.models, result.state.models)
    with pytest.raises(InputError, match=r"use backend='loop' \("):
        trained(build, 4, backend="vmap")


SIMPLE = {
    "one layer": lambda: nn.Linear(4, 3),
    "tied weights": lambda: Net(lambda net, x: x @ net.output.weight.T @ net.output.weight),
    "one example after another": lambda: Net(lambda _, x: torch.stack(list(x))),
    "a layer that is not used": lambda: Net(None, None),
}


@pytest.mark.parametrize("case", list(SIMPLE))
def test_networks_that_vmap_computes_stay_there_without_a_warning(case, caplog):
    assert trained(SIMPLE[case], 4).engine.backend == "vmap"
    assert not caplog.messages


def test_a_loss_that_looks_at_its_values_is_looped():
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return shoal.models.cross_entropy(outputs, labels) * (2 if labels.sum() > 3 else 1)

    assert trained(Model(lambda: nn.Linear(4, 3), loss), 4).engine.backend == "loop"


def test_vmap_is_tried_on_regressions_and_single_examples():
    x, y = examples(1, 4)
    for count in (1, 2):
        rows = x.expand(count, 4)
        check_examples("vmap", Model(lambda: nn.Linear(4, 3)), rows, y.expand(count))
        check_examples(
            "vmap", Model(lambda: nn.Linear(4, 1), shoal.squared_error), rows, y.expand(count)[:, None].float()
        )
    assert resolve_backend(Model(Net), None, (x, y), 3) == "vmap"


def test_buffers_that_examples_move_are_not_sent_past_dp_sgd():
    with pytest.raises(InputError, match="cannot protect buffers"):
        trained(lambda: Net(centred), 4, defenses=[shoal.DPSGD(1.0, 1.0)])


# --- what is refused ---------------------------------------------------------------------------------------------


def replaced(net: Net, x: Tensor) -> Tensor:
    net.mean = 0.9 * net.mean + 0.1 * x.detach().mean(dim=0)
    return x - net.mean


def counted(net: Net, x: Tensor) -> Tensor:
    net.count += net.training
    return x * (1 + net.count)


def remembered(net: Net, x: Tensor) -> Tensor:
    net.calls = getattr(net, "calls", 0) + 1
    return x * net.calls


def reentrant(net: Net, x: Tensor) -> Tensor:
    return checkpoint(net.layer, net.layer(x), use_reentrant=True) if net.training else x


def attention(dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.TransformerEncoderLayer(4, 2, 8, dropout=dropout, batch_first=True), nn.Flatten(), nn.Linear(8, 3)
    )


def noise(_: Net, x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


class Squeezed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze()


class Detached(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


class Two(Net):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.output(x * mask)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.cfloat) @ self.weight).abs()


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Sequential(nn.Linear(4, 3)))


DRAWS = "draws from PyTorch's global generator"
REFUSED = {
    "attention's dropout": (lambda: attention(0.1), "layer '0.self_attn' (MultiheadAttention) draws from PyTorch's"),
    "the network's own draws": (lambda: Net(noise), f"the network (Net) {DRAWS}"),
    "a layer's own draws": (lambda: nn.Sequential(nn.Flatten(), Net(noise)), f"layer '1' (Net) {DRAWS}"),
    "Python's draws": (lambda: Net(lambda _, x: x * random.random()), "the network (Net) draws from Python's random"),
    "NumPy's draws": (lambda: Net(lambda _, x: x * np.random.rand()), "(Net) draws from NumPy's global"),  # noqa: NPY002
    "a layer in place": (lambda: nn.Sequential(nn.ReLU(inplace=True), Net()), "layer '0' (ReLU) changes the network's"),
    "inputs in place": (lambda: Net(lambda _, x: x.mul_(2)), "the network (Net) changes the network's inputs in place"),
    "in evaluation alone": (
        lambda: Net(lambda net, x: x if net.training else x.mul_(2)),
        "the network in evaluation mode changes the network's inputs in place",
    ),
    "a buffer in another's place": (lambda: Net(replaced), "'mean' by a new tensor in training"),
    "a count of batches": (lambda: Net(counted), "'count' of int64)"),
    "a memory": (lambda: Net(remembered), "in evaluation mode"),
    "a batch of three": (lambda: Net(lambda _, x: x.view(3, 4)), "'[3, 4]' is invalid for input of size 8"),
    "a batch of two": (lambda: Net(lambda _, x: x.view(2, 4)), "'[2, 4]' is invalid for input of size 4"),
    "squeezed outputs": (
        lambda: nn.Sequential(nn.Linear(4, 3), Squeezed()),
        "of 1 examples (got (3,))",
    ),
    "no gradient at all": (lambda: nn.Sequential(Net(), Detached()), "no gradient reaches the network's parameters"),
    "reentrant checkpoints": (
        lambda: Net(reentrant, nn.Linear(4, 4)),
        "use_reentrant=True, torch.utils.checkpoint is incompatible",
    ),
    "complex parameters": (Complex, "'weight' must be float32 (got complex64)"),
    "double parameters": (lambda: Net().double(), "'output.weight' must be float32 (got float64)"),
    "TorchScript": (scripted, "torch.jit (got a ScriptModule)"),
    "two inputs": (Two, "several inputs"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_a_network_that_cannot_be_trained_is_refused_with_cause_and_layer(case, caplog):
    build, words = REFUSED[case]
    shape = (2, 4) if case == "attention's dropout" else (4,)
    state = random.getstate()
    before = []
    with pytest.raises(InputError) as refused:
        trained(build, *shape, watch=lambda *_: before.append(1))
    random.setstate(state)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not before, "nothing was trained"
    assert not caplog.messages, "nor is a backend chosen for what cannot be trained"


# --- what is accepted --------------------------------------------------------------------------------------------


class Last(nn.Module):
    def forward(self, given: tuple[Tensor, Tensor]) -> Tensor:
        return given[0][:, -1]


class Tempered(Net):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.output(x) * self.temperature


ACCEPTED = {
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), (4,), 0),
    "an LSTM": (lambda: nn.Sequential(nn.LSTM(4, 4, batch_first=True), Last(), nn.Linear(4, 3)), (2, 4), 0),
    "attention": (lambda: attention(0.0), (2, 4), 0),
    "an embedding bag": (lambda: nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 3)), (5,), 9),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (4,), 0),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), (4,), 0),
    "a parameter without an axis": (Tempered, (4,), 0),
    "in place after a layer": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)), (4,), 0),
}


@pytest.mark.parametrize("case", list(ACCEPTED))
def test_own_networks_train_to_the_same_bits_with_any_number_of_threads(case):
    build, shape, words = ACCEPTED[case]
    models = [trained(build, *shape, words=words, threads=threads).state.models for threads in (1, 2)]
    assert torch.equal(*models)


@pytest.mark.parametrize("used", [True, False])
def test_settings_of_pytorch_that_allow_no_training_are_named(used):
    model = Model(lambda: nn.Linear(4, 3))
    if used:
        trained(model, 4)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(InputError, match="set_default_dtype"):
            trained(model, 4)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.inference_mode(), pytest.raises(InputError, match="inference_mode"):
        trained(model, 4)


@dataclass
class Made:
    logits: Tensor
    loss: Tensor | None = None


class Several(Net):
    """A network that gives more than one tensor, as ``made`` makes it."""

    def __init__(self, made) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: Tensor):
        return self.made(self.output(x))


OUTPUTS = {
    "a tuple": (lambda x: (x, x.sum()), lambda given: given[0]),
    "a dictionary": (lambda x: {"logits": x}, lambda given: given["logits"]),
    "a dataclass": (Made, lambda given: given.logits),
}


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("case", list(OUTPUTS))
def test_outputs_are_taken_out_of_what_a_network_gives(case, backend, tmp_path):
    made, outputs = OUTPUTS[case]
    model = Model(lambda: Several(made), outputs=outputs)
    plain = trained(Net, 4, backend=backend)
    result = trained(model, 4, backend=backend, out=tmp_path / "out")
    assert torch.equal(result.state.models, plain.state.models)
    Several(made).load_state_dict(result.models[0])
    with pytest.raises(InputError, match=r"has a run with simulation\.[\w.]*outputs = "):
        trained(
            Model(lambda: Several(made), outputs=partial(outputs)),
            4,
            backend=backend,
            out=tmp_path / "out",
            resume=True,
        )


def test_outputs_that_are_not_there_are_one_sentence():
    model = Model(lambda: Several(Made), outputs=lambda given: given["logits"])
    with pytest.raises(InputError, match="Made"):
        trained(model, 4)
    with pytest.raises(InputError, match="a Model's outputs must be a function of the network's result, such as"):
        Model(Net, outputs="logits")
