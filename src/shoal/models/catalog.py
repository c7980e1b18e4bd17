"""The networks that a config can name."""

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
"""Hidden neurons of the models that let one choose, if nothing is said."""
FILTERS = {"faces-cnn": (32, 64, 128)}
"""Filters of the convolutions of the models that let one choose, if nothing is said."""


@dataclass(frozen=True)
class Shape:
    """What a network must fit: images of ``channels`` x ``height`` x ``width``, in ``classes`` classes."""

    channels: int
    height: int
    width: int
    classes: int

    @property
    def inputs(self) -> int:
        """Numbers in one image."""
        return self.channels * self.height * self.width


@dataclass(frozen=True)
class TextShape:
    """What a network must fit: texts of words numbered 1 to ``vocabulary``, in ``classes`` classes."""

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
        shape: images or texts, and classes, that it must take.
        hidden: hidden neurons of "mlp" (None: 200) and "faces-cnn" (None: 256).
        filters: of the three convolutions of "faces-cnn" (None: 32, 64 and 128).
        norm: "batch" or "group", for the VGGs.
        padding: padding of the convolutions of "femnist-cnn" (the paper states none).

    Raises:
        InputError: an unknown name, or images or texts that the network cannot take.

    >>> create_model("mnist-cnn", Shape(1, 28, 28, 10)).parameters
    50186
    """
    require(name in MODELS, f"model.name = '{name}' is not a model; {nearest(name, MODELS)}")
    if isinstance(shape, TextShape):
        require(name == "gru", f"model.name = '{name}' takes images, but the data are texts; 'gru' takes those")
        return Model(partial(ReviewGRU, shape.vocabulary, shape.classes))
    require(name != "gru", "model.name = 'gru' takes texts, but the data are images; choose another model for those")
    return Model(_of_images(name, shape, hidden=hidden, filters=filters, norm=norm, padding=padding))


def _of_images(
    name: str, shape: Shape, *, hidden: int | None, filters: Sequence[int] | None, norm: str, padding: int
) -> Callable[[], nn.Module]:
    """What builds the network of images called ``name``."""
    least = {"mnist-cnn": 4, "femnist-cnn": 6, "digits-cnn": 2, "vgg11": 32, "vgg13": 32, "vgg16": 32}.get(name, 1)
    if least > 1:
        require(
            shape.height == shape.width and shape.height >= least,
            f"model.name = '{name}' takes square images of at least {least}x{least} pixels; "
            f"the data has {shape.height}x{shape.width}",
        )
    require(
        name != "faces-cnn" or min(shape.height, shape.width) >= 22,
        f"model.name = 'faces-cnn' takes images of at least 22x22 pixels; the data has {shape.height}x{shape.width}",
    )
    hidden = HIDDEN.get(name, 0) if hidden is None else hidden
    image = {"channels": shape.channels, "side": shape.height, "classes": shape.classes}
    match name:
        case "mnist-cnn":
            return partial(MnistCNN, **image)
        case "femnist-cnn":
            return partial(FemnistCNN, **image, padding=padding)
        case "digits-cnn":
            return partial(DigitsCNN, **image)
        case "faces-cnn":
            filters = FILTERS[name] if filters is None else tuple(filters)
            require(len(filters) == 3, f"'model.filters' must be three numbers for 'faces-cnn'; got {len(filters)}")
            size = (shape.channels, shape.height, shape.width, shape.classes)
            return partial(FacesCNN, *size, filters=filters, hidden=hidden)
        case "mlp":
            return partial(MLP, inputs=shape.inputs, hidden=hidden, classes=shape.classes)
        case "logistic":
            return partial(Logistic, inputs=shape.inputs, classes=shape.classes)
        case _:
            return partial(VGG, **image, depth=int(name[3:]), norm=norm)
