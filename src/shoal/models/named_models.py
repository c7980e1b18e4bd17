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
"""The default numbers of hidden neurons, for networks with the key ``hidden``."""
_FILTERS = {"faces-cnn": (32, 64, 128)}
"""The default numbers of filters, for networks with the key ``filters``."""
_SQUARE: dict[str, tuple[type[nn.Module], int]] = {
    "mnist-cnn": (MnistCNN, 4),
    "femnist-cnn": (FemnistCNN, 6),
    "digits-cnn": (DigitsCNN, 2),
    **dict.fromkeys(("vgg11", "vgg13", "vgg16"), (VGG, 32)),
}
"""The networks for square images only, with their smallest number of pixels per side."""


def _own(name: str) -> str:
    """Validate the name of a user's own network."""
    if ":" not in name:
        raise ValueError("'module:Name'")
    return name


def lacking_keys(name: str) -> list[str]:
    """Return the keys of `Network` that the network ``name`` does not have.

    >>> lacking_keys("mlp"), lacking_keys("vgg11")
    (['filters', 'norm', 'padding'], ['hidden', 'filters', 'padding'])
    """
    owners = {"hidden": _HIDDEN, "filters": _FILTERS, "norm": ("vgg11", "vgg13", "vgg16"), "padding": ("femnist-cnn",)}
    return [key for key, names in owners.items() if name not in names]


class _Sizes:
    """The sizes of a network's inputs and outputs, integers of at least 1."""

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            most = MAX_CLASSES if name == "classes" else None
            fits = isinstance(size, Integral) and 1 <= int(size) <= (most or int(size))
            allowed = "an integer, at least 1" if most is None else f"an integer from 1 to {most:,}"
            require(fits, f"'{name}' must be {allowed} (got {size!r})")


@dataclass(frozen=True)
class Shape(_Sizes):
    """The sizes of images for a network, ``channels`` x ``height`` x ``width``, and the number of classes."""

    channels: int
    height: int
    width: int
    classes: int

    @property
    def inputs(self) -> int:
        """The number of values in one image."""
        return self.channels * self.height * self.width


@dataclass(frozen=True)
class TextShape(_Sizes):
    """The number of words, numbered from 1 to ``vocabulary``, and the number of classes, for a network."""

    vocabulary: int
    classes: int


@dataclass(frozen=True)
class VectorShape(_Sizes):
    """The number of inputs per vector, such as a table row, and the number of classes, for a network."""

    inputs: int
    classes: int


@settings
class Network:
    """The trained network.

    Each network allows only some of the keys ``hidden``, ``filters``, ``norm`` and ``padding``. If ``--set`` or a sweep
    changes ``name``, Shoal ignores keys in the file that the new network does not have.

    Args:
        name: the network's name. Images: ``digits-cnn``, ``mnist-cnn``, ``femnist-cnn``, ``vgg11``, ``vgg13``,
            ``vgg16``, ``mlp``, ``logistic`` or ``faces-cnn``; only the last three take images that are not square. Rows
            of a table: ``mlp`` or ``logistic``. Texts: ``gru``. Your own network: ``module:Name``, a class or function
            that takes a `Shape`, `VectorShape` or `TextShape` and returns a `torch.nn.Module`.
        classes: the number of outputs; the default is the number of classes in the data, or 1 in a regression.
        hidden: the number of hidden neurons of ``mlp`` (default 200) and ``faces-cnn`` (default 256).
        filters: the numbers of filters of the three convolutions of ``faces-cnn``; the default is [32, 64, 128].
        norm: the normalisation of the VGG networks: ``batch`` norm as in the paper, or ``group`` norm, which DP-SGD
            requires.
        padding: the padding in pixels of the convolutions of ``femnist-cnn``.
        features: a fixed feature map before the network, ``[model.features]``. The network's inputs are then feature
            vectors.

    Raises:
        InputError: a value is outside its allowed range, or the network does not have the key.
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
            require(unset, f"model '{self.name}' has no key '{key}'; remove '{key}'")

    def sized(self, classes: int) -> "Network":
        """Return the network with default sizes, and without sizes that the network does not have."""
        hidden = (self.hidden or _HIDDEN[self.name]) if self.name in _HIDDEN else None
        filters = (self.filters or _FILTERS[self.name]) if self.name in _FILTERS else None
        return replace(self, classes=classes, hidden=hidden, filters=filters)

    def model(self, shape: Shape | VectorShape | TextShape) -> Model:
        """Create the model of a shipped network with input and output layers for ``shape``.

        Raises:
            InputError: the network is a user's own, or cannot take images, vectors or texts.
        """
        name = self.name
        require(
            name in MODELS,
            f"the model name must be one of Shoal's networks (got '{name}'); call your own network's class directly",
        )
        kind = {Shape: "images", VectorShape: "rows of a table", TextShape: "texts"}[type(shape)]
        kind = kind if self.features is None else "features"
        if isinstance(shape, TextShape):
            require(name == "gru", f"model '{name}' requires images (got texts); choose 'gru' for texts")
            return Model(NamedBuild(self.sized(shape.classes), partial(ReviewGRU, shape.vocabulary, shape.classes)))
        require(name != "gru", f"model 'gru' requires texts (got {kind}); choose a different model")
        if isinstance(shape, VectorShape):
            require(
                name in _VECTOR_MODELS,
                f"model '{name}' requires images (got {kind}); choose one of {quote(_VECTOR_MODELS)}",
            )
            # To these an image is a vector too.
            shape = Shape(1, 1, shape.inputs, shape.classes)
        return Model(NamedBuild(self.sized(shape.classes), self._build(shape)))

    def _build(self, shape: Shape) -> Callable[[], nn.Module]:
        """Return the builder of a network for images."""
        name, size = self.name, f"{shape.height}x{shape.width}"
        hidden = self.hidden or _HIDDEN.get(name, 1)
        if name == "mlp":
            return partial(MLP, inputs=shape.inputs, hidden=hidden, classes=shape.classes)
        if name == "logistic":
            return partial(Logistic, inputs=shape.inputs, classes=shape.classes)
        if name == "faces-cnn":
            least = min(shape.height, shape.width)
            require(least >= 22, f"model 'faces-cnn' requires images of at least 22x22 pixels (got {size})")
            sides = (shape.channels, shape.height, shape.width, shape.classes)
            return partial(FacesCNN, *sides, filters=self.filters or _FILTERS[name], hidden=hidden)
        network, least = _SQUARE[name]
        require(
            shape.height == shape.width and shape.height >= least,
            f"model '{name}' requires square images of at least {least}x{least} pixels (got {size})",
        )
        options: dict[str, Any] = {"padding": self.padding} if name == "femnist-cnn" else {}
        if network is VGG:
            options = {"depth": int(name[3:]), "norm": self.norm}
        return partial(network, channels=shape.channels, side=shape.height, classes=shape.classes, **options)


@dataclass(frozen=True)
class NamedBuild:
    """The ``build`` of a shipped network's model, with the settings that name the network in a file."""

    network: Network
    build: Callable[[], nn.Module]

    def __call__(self) -> nn.Module:
        """Build a new network."""
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
    """Create the model of the network ``name``, one of `MODELS`, for ``shape``; see `Network`.

    Raises:
        InputError: the name is unknown, or the network cannot take images, vectors or texts.

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
    require(shaped, f"'shape' must be a Shape, VectorShape or TextShape (got {describe(shape)})")
    require(name in MODELS, f"the model name is unknown (got '{name}'); {suggest(name, MODELS)}")
    sizes = None if filters is None else tuple(filters)
    return Network(name, hidden=hidden, filters=sizes, norm=norm, padding=padding).model(shape)
