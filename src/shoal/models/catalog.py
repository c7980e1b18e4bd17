"""The networks that a config can name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from shoal.core.checks import InputError, nearest, require
from shoal.models.model import Model
from shoal.models.networks import MLP, VGG, DigitsCNN, FemnistCNN, Logistic, MnistCNN

MODELS = ("digits-cnn", "mnist-cnn", "femnist-cnn", "vgg11", "vgg13", "vgg16", "mlp", "logistic")


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


def named_model(name: str, shape: Shape, *, hidden: int = 200, norm: str = "batch", padding: int = 0) -> Model:
    """The model called ``name``, its input and output layers fitted to ``shape``.

    Args:
        name: one of `MODELS`.
        shape: images and classes it must take.
        hidden: hidden neurons of "mlp".
        norm: "batch" or "group", for the VGGs.
        padding: padding of the convolutions of "femnist-cnn" (the paper states none).

    Raises:
        InputError: an unknown name, or images that the network cannot take.

    >>> named_model("mnist-cnn", Shape(1, 28, 28, 10)).parameters
    50186
    """
    build: Callable[[], nn.Module]
    least = {"mnist-cnn": 4, "femnist-cnn": 6, "digits-cnn": 2, "vgg11": 32, "vgg13": 32, "vgg16": 32}.get(name, 1)
    if least > 1:
        require(
            shape.height == shape.width and shape.height >= least,
            f"model.name = '{name}' takes square images of at least {least}x{least} pixels; "
            f"the data has {shape.height}x{shape.width}",
        )
    image = {"channels": shape.channels, "side": shape.height, "classes": shape.classes}
    match name:
        case "mnist-cnn":
            build = partial(MnistCNN, **image)
        case "femnist-cnn":
            build = partial(FemnistCNN, **image, padding=padding)
        case "digits-cnn":
            build = partial(DigitsCNN, **image)
        case "vgg11" | "vgg13" | "vgg16":
            build = partial(VGG, **image, depth=int(name[3:]), norm=norm)
        case "mlp":
            build = partial(MLP, inputs=shape.inputs, hidden=hidden, classes=shape.classes)
        case "logistic":
            build = partial(Logistic, inputs=shape.inputs, classes=shape.classes)
        case _:
            raise InputError(f"model.name = '{name}' is not a model; {nearest(name, MODELS)}")
    return Model(build)
