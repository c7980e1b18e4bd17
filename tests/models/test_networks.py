"""The networks against appendix A.1 of IFCA-MIR, counted by hand."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import shoal
from shoal.core.errors import InputError
from shoal.core.randomness import Stream, seed_libraries
from shoal.models import MLP, MODELS, VGG, DigitsCNN, FacesCNN, FemnistCNN, Logistic, MnistCNN

MNIST = shoal.Shape(1, 28, 28, 10)
FEMNIST = shoal.Shape(1, 28, 28, 62)
CIFAR = shoal.Shape(3, 32, 32, 10)
DIGITS = shoal.Shape(1, 8, 8, 10)
FACES = shoal.Shape(3, 62, 47, 2)
SMALL = [name for name in MODELS if not name.startswith("vgg") and name not in {"faces-cnn", "gru"}]


def images(count: int, shape: shoal.Shape) -> Tensor:
    return torch.rand(count, shape.channels, shape.height, shape.width, generator=Stream(5).generator())


def built(build: Callable[..., nn.Module], **options) -> Any:
    """A network with the same values each time."""
    with seed_libraries(Stream(1)):
        return build(**options)


def inputs_of(network: nn.Module, kind: type[nn.Module], x: Tensor) -> list[tuple[int, ...]]:
    """The shape of one example as each layer of ``kind`` receives it, in the order of the forward pass."""
    shapes: list[tuple[int, ...]] = []
    for module in network.modules():
        if isinstance(module, kind):
            module.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape[1:])))
    network(x)
    return shapes


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


# The parameters, layer by layer: filters * (inputs * 3 * 3 + 1) of a convolution, outputs * (inputs + 1) of a
# fully connected layer.
CONVOLUTIONS_32_64 = 32 * (1 * 9 + 1) + 64 * (32 * 9 + 1)
HAND_COUNTS = {
    "mnist-cnn": (MNIST, {}, 50_186),
    "femnist-cnn, no padding": (FEMNIST, {"padding": 0}, CONVOLUTIONS_32_64 + 128 * (64 * 12 * 12 + 1) + 62 * 129),
    "femnist-cnn, padding": (FEMNIST, {"padding": 1}, CONVOLUTIONS_32_64 + 128 * (64 * 14 * 14 + 1) + 62 * 129),
    "faces-cnn": (FACES, {}, 32 * 28 + 64 * (32 * 9 + 1) + 128 * (64 * 9 + 1) + 256 * (128 * 6 * 4 + 1) + 2 * 257),
    "faces-cnn, small": (
        FACES,
        {"filters": [4, 5, 6], "hidden": 7},
        4 * 28 + 5 * (4 * 9 + 1) + 6 * (5 * 9 + 1) + 7 * (6 * 6 * 4 + 1) + 2 * 8,
    ),
    "mlp": (MNIST, {"hidden": 200}, 159_010),
    "mlp, by itself": (MNIST, {}, 159_010),
    "logistic": (MNIST, {}, 7_850),
    "digits-cnn": (DIGITS, {}, 16 * (9 + 1) + 32 * (16 * 9 + 1) + 64 * (32 * 16 + 1) + 10 * 65),
}


@pytest.mark.parametrize("case", list(HAND_COUNTS))
def test_a_named_model_has_the_parameters_counted_by_hand(case: str) -> None:
    shape, options, expected = HAND_COUNTS[case]
    assert shoal.create_model(case.partition(",")[0], shape, **options).parameters == expected


def test_mnist_output_layer_is_xavier_and_nothing_else_is() -> None:
    """Glorot uniform: |w| <= sqrt(6 / (fan in + fan out)), variance 2 / (fan in + fan out)."""
    network = built(MnistCNN)
    weight = network.output.weight.detach()
    bound = (6 / (3136 + 10)) ** 0.5
    assert 0.999 * bound < weight.abs().max() <= bound
    assert weight.var().item() == pytest.approx(2 / 3146, rel=0.05)
    default = (1 / 3136) ** 0.5  # PyTorch's own bound, which a forgotten Xavier would leave
    assert weight.abs().max() > 2 * default
    assert network.second.weight.abs().max() <= (1 / (32 * 9)) ** 0.5


def relu_then_pool(x: Tensor) -> Tensor:
    return functional.max_pool2d(functional.relu(x), 2)


def literal_mnist(n: MnistCNN, x: Tensor) -> Tensor:
    """The appendix word by word: convolution, ReLU, pooling, twice; flatten; one layer."""
    return n.output(relu_then_pool(n.second(relu_then_pool(n.first(x)))).flatten(1))


def literal_femnist(n: FemnistCNN | DigitsCNN, x: Tensor) -> Tensor:
    features = relu_then_pool(n.second(functional.relu(n.first(x))))
    return n.output(functional.relu(n.hidden(features.flatten(1))))


def literal_faces(n: FacesCNN, x: Tensor) -> Tensor:
    features = relu_then_pool(n.third(relu_then_pool(n.second(relu_then_pool(n.first(x))))))
    return n.output(functional.relu(n.hidden(features.flatten(1))))


@pytest.mark.parametrize(("height", "width"), [(62, 47), (22, 23), (47, 62)])
def test_faces_give_the_same_in_onednn_s_layout(height: int, width: int) -> None:
    network = built(FacesCNN, height=height, width=width)
    x = images(3, shoal.Shape(3, height, width, 2))
    assert network.onednn_layout
    parameters = list(network.parameters())
    results = []
    for given in (x, x.to_mkldnn(), x.contiguous(memory_format=torch.channels_last)):
        outputs = network(given)
        outputs = outputs.to_dense() if outputs.is_mkldnn else outputs
        loss = functional.cross_entropy(outputs, torch.tensor([0, 1, 1]))
        results.append((outputs, *torch.autograd.grad(loss, parameters)))
    for other in results[1:]:
        for ours, theirs in zip(other, results[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "literal", "shape"),
    [
        (MnistCNN, literal_mnist, MNIST),
        (FemnistCNN, literal_femnist, FEMNIST),
        (DigitsCNN, literal_femnist, DIGITS),
        (FacesCNN, literal_faces, FACES),
    ],
    ids=["mnist", "femnist", "digits", "faces"],
)
def test_pool_then_relu_is_relu_then_pool_in_outputs_and_gradients(build, literal, shape) -> None:
    network = built(build)
    x = images(4, shape)
    labels = torch.arange(4) % shape.classes
    gradients = []
    for forward in (network, lambda x: literal(network, x)):
        outputs = forward(x)
        gradient = torch.autograd.grad(functional.cross_entropy(outputs, labels), list(network.parameters()))
        gradients.append((outputs, *gradient))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


VGG_CHANNELS = {
    11: [64, 128, 256, 256, 512, 512, 512, 512],
    13: [64, 64, 128, 128, 256, 256, 512, 512, 512, 512],
    16: [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512],
}
"""Simonyan and Zisserman 2015, table 1: configurations A, B and D."""

VGG_CONVOLUTION_PARAMETERS = {11: 9_220_480, 13: 9_404_992, 16: 14_714_688}


@pytest.mark.parametrize("depth", [11, 13, 16])
def test_vgg_is_the_configuration_with_a_norm_after_each_convolution_and_three_layers(depth: int) -> None:
    network = built(VGG, depth=depth)
    layers = [m for m in network.modules() if not list(m.children())]
    convolutions = [m for m in layers if isinstance(m, nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == VGG_CHANNELS[depth]
    assert all(c.kernel_size == (3, 3) for c in convolutions)
    for here, then in pairwise(layers):
        if isinstance(here, nn.Conv2d):
            assert isinstance(then, nn.BatchNorm2d)
            assert then.num_features == here.out_channels
        if isinstance(here, nn.BatchNorm2d):
            assert isinstance(then, nn.ReLU)
    assert sum(isinstance(m, nn.MaxPool2d) for m in layers) == 5
    linear = [m for m in layers if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(512, 512), (512, 512), (512, 10)]
    norms = 2 * sum(VGG_CHANNELS[depth])
    assert count(network) == VGG_CONVOLUTION_PARAMETERS[depth] + norms + 2 * 512 * 513 + 10 * 513


def test_vgg_pools_where_the_number_of_filters_grows() -> None:
    sides = [shape[1] for shape in inputs_of(built(VGG, depth=11).eval(), nn.Conv2d, images(1, CIFAR))]
    assert sides == [32, 16, 8, 8, 4, 4, 2, 2]


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_vgg_says_log_probabilities(norm: str) -> None:
    network = shoal.create_model("vgg11", CIFAR, norm=norm).network()
    outputs = network(images(3, CIFAR))
    assert outputs.shape == (3, 10)
    torch.testing.assert_close(outputs.exp().sum(dim=1), torch.ones(3))
    assert (outputs < 0).all()


def test_batch_norm_keeps_running_numbers_and_group_norm_none() -> None:
    batch = shoal.create_model("vgg11", CIFAR, norm="batch")
    group = shoal.create_model("vgg11", CIFAR, norm="group")
    assert batch.parameters == group.parameters
    assert batch.layout.size - batch.layout.trainable == 2 * sum(VGG_CHANNELS[11])
    assert group.layout.size == group.layout.trainable
    assert not list(group.network().buffers())


def test_group_norm_keeps_examples_apart_where_batch_norm_mixes_them() -> None:
    x = images(4, CIFAR)
    for norm, apart in (("group", True), ("batch", False)):
        network = built(VGG, norm=norm).train()
        together, alone = network(x)[:2], network(x[:2])
        assert torch.allclose(together, alone, atol=1e-4) is apart


def test_mlp_and_logistic_flatten_any_image() -> None:
    x = images(2, CIFAR)
    assert built(MLP, inputs=3072, hidden=5, classes=7)(x).shape == (2, 7)
    logistic = built(Logistic, inputs=3072, classes=4)
    expected = x.reshape(2, -1) @ logistic.output.weight.T + logistic.output.bias
    torch.testing.assert_close(logistic(x), expected)


def test_mlp_is_one_hidden_layer_with_relu() -> None:
    network = built(MLP)
    x = images(3, MNIST)
    hidden = (x.reshape(3, -1) @ network.hidden.weight.T + network.hidden.bias).clamp(min=0)
    torch.testing.assert_close(network(x), hidden @ network.output.weight.T + network.output.bias)


@pytest.mark.parametrize(
    ("name", "least"), [("mnist-cnn", 4), ("femnist-cnn", 6), ("digits-cnn", 2), ("vgg11", 32), ("vgg13", 32)]
)
def test_the_least_image_works_and_one_pixel_less_is_refused(name: str, least: int) -> None:
    smallest = shoal.Shape(1, least, least, 3)
    assert shoal.create_model(name, smallest).network().eval()(images(1, smallest)).shape == (1, 3)
    with pytest.raises(InputError, match=f"'{name}'.*{least}x{least}") as refused:
        shoal.create_model(name, shoal.Shape(1, least - 1, least - 1, 3))
    assert f"got {least - 1}x{least - 1}" in str(refused.value)


FITTED = [
    *((name, shape) for name in SMALL for shape in (shoal.Shape(1, 8, 8, 10), shoal.Shape(3, 13, 13, 4))),
    *(("vgg11", shoal.Shape(3, side, side, 5)) for side in (32, 40, 64)),
    *((name, shoal.Shape(1, 4, 7, 3)) for name in ("mlp", "logistic")),
    ("faces-cnn", shoal.Shape(1, 22, 30, 2)),
]


@pytest.mark.parametrize(("name", "shape"), FITTED, ids=str)
def test_a_network_fits_itself_to_images_and_classes(name: str, shape: shoal.Shape) -> None:
    network = shoal.create_model(name, shape).network().eval()
    assert network(images(2, shape)).shape == (2, shape.classes)


REFUSED = [
    *((name, shoal.Shape(1, 40, 41, 3), f"'{name}'.*40x41") for name in
      ("mnist-cnn", "femnist-cnn", "digits-cnn", "vgg16")),
    ("faces-cnn", shoal.Shape(1, 30, 21, 2), "22x22.*30x21"),
    ("qqq", MNIST, "known: digits-cnn, faces-cnn, femnist-cnn, gru, logistic, .*vgg16"),
    ("gru", MNIST, r"got images\)"),
    ("gru", shoal.VectorShape(3, 2), r"got rows of a table\)"),
    ("vgg11", shoal.VectorShape(3, 2), "'mlp', 'logistic'"),
    *((name, shoal.TextShape(20, 3), f"'{name}'.*texts") for name in MODELS
      if name != "gru"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "sentence"), REFUSED, ids=str)
def test_a_network_of_other_inputs_is_refused(name: str, shape, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        shoal.create_model(name, shape)


def test_sizes_that_a_network_does_not_have_are_refused() -> None:
    with pytest.raises(InputError, match=r"got 19\)"):
        VGG(depth=19)
    with pytest.raises(InputError, match=r"'filters' must be a list of 3 \(got \(3, 4\)"):
        shoal.create_model("faces-cnn", FACES, filters=[3, 4])
