"""The networks that a file can name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field
from torch import nn

from shoal.core.errors import described, nearest, quoted, require
from shoal.core.settings import MAX_CLASSES, settings
from shoal.models.model import Model
from shoal.models.networks import MLP, VGG, DigitsCNN, FacesCNN, FemnistCNN, Logistic, MnistCNN
from shoal.models.recurrent import ReviewGRU

Shipped = Literal[
    "digits-cnn", "mnist-cnn", "femnist-cnn", "vgg11", "vgg13", "vgg16", "mlp", "logistic", "faces-cnn", "gru"
]
MODELS: tuple[str, ...] = get_args(Shipped)
"""The names of all networks that a configuration or `create_model` can name."""
VECTOR_MODELS = ("mlp", "logistic")
"""The networks that take rows of a table."""
HIDDEN = {"mlp": 200, "faces-cnn": 256}
"""Hidden neurons of the networks that let one choose, by default."""
FILTERS = {"faces-cnn": (32, 64, 128)}
"""Filters of the convolutions of the networks that let one choose, by default."""
LEAST_SIDE = {"mnist-cnn": 4, "femnist-cnn": 6, "digits-cnn": 2, "vgg11": 32, "vgg13": 32, "vgg16": 32}
"""Pixels of the smallest images of the networks that take square ones alone."""


def _own(name: str) -> str:
    """The name of a user's own network."""
    if ":" not in name:
        raise ValueError("'module:Name'")
    return name


def _require_key(name: str, key: str, *, chosen: bool, known: bool) -> None:
    require(known or not chosen, f"model '{name}' has no '{key}' to choose; leave it out")


class _Sizes:
    """What a network must fit, in whole numbers from 1."""

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            most = MAX_CLASSES if name == "classes" else None
            fits = isinstance(size, Integral) and 1 <= int(size) <= (most or int(size))
            allowed = "a whole number, at least 1" if most is None else f"a whole number from 1 to {most:,}"
            require(fits, f"'{name}' must be {allowed}; got {size!r}")


@dataclass(frozen=True)
class Shape(_Sizes):
    """What a network must fit: images of ``channels`` x ``height`` x ``width``, in ``classes`` classes.

    Example:
        >>> import shoal
        >>> shape = shoal.Shape(channels=1, height=8, width=8, classes=10)
        >>> shape.inputs, shoal.create_model("logistic", shape).parameters
        (64, 650)
    """

    channels: int
    height: int
    width: int
    classes: int

    @property
    def inputs(self) -> int:
        """Numbers in one image."""
        return self.channels * self.height * self.width


@dataclass(frozen=True)
class TextShape(_Sizes):
    """What a network must fit: texts of words numbered 1 to ``vocabulary``, in ``classes`` classes.

    Example:
        >>> import torch, shoal
        >>> network = shoal.create_model("gru", shoal.TextShape(vocabulary=50, classes=3)).network()
        >>> network(torch.tensor([[7, 50, 2], [4, 0, 0]])).shape  # zeros pad the second text
        torch.Size([2, 3])
    """

    vocabulary: int
    classes: int


@dataclass(frozen=True)
class VectorShape(_Sizes):
    """What a network must fit: vectors of ``inputs`` numbers, such as rows of a table, in ``classes`` classes.

    Example:
        >>> import shoal
        >>> shape = shoal.VectorShape(inputs=5, classes=3)
        >>> [shoal.create_model(name, shape).parameters for name in ("logistic", "mlp")]
        [18, 1803]
    """

    inputs: int
    classes: int


@settings
class Network:
    """The network that is trained. ``hidden`` and ``filters`` are left out where it does not have them.

    Args:
        name: of images: ``digits-cnn``, ``mnist-cnn``, ``femnist-cnn``, ``vgg11``, ``vgg13``, ``vgg16``, ``mlp``,
            ``logistic`` or ``faces-cnn`` (images need not be square); of rows of a table: ``mlp`` or ``logistic``; of
            texts: ``gru``; or your own, ``module:Name``, a class or function that takes a `Shape`, `VectorShape` or
            `TextShape` and returns a `torch.nn.Module`.
        classes: outputs; by default as many as the data has classes.
        hidden: hidden neurons of ``mlp`` (by default 200) and ``faces-cnn`` (256); other networks have their own.
        filters: of the three convolutions of ``faces-cnn``, by default [32, 64, 128].
        norm: of the VGGs: ``batch`` norm as in the paper, or ``group`` norm, which DP-SGD needs.
        padding: of the convolutions of ``femnist-cnn``; its paper states none.

    Raises:
        InputError: a value outside its range, or a size that the network does not have.

    Example:
        >>> import shoal
        >>> from shoal.models import Network
        >>> Network("mlp").sized(classes=10).hidden
        200
        >>> Network("mlp", hidden=16).model(shoal.Shape(1, 8, 8, 10)).parameters
        1210
        >>> Network("vgg11").model(shoal.Shape(1, 8, 8, 10))
        Traceback (most recent call last):
            ...
        shoal.core.errors.InputError: model 'vgg11' takes square images of at least 32x32 pixels; the data has 8x8
    """

    name: Shipped | Annotated[str, AfterValidator(_own)]
    classes: Annotated[int, Field(ge=2, le=MAX_CLASSES, strict=True)] | None = None
    hidden: Annotated[int, Field(ge=1, le=100_000, strict=True)] | None = None
    filters: (
        Annotated[tuple[Annotated[int, Field(ge=1, le=10_000, strict=True)], ...], Field(min_length=3, max_length=3)]
        | None
    ) = None
    norm: Literal["batch", "group"] = "batch"
    padding: Annotated[int, Field(ge=0, le=1, strict=True)] = 0

    def __post_init__(self) -> None:
        _require_key(self.name, "norm", chosen=self.norm != "batch", known=self.name.startswith("vgg"))
        _require_key(self.name, "padding", chosen=self.padding != 0, known=self.name == "femnist-cnn")

    def sized(self, classes: int) -> "Network":
        """This network with all its sizes, and without those that it does not have."""
        hidden = (self.hidden or HIDDEN[self.name]) if self.name in HIDDEN else None
        filters = (self.filters or FILTERS[self.name]) if self.name in FILTERS else None
        return replace(self, classes=classes, hidden=hidden, filters=filters)

    def model(self, shape: Shape | VectorShape | TextShape) -> Model:
        """The model, its input and output layers fitted to ``shape``; a user's own network is none of these.

        Raises:
            InputError: an unknown name, or images, vectors or texts that the network cannot take.
        """
        require(self.name in MODELS, f"'{self.name}' is not one of Shoal's networks, and is built without it")
        if isinstance(shape, TextShape):
            require(self.name == "gru", f"model '{self.name}' takes images, but the data are texts; 'gru' takes those")
            return Model(partial(ReviewGRU, shape.vocabulary, shape.classes))
        require(
            self.name != "gru",
            "model 'gru' takes texts, but the data are "
            f"{'images' if isinstance(shape, Shape) else 'rows of a table'}; choose another model for those",
        )
        if isinstance(shape, VectorShape):
            require(
                self.name in VECTOR_MODELS,
                f"model '{self.name}' takes images, but the data are rows of a table; {quoted(VECTOR_MODELS)} take "
                "those",
            )
            # To these an image is a vector too.
            shape = Shape(1, 1, shape.inputs, shape.classes)
        return Model(self._of_images(shape))

    def _of_images(self, shape: Shape) -> Callable[[], nn.Module]:
        """What builds the network, which is one of images."""
        name, size = self.name, f"{shape.height}x{shape.width}"
        least = LEAST_SIDE.get(name, 1)
        require(
            least == 1 or (shape.height == shape.width and shape.height >= least),
            f"model '{name}' takes square images of at least {least}x{least} pixels; the data has {size}",
        )
        require(
            name != "faces-cnn" or min(shape.height, shape.width) >= 22,
            f"model 'faces-cnn' takes images of at least 22x22 pixels; the data has {size}",
        )
        hidden = self.hidden or HIDDEN.get(name, 1)
        image = {"channels": shape.channels, "side": shape.height, "classes": shape.classes}
        match name:
            case "mnist-cnn":
                return partial(MnistCNN, **image)
            case "femnist-cnn":
                return partial(FemnistCNN, **image, padding=self.padding)
            case "digits-cnn":
                return partial(DigitsCNN, **image)
            case "faces-cnn":
                sides = (shape.channels, shape.height, shape.width, shape.classes)
                return partial(FacesCNN, *sides, filters=self.filters or FILTERS[name], hidden=hidden)
            case "mlp":
                return partial(MLP, inputs=shape.inputs, hidden=hidden, classes=shape.classes)
            case "logistic":
                return partial(Logistic, inputs=shape.inputs, classes=shape.classes)
            case _:
                return partial(VGG, **image, depth=int(name[3:]), norm=self.norm)


def create_model(
    name: str,
    shape: Shape | VectorShape | TextShape,
    *,
    hidden: int | None = None,
    filters: Sequence[int] | None = None,
    norm: Literal["batch", "group"] = "batch",
    padding: int = 0,
) -> Model:
    """The model called ``name``, one of `MODELS`, its input and output layers fitted to ``shape``; more in `Network`.

    Raises:
        InputError: an unknown name, or images, vectors or texts that the network cannot take.

    Example:
        >>> from shoal import create_model, Shape
        >>> create_model("mnist-cnn", Shape(1, 28, 28, 10)).parameters
        50186
    """
    shaped = isinstance(shape, Shape | VectorShape | TextShape)
    require(shaped, f"'shape' must be a Shape, VectorShape or TextShape; got {described(shape)}")
    require(name in MODELS, f"unknown model '{name}'; {nearest(name, MODELS)}")
    _require_key(name, "hidden", chosen=hidden is not None, known=name in HIDDEN)
    _require_key(name, "filters", chosen=filters is not None, known=name in FILTERS)
    sizes = None if filters is None else tuple(filters)
    return Network(name, hidden=hidden, filters=sizes, norm=norm, padding=padding).model(shape)
