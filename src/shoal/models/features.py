"""Features: a fixed map of inputs before the network that is trained.

A head on few fixed features has far fewer numbers to remember its examples by than a network on pixels, and the map
itself, of wavelets or of public examples, has seen no client. Source of the combination: Tramèr and Boneh,
"Differentially private learning needs better features (or much more data)", ICLR 2021, arXiv:2011.11660.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import AfterValidator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn import functional

from shoal.core.errors import InputError, file_errors, require
from shoal.core.foreign_files import parse_json
from shoal.core.settings import Internal, Positive, settings
from shoal.models.scattering import ANGLES, Scattering

SCALE = 2
"""J of the scattering transform: averages over 4 x 4 pixels."""

GROUPS = 27
"""Groups of channels, of an image's channel, that are normalised together (Tramèr and Boneh: 27 of 81)."""

MAPPED_TOGETHER = 256
"""Inputs that are mapped at once."""


class NormalizedScattering(nn.Module):
    """`Scattering` at J = 2, with group normalisation of each image's channels, as a vector."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.sizes = (height, width)
        self.transform = Scattering(height, width, SCALE)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to (B, d)."""
        return functional.group_norm(self.transform(images), GROUPS * images.shape[1]).flatten(1)


class PrincipalComponents(nn.Module):
    """The first principal components of public examples, scaled, at unit length.

    With the mean m, the components V (d, D) and the standard deviations s (d,) along them:

        h = V (x - m) / sqrt(s),   and the result h / |h|

    Dividing by the roots lies between leaving the components as they are and whitening them. At unit length no example
    has a larger gradient than the error of a linear head.

    Args:
        inputs: D.
        dimension: d.
    """

    mean: Tensor
    matrix: Tensor

    def __init__(self, inputs: int, dimension: int) -> None:
        super().__init__()
        self.sizes = (inputs, dimension)
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("matrix", torch.zeros(inputs, dimension))

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (B, ...) to (B, d)."""
        return functional.normalize((x.float().flatten(1) - self.mean) @ self.matrix, dim=1)

    @staticmethod
    def fit(x: Tensor, dimension: int) -> "PrincipalComponents":
        """The components of examples x (M, ...), which need no labels.

        Raises:
            InputError: fewer examples or inputs than ``dimension``.
        """
        from sklearn.decomposition import PCA  # noqa: PLC0415 (most runs have no features, and it takes a second)

        flat = x.float().flatten(1)
        most = min(flat.shape)
        require(
            dimension <= most,
            f"'dimension' must be at most {most}, with {len(flat)} public examples (the shadow set) of "
            f"{flat.shape[1]} inputs; got {dimension}",
        )
        with threadpool_limits(1):
            fitted = PCA(dimension, random_state=0).fit(flat.numpy())
        scale = torch.from_numpy(fitted.explained_variance_).float().pow(0.25).clamp(min=1e-6)
        module = PrincipalComponents(flat.shape[1], dimension)
        module.mean.copy_(torch.from_numpy(fitted.mean_))
        module.matrix.copy_(torch.from_numpy(fitted.components_).T / scale)
        return module


class FeatureMap(nn.Sequential):
    """A fitted map of inputs (B, ...) to features (B, d): frozen, in evaluation mode."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(*modules)
        self.requires_grad_(False).eval()

    def mapped(self, x: Tensor, *, threads: int = 1) -> Tensor:
        """The features (M, d) float32 of inputs (M, ...), a few at a time; ``threads`` change no bit.

        Args:
            x: inputs.
            threads: that map side by side.
        """

        def work(part: Tensor) -> Tensor:
            with torch.no_grad():
                return self(part).float().flatten(1)

        before, places = torch.get_num_threads(), range(0, len(x), MAPPED_TOGETHER)
        torch.set_num_threads(1)
        try:
            # Without inputs one of zeros says the shape.
            shape = len(x), work(x[:1] if len(x) else x.new_zeros(1, *x.shape[1:])).shape[1]
            features = torch.empty(shape)
            with ThreadPoolExecutor(threads, "features", torch.set_num_threads, (1,)) as pool:
                for i, part in zip(places, pool.map(work, x.split(MAPPED_TOGETHER)), strict=False):
                    features[i : i + MAPPED_TOGETHER] = part
        except InputError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"the features cannot take inputs of shape {tuple(x.shape[1:])}: {reason}") from error
        finally:
            torch.set_num_threads(before)
        return features

    def serialized(self) -> bytes:
        """The map as a safetensors file."""
        about = [[_NAMES.get(type(module), ""), *getattr(module, "sizes", ())] for module in self]
        return save(
            {name: value.contiguous() for name, value in self.state_dict().items()}, {"maps": json.dumps(about)}
        )

    @staticmethod
    def load(path: Path) -> "FeatureMap | None":
        """The map in a file of `serialized`; None where it has a module of a user's own, whose code no file has.

        Raises:
            InputError: it is damaged.
        """
        damage = (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError)
        with file_errors(path, damage=damage):
            with safe_open(path, framework="pt") as file:
                about = parse_json((file.metadata() or {})["maps"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            if not all(name for name, *_ in about):
                return None
            kinds = {name: kind for kind, name in _NAMES.items()}
            loaded = FeatureMap(*(kinds[name](*sizes) for name, *sizes in about))
            loaded.load_state_dict(tensors)
        return loaded


_NAMES: dict[type, str] = {NormalizedScattering: "scattering", PrincipalComponents: "pca"}
"""The names of the modules that a file can say how to make."""


def _map(name: str) -> str:
    """The name of a map."""
    if name not in ("scattering", "pca") and ":" not in name:
        raise ValueError("'scattering', 'pca' or 'module:Name'")
    return name


@settings
class Features:
    """A fixed map before the trained network, computed once per example. Its inputs are numbers, not texts.

    Args:
        maps: applied in this order: ``scattering``, wavelets of images, which need no data; ``pca``, the principal
            components of the shadow set, whose labels are not used; or your own, ``module:Name``, a class or function
            without arguments that returns a `torch.nn.Module`. None is trained.
        dimension: d of ``pca``.
        modules: in Python, what is meant by each ``module:Name`` in ``maps``: the class, function or module.

    Raises:
        InputError: no map, ``pca`` without a dimension, a dimension without ``pca``, or scattering after another map.

    Example:
        >>> import torch
        >>> from shoal import Features
        >>> images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> fitted = Features(("scattering", "pca"), dimension=5).fit(images)
        >>> fitted.mapped(images[:2]).shape
        torch.Size([2, 5])
    """

    maps: tuple[Annotated[str, AfterValidator(_map)], ...] = ("scattering", "pca")
    dimension: Positive | None = None
    modules: Annotated[Any, Internal()] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        require(len(self.maps) > 0, "'maps' must not be empty; leave the features out")
        for first, then in pairwise(self.maps):
            require(then != "scattering", f"'scattering' takes images, so it comes first; got it after {first!r}")
        pca = "pca" in self.maps
        require(self.maps.count("pca") <= 1, "'pca' must be in 'maps' at most once")
        require(pca or self.dimension is None, "'dimension' is of 'pca', which 'maps' has not; leave it out")
        require(not pca or self.dimension is not None, "'dimension' is missing: how many components 'pca' keeps")

    @property
    def needs_public_examples(self) -> bool:
        """Whether the map is fitted on the shadow set."""
        return "pca" in self.maps

    def fit(self, public: Tensor) -> FeatureMap:
        """The map, fitted on ``public`` inputs (M, ...) where it needs some; otherwise their shape alone counts.

        Raises:
            InputError: inputs that a map cannot take, or too few.
        """
        return self.fit_and_map(public)[0]

    def fit_and_map(self, public: Tensor, threads: int = 1) -> tuple[FeatureMap, Tensor]:
        """The map, as of `fit`, and its features of ``public``, computed once; ``threads`` change no bit."""
        require(public.is_floating_point() or public.dtype == torch.uint8, "features are of numbers, not of texts")
        modules, done, before = list[nn.Module](), 0, public
        for name in self.maps:
            if name == "scattering":
                _require_images(public.shape[1:])
                modules.append(NormalizedScattering(*public.shape[2:]))
            elif name == "pca":
                assert self.dimension is not None
                done = len(modules)
                before = FeatureMap(*modules).mapped(public, threads=threads) if modules else public
                modules.append(PrincipalComponents.fit(before, self.dimension))
            else:
                modules.append(self._module(name))
        return FeatureMap(*modules), FeatureMap(*modules[done:]).mapped(before, threads=threads)

    def width(self, inputs: Sequence[int]) -> int:
        """The number of features of inputs of a shape, for the model: ``features.width((1, 28, 28))``."""
        shape = torch.Size(inputs)
        for name in self.maps:
            if name == "pca":
                shape = torch.Size([self.dimension or 0])
            elif name == "scattering":
                _require_images(shape)
                (channels, height, width), side = shape, 2**SCALE
                shape = torch.Size([channels * (1 + ANGLES * SCALE + ANGLES**2), height // side, width // side])
            else:
                shape = FeatureMap(self._module(name)).mapped(torch.zeros(1, *shape)).shape[1:]
        return shape.numel()

    def _module(self, name: str) -> nn.Module:
        require(name in self.modules, f"'modules' must have '{name}', which 'maps' names")
        value: Any = self.modules[name]
        module: Any = value if isinstance(value, nn.Module) or not callable(value) else value()
        require(isinstance(module, nn.Module), f"'{name}' must give a torch.nn.Module; got {module!r}")
        return module


def _require_images(shape: Sequence[int]) -> None:
    require(len(shape) == 3, f"'scattering' takes images; these inputs have the shape {tuple(shape)}")
