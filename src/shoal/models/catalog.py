"""The catalog of models by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from shoal.core.errors import nearest, require
from shoal.models.model import Model
from shoal.models.networks import MLP, VGG, DigitsCNN, FacesCNN, FemnistCNN, Logistic, MnistCNN
from shoal.models.recurrent import ReviewGRU

MODELS = (
    "digits-cnn",
    "mnist-cnn",
    "femnist-cnn",
    "vgg11",
    "vgg13",
    "vgg16",
    "mlp",
    "logistic",
    "faces-cnn",
    "gru",
)
HIDDEN = {"mlp": 200, "faces-cnn": 256}
"""Default number of hidden neurons, of the models that take one."""
FILTERS = {"faces-cnn": (32, 64, 128)}
"""Default numbers of filters of the convolutions, of the models that take them."""
_MIN_SIDE = {"mnist-cnn": 4, "femnist-cnn": 6, "digits-cnn": 2, "vgg11": 32, "vgg13": 32, "vgg16": 32}
"""Smallest side of the images, of the models that take square images only."""


@dataclass(frozen=True)
class Shape:
    """The inputs and outputs of a network of images: ``channels`` x ``height`` x ``width``, and ``classes``."""

    channels: int
    height: int
    width: int
    classes: int

    @property
    def inputs(self) -> int:
        """Number of values of one image."""
        return self.channels * self.height * self.width


@dataclass(frozen=True)
class TextShape:
    """The inputs and outputs of a network of texts: words numbered 1 to ``vocabulary``, and ``classes``."""

    vocabulary: int
    classes: int


def create_model(
    name: str,
    shape: Shape | TextShape,
    *,
    hidden: int | None = None,
    filters: Sequence[int] | None = None,
    norm: str = "batch",
    padding: int = 0,
) -> Model:
    """The model called ``name``, its input and output layers fitted to ``shape``.

    Args:
        name: one of `MODELS`.
        shape: its inputs and outputs.
        hidden: hidden neurons of "mlp" (None: 200) and "faces-cnn" (None: 256).
        filters: filters of the three convolutions of "faces-cnn" (None: 32, 64 and 128).
        norm: "batch" or "group", for the VGGs.
        padding: padding of the convolutions of "femnist-cnn" (the paper states none).

    Raises:
        InputError: an unknown name, or images or texts that the network cannot take.

    >>> create_model("mnist-cnn", Shape(1, 28, 28, 10)).parameters
    50186
    """
    require(name in MODELS, f"unknown model '{name}'; {nearest(name, MODELS)}")
    if isinstance(shape, TextShape):
        require(name == "gru", f"model '{name}' takes images, but the data are texts; 'gru' takes those")
        return Model(partial(ReviewGRU, shape.vocabulary, shape.classes))
    require(name != "gru", "model 'gru' takes texts, but the data are images; choose another model for those")
    return Model(_image_network(name, shape, hidden=hidden, filters=filters, norm=norm, padding=padding))


def _image_network(
    name: str, shape: Shape, *, hidden: int | None, filters: Sequence[int] | None, norm: str, padding: int
) -> Callable[[], nn.Module]:
    """A function that builds the network of images called ``name``."""
    side = _MIN_SIDE.get(name)
    require(
        side is None or (shape.height == shape.width and shape.height >= side),
        f"model '{name}' takes square images of at least {side}x{side} pixels; "
        f"the data has {shape.height}x{shape.width}",
    )
    require(
        name != "faces-cnn" or min(shape.height, shape.width) >= 22,
        f"model 'faces-cnn' takes images of at least 22x22 pixels; the data has {shape.height}x{shape.width}",
    )
    hidden = HIDDEN.get(name, 0) if hidden is None else hidden
    square = {"channels": shape.channels, "side": shape.height, "classes": shape.classes}
    match name:
        case "mnist-cnn":
            return partial(MnistCNN, **square)
        case "femnist-cnn":
            return partial(FemnistCNN, **square, padding=padding)
        case "digits-cnn":
            return partial(DigitsCNN, **square)
        case "faces-cnn":
            filters = FILTERS[name] if filters is None else tuple(filters)
            require(len(filters) == 3, f"'filters' must be three numbers for 'faces-cnn'; got {len(filters)}")
            size = (shape.channels, shape.height, shape.width, shape.classes)
            return partial(FacesCNN, *size, filters=filters, hidden=hidden)
        case "mlp":
            return partial(MLP, inputs=shape.inputs, hidden=hidden, classes=shape.classes)
        case "logistic":
            return partial(Logistic, inputs=shape.inputs, classes=shape.classes)
        case _:
            return partial(VGG, **square, depth=int(name[3:]), norm=norm)
