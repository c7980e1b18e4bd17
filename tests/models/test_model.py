"""Models as values: where initial rows come from, and rows as networks and back."""

from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
import torch
from torch import Tensor, nn, vmap

import shoal
from shoal.core.errors import InputError
from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.models import VGG, DigitsCNN, Logistic, MnistCNN, NegativeLoss, accuracy, cross_entropy, metric_name


class Frozen(nn.Module):
    """One layer that trains between two that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(3, 4).requires_grad_(False)
        self.learns = nn.Linear(4, 5)
        self.after = nn.Linear(5, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.learns(self.before(x)))


def draw(*shape: int, seed: int = 7) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


MODELS = {
    "convolutions": (MnistCNN, (3, 1, 28, 28)),
    "digits": (DigitsCNN, (3, 1, 8, 8)),
    "batch norm": (partial(VGG, channels=1), (2, 1, 32, 32)),
    "frozen": (Frozen, (3, 3)),
    "linear": (partial(Logistic, 6, 3), (2, 6)),
}


# --- initial rows ------------------------------------------------------------------------------------------------


def test_the_same_stream_gives_the_same_row_and_another_stream_another() -> None:
    model = shoal.Model(DigitsCNN)
    stream = Stream(3)("model", 0)
    assert torch.equal(model.init(stream), shoal.Model(DigitsCNN).init(stream))
    assert not torch.equal(model.init(stream), model.init(Stream(3)("model", 1)))
    assert not torch.equal(model.init(stream), model.init(Stream(4)("model", 0)))


def test_initial_rows_neither_read_nor_move_the_global_generator() -> None:
    model = shoal.Model(DigitsCNN)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        before = torch.random.get_rng_state()
        first = model.init(Stream(0))
        model.network()
        assert torch.equal(torch.random.get_rng_state(), before)
        torch.manual_seed(2)
        assert torch.equal(model.init(Stream(0)), first)


def test_the_initial_row_is_the_network_s_own_initialisation() -> None:
    stream = Stream(9)("start")
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(stream.generator().get_state())
        network = MnistCNN()
    model = shoal.Model(MnistCNN)
    for name, tensor in model.state_dict(model.init(stream)).items():
        assert torch.equal(tensor, network.state_dict()[name]), name


# --- rows and networks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", list(MODELS))
def test_loading_a_row_into_a_fresh_network_reproduces_its_outputs(case: str) -> None:
    build, shape = MODELS[case]
    model = shoal.Model(build)
    trained = model.network()
    with torch.no_grad():
        kept = {slot.name for slot in model.layout.slots}
        for i, (name, tensor) in enumerate([*trained.named_parameters(), *trained.named_buffers()]):
            if name in kept:
                tensor.copy_(0.05 * draw(*tensor.shape, seed=i).abs() + 0.01)
    trained.eval()
    row = model.layout.pack(dict(trained.named_parameters()) | dict(trained.named_buffers()))
    fresh = model.network().eval()
    x = draw(*shape)
    assert not torch.equal(fresh(x), trained(x))
    fresh.load_state_dict(model.state_dict(row))
    assert torch.equal(fresh(x), trained(x))


class Tied(nn.Module):
    """Two layers with one weight, batch norm, and a constant that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x))) * self.scale


def test_a_network_takes_all_named_tensors_and_no_others() -> None:
    model = shoal.Model(Tied)
    named = model.state_dict(model.init(Stream(5)))
    assert named.keys() == Tied().state_dict().keys()
    assert torch.equal(named["second.weight"], named["first.weight"])
    assert named["second.weight"].data_ptr() != named["first.weight"].data_ptr(), "files hold no shared tensors"
    assert named["norm.num_batches_tracked"] == 0
    Tied().load_state_dict(named)


@pytest.mark.parametrize("whole", [True, False])
def test_torch_compile_changes_neither_names_nor_parameters(whole: bool) -> None:
    def build(*, compiled: bool) -> nn.Module:
        body, head = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 2)
        if compiled and not whole:
            body = cast("nn.Sequential", torch.compile(body, backend="eager"))
        network = nn.Sequential(body, head)
        return cast("nn.Module", torch.compile(network, backend="eager")) if compiled and whole else network

    plain, model = (shoal.Model(partial(build, compiled=compiled)) for compiled in (False, True))
    assert model.layout == plain.layout
    assert torch.equal(model.init(Stream(1)), plain.init(Stream(1)))


def test_named_tensors_are_contiguous_copies() -> None:
    model = shoal.Model(DigitsCNN)
    row = model.init(Stream(0))
    kept = row.clone()
    for tensor in model.state_dict(row).values():
        assert tensor.is_contiguous()
        tensor.zero_()
    assert torch.equal(row, kept)


def test_float_buffers_lie_behind_trainable_and_counters_nowhere() -> None:
    layout = shoal.Model(lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))).layout
    assert [(s.name, s.start) for s in layout.slots if s.start >= layout.trainable] == [
        ("1.running_mean", 15),
        ("1.running_var", 18),
    ]
    assert layout.size == 21


# --- layouts -----------------------------------------------------------------------------------------------------

TENSORS = {"vector": draw(3), "filters": draw(4, 2, 3, 5), "matrix": draw(2, 6), "cube": draw(2, 3, 4), "end": draw(1)}
LAYOUT = Layout.from_tensors(
    {name: TENSORS[name] for name in ("vector", "filters", "matrix")}, {n: TENSORS[n] for n in ("cube", "end")}
)


def test_pack_and_views_are_inverse() -> None:
    row = LAYOUT.pack(TENSORS)
    assert row.shape == (3 + 120 + 12 + 24 + 1,)
    assert LAYOUT.trainable == 3 + 120 + 12
    views = LAYOUT.views(row)
    assert set(views) == set(TENSORS)
    for name, view in views.items():
        assert torch.equal(view, TENSORS[name]), name
    assert torch.equal(LAYOUT.pack(views), row)


def test_convolutions_lie_channels_last_in_the_row() -> None:
    row = LAYOUT.pack(TENSORS)
    assert torch.equal(row[3:123], TENSORS["filters"].permute(0, 2, 3, 1).reshape(-1))


def test_views_of_many_rows_keep_the_leading_axes_and_are_views() -> None:
    rows = draw(2, 3, LAYOUT.size)
    views = LAYOUT.views(rows)
    assert views["filters"].shape == (2, 3, 4, 2, 3, 5)
    for i in range(2):
        for j in range(3):
            alone = LAYOUT.views(rows[i, j])
            for name, view in views.items():
                assert torch.equal(view[i, j], alone[name]), name
    views["filters"].zero_()
    views["matrix"].zero_()
    assert not rows[..., 3:135].any()
    assert rows[..., :3].all()
    assert rows[..., 135:].all()


def test_a_single_number_is_a_tensor_too() -> None:
    """A learned temperature is a parameter of shape ()."""
    layout = Layout.from_tensors({"temperature": torch.tensor(2.0), "w": torch.ones(3)}, {})
    row = layout.pack({"temperature": torch.tensor(5.0), "w": torch.zeros(3)})
    assert row.tolist() == [5, 0, 0, 0]
    assert layout.views(torch.arange(8.0).reshape(2, 4))["temperature"].tolist() == [0, 4]
    assert layout.views(row)["temperature"].shape == ()


def test_pack_refuses_a_missing_name_and_another_shape() -> None:
    with pytest.raises(InputError, match=r"\['cube', 'matrix'\] are missing"):
        LAYOUT.pack({name: t for name, t in TENSORS.items() if name not in ("matrix", "cube")})
    with pytest.raises(InputError, match=r"'matrix' must have shape \(2, 6\) \(got \(6, 2\)"):
        LAYOUT.pack(TENSORS | {"matrix": TENSORS["matrix"].T})


# --- losses and metrics --------------------------------------------------------------------------------------


def theirs(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


@pytest.mark.parametrize("transformed", [lambda function: function, vmap], ids=["alone", "vmap"])
def test_cross_entropy_has_the_bits_of_pytorch_s(transformed: Callable[..., Callable[..., Tensor]]) -> None:
    draw = Stream(1)("draw").generator()
    shape = (5, 30) if transformed is vmap else (30,)
    outputs, labels = 9 * torch.randn(*shape, 7, generator=draw), torch.randint(0, 7, shape, generator=draw)
    share = torch.rand(shape, generator=draw)
    assert torch.equal(transformed(cross_entropy)(outputs, labels), transformed(theirs)(outputs, labels))

    def gradient(loss: Callable[..., Tensor]) -> Tensor:
        leaf = outputs.clone().requires_grad_()
        return torch.autograd.grad((transformed(loss)(leaf, labels) * share).sum(), leaf)[0]

    assert torch.equal(gradient(cross_entropy), gradient(theirs))
    assert gradient(cross_entropy).abs().sum() > 0


def test_squared_error_is_the_mean_over_the_targets_of_pytorch_s() -> None:
    outputs, targets = draw(6, 3), draw(6, 3, seed=8)
    expected = nn.functional.mse_loss(outputs, targets, reduction="none").mean(dim=1)
    torch.testing.assert_close(shoal.squared_error(outputs, targets), expected)


def test_squared_error_does_not_broadcast_labels_over_examples() -> None:
    outputs, targets = draw(6, 1), draw(6, seed=8)
    torch.testing.assert_close(shoal.squared_error(outputs, targets), (outputs[:, 0] - targets).square())
    with pytest.raises(RuntimeError):
        shoal.squared_error(draw(6, 3), targets[:, None])


def test_the_metric_is_accuracy_of_classes_and_minus_the_loss_of_targets() -> None:
    model = shoal.Model(partial(nn.Linear, 2, 2), shoal.squared_error)
    assert model.metric_for(2) is accuracy
    outputs, targets = draw(4, 2), draw(4, 2, seed=8)
    torch.testing.assert_close(model.metric_for(None)(outputs, targets), -shoal.squared_error(outputs, targets))
    assert accuracy(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([1, 1])).tolist() == [1, 0]
    own = shoal.Model(partial(nn.Linear, 2, 2), metric=cross_entropy)
    assert own.metric_for(2) is own.metric_for(None) is cross_entropy


def test_metrics_are_named_by_their_functions() -> None:
    named = {
        "accuracy": accuracy,
        "cross entropy": cross_entropy,
        "minus squared error": NegativeLoss(shoal.squared_error),
        "minus the loss": NegativeLoss(partial(shoal.squared_error)),
        "metric": lambda outputs, _: outputs,
        "CrossEntropyLoss": nn.CrossEntropyLoss(reduction="none"),
    }
    assert [metric_name(each) for each in named.values()] == list(named)
