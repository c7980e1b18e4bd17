"""The networks that a configuration can name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field
from torch import nn

from shoal.core.errors import describe, quote, require, suggest
from shoal.core.settings import MAX_CLASSES, settings
from shoal.models.features import Features
from shoal.models.model import Model
from shoal.models.networks import MLP, VGG, DigitsCNN, FacesCNN, FemnistCNN, Logistic, MnistCNN, ReviewGRU

Shipped = Literal[
    "digits-cnn", "mnist-cnn", "femnist-cnn", "vgg11", "vgg13", "vgg16", "mlp", "logistic", "faces-cnn", "gru"
]
MODELS: tuple[str, ...] = get_args(Shipped)
"""The names of all networks that a configuration or `create_model` can name."""

_VECTOR_MODELS = ("mlp", "logistic")
_HIDDEN = {"mlp": 200, "faces-cnn": 256}
"""Default hidden neurons of the networks that let one choose."""
_FILTERS = {"faces-cnn": (32, 64, 128)}
"""Default filters of the convolutions of the networks that let one choose."""
_SQUARE: dict[str, tuple[type[nn.Module], int]] = {
    "mnist-cnn": (MnistCNN, 4),
    "femnist-cnn": (FemnistCNN, 6),
    "digits-cnn": (DigitsCNN, 2),
    **dict.fromkeys(("vgg11", "vgg13", "vgg16"), (VGG, 32)),
}
"""The networks that take square images alone, and the pixels of the smallest ones."""


def _own(name: str) -> str:
    """The name of a user's own network."""
    if ":" not in name:
        raise ValueError("'module:Name'")
    return name


def lacking_keys(name: str) -> list[str]:
    """The keys of `Network` that the network ``name`` does not have.

    >>> lacking_keys("mlp"), lacking_keys("vgg11")
    (['filters', 'norm', 'padding'], ['hidden', 'filters', 'padding'])
    """
    owners = {"hidden": _HIDDEN, "filters": _FILTERS, "norm": ("vgg11", "vgg13", "vgg16"), "padding": ("femnist-cnn",)}
    return [key for key, names in owners.items() if name not in names]


class _Sizes:
    """Sizes that a network must fit, integers from 1."""

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            most = MAX_CLASSES if name == "classes" else None
            fits = isinstance(size, Integral) and 1 <= int(size) <= (most or int(size))
            allowed = "an integer, at least 1" if most is None else f"an integer from 1 to {most:,}"
            require(fits, f"'{name}' must be {allowed}; got {size!r}")


@dataclass(frozen=True)
class Shape(_Sizes):
    """Images of ``channels`` x ``height`` x ``width`` in ``classes`` classes, which a network must fit."""

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
    """Texts of words numbered 1 to ``vocabulary`` in ``classes`` classes, which a network must fit."""

    vocabulary: int
    classes: int


@dataclass(frozen=True)
class VectorShape(_Sizes):
    """Vectors of ``inputs`` numbers, such as rows of a table, in ``classes`` classes, which a network must fit."""

    inputs: int
    classes: int


@settings
class Network:
    """The network that is trained. ``hidden``, ``filters``, ``norm`` or ``padding`` is an error for other networks.

    Where ``--set`` or a sweep changes the ``name``, those of the file that the new network lacks are left out.

    Args:
        name: the network's name; for images: ``digits-cnn``, ``mnist-cnn``, ``femnist-cnn``, ``vgg11``, ``vgg13``,
            ``vgg16``, ``mlp``, ``logistic`` or ``faces-cnn`` (images need not be square); for rows of a table: ``mlp``
            or ``logistic``; for texts: ``gru``; or your own, ``module:Name``, a class or function that takes a `Shape`,
            `VectorShape` or `TextShape` and returns a `torch.nn.Module`.
        classes: number of outputs; by default as many as the data has classes, in a regression 1.
        hidden: number of hidden neurons of ``mlp`` (by default 200) and ``faces-cnn`` (256); fixed in other networks.
        filters: numbers of filters of the three convolutions of ``faces-cnn``, by default [32, 64, 128].
        norm: the normalisation of the VGGs: ``batch`` norm as in the paper, or ``group`` norm, which DP-SGD needs.
        padding: the padding of the convolutions of ``femnist-cnn``, in pixels; its paper states none.
        features: ``[model.features]``, a fixed map before the network, whose inputs are then vectors.

    Raises:
        InputError: a value outside its range, or a size that the network does not have.
    """

    name: Shipped | Annotated[str, AfterValidator(_own)]
    classes: Annotated[int, Field(ge=1, le=MAX_CLASSES, strict=True)] | None = None
    hidden: Annotated[int, Field(ge=1, le=100_000, strict=True)] | None = None
    filters: (
        Annotated[tuple[Annotated[int, Field(ge=1, le=10_000, strict=True)], ...], Field(min_length=3, max_length=3)]
        | None
    ) = None
    norm: Literal["batch", "group"] = "batch"
    padding: Annotated[int, Field(ge=0, le=1, strict=True)] = 0
    features: Features | None = None

    def __post_init__(self) -> None:
        for key in lacking_keys(self.name):
            unset = getattr(self, key) == getattr(Network, key)
            require(unset, f"model '{self.name}' has no '{key}' to choose; leave it out")

    def sized(self, classes: int) -> "Network":
        """The network with all its sizes, and without those that it does not have."""
        hidden = (self.hidden or _HIDDEN[self.name]) if self.name in _HIDDEN else None
        filters = (self.filters or _FILTERS[self.name]) if self.name in _FILTERS else None
        return replace(self, classes=classes, hidden=hidden, filters=filters)

    def model(self, shape: Shape | VectorShape | TextShape) -> Model:
        """The model of a shipped network, its input and output layers fitted to ``shape``.

        Raises:
            InputError: a network of a user's own, or images, vectors or texts that the network cannot take.
        """
        name = self.name
        require(name in MODELS, f"'{name}' is not one of Shoal's networks, and is built without it")
        kind = {Shape: "images", VectorShape: "rows of a table", TextShape: "texts"}[type(shape)]
        kind = kind if self.features is None else "features"
        if isinstance(shape, TextShape):
            require(name == "gru", f"model '{name}' takes images, but the data are texts; 'gru' takes those")
            return Model(NamedBuild(self.sized(shape.classes), partial(ReviewGRU, shape.vocabulary, shape.classes)))
        require(name != "gru", f"model 'gru' takes texts, but the data are {kind}; choose another model for those")
        if isinstance(shape, VectorShape):
            require(
                name in _VECTOR_MODELS,
                f"model '{name}' takes images, but the data are {kind}; {quote(_VECTOR_MODELS)} take those",
            )
            # To these an image is a vector too.
            shape = Shape(1, 1, shape.inputs, shape.classes)
        return Model(NamedBuild(self.sized(shape.classes), self._build(shape)))

    def _build(self, shape: Shape) -> Callable[[], nn.Module]:
        """The builder of the network, which is one of images."""
        name, size = self.name, f"the data has {shape.height}x{shape.width}"
        hidden = self.hidden or _HIDDEN.get(name, 1)
        if name == "mlp":
            return partial(MLP, inputs=shape.inputs, hidden=hidden, classes=shape.classes)
        if name == "logistic":
            return partial(Logistic, inputs=shape.inputs, classes=shape.classes)
        if name == "faces-cnn":
            least = min(shape.height, shape.width)
            require(least >= 22, f"model 'faces-cnn' takes images of at least 22x22 pixels; {size}")
            sides = (shape.channels, shape.height, shape.width, shape.classes)
            return partial(FacesCNN, *sides, filters=self.filters or _FILTERS[name], hidden=hidden)
        network, least = _SQUARE[name]
        require(
            shape.height == shape.width and shape.height >= least,
            f"model '{name}' takes square images of at least {least}x{least} pixels; {size}",
        )
        options: dict[str, Any] = {"padding": self.padding} if name == "femnist-cnn" else {}
        if network is VGG:
            options = {"depth": int(name[3:]), "norm": self.norm}
        return partial(network, channels=shape.channels, side=shape.height, classes=shape.classes, **options)


@dataclass(frozen=True)
class NamedBuild:
    """The ``build`` of a shipped network's model, with the settings that name it in a file."""

    network: Network
    build: Callable[[], nn.Module]

    def __call__(self) -> nn.Module:
        """A new network."""
        return self.build()


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
        >>> import torch
        >>> from shoal import create_model, Shape, TextShape, VectorShape
        >>> create_model("mnist-cnn", Shape(channels=1, height=28, width=28, classes=10)).parameters
        50186
        >>> create_model("mlp", VectorShape(inputs=5, classes=3), hidden=4).parameters
        39
        >>> network = create_model("gru", TextShape(vocabulary=50, classes=3)).network()
        >>> network(torch.tensor([[7, 50, 2], [4, 0, 0]])).shape  # zeros pad the second text
        torch.Size([2, 3])
    """
    shaped = isinstance(shape, Shape | VectorShape | TextShape)
    require(shaped, f"'shape' must be a Shape, VectorShape or TextShape; got {describe(shape)}")
    require(name in MODELS, f"unknown model '{name}'; {suggest(name, MODELS)}")
    sizes = None if filters is None else tuple(filters)
    return Network(name, hidden=hidden, filters=sizes, norm=norm, padding=padding).model(shape)
