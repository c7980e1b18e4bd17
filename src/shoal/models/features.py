"""Features: a fixed map of inputs before the trained network.

The map uses no client's examples, and a network on few features has fewer parameters than a network on pixels. Source:
Tramèr and Boneh, "Differentially private learning needs better features (or much more data)", ICLR 2021,
arXiv:2011.11660.
"""

import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from functools import lru_cache
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

SCALE = 2
"""The scale J of the scattering transform, which averages over 4 x 4 pixels."""

GROUPS = 27
"""The number of normalisation groups of the 81 scattering channels per image channel, as in Tramèr and Boneh."""

MAPPED_TOGETHER = 256
"""The number of inputs in a batch."""


class NormalizedScattering(nn.Module):
    """A `Scattering` transform at J = 2 with group normalisation of each image's channels, flattened to a vector."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.sizes = (height, width)
        self.transform = Scattering(height, width, SCALE)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to features (B, d)."""
        return functional.group_norm(self.transform(images), GROUPS * images.shape[1]).flatten(1)


class PrincipalComponents(nn.Module):
    """The first principal components of public examples, scaled to unit length.

    With the mean m, the components V (d, D) and the standard deviations s (d,) along the components, an input x becomes
    h / |h|:

        h = V (x - m) / sqrt(s)

    For a linear head on features of unit length, an example's gradient norm is at most the norm of the output error.

    Args:
        inputs: the number of inputs, D.
        dimension: the number of components, d.
    """

    mean: Tensor
    matrix: Tensor

    def __init__(self, inputs: int, dimension: int) -> None:
        super().__init__()
        self.sizes = (inputs, dimension)
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("matrix", torch.zeros(inputs, dimension))

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs (B, ...) to features (B, d)."""
        return functional.normalize((x.float().flatten(1) - self.mean) @ self.matrix, dim=1)

    @staticmethod
    def fit(x: Tensor, dimension: int) -> "PrincipalComponents":
        """Fit the components to examples x (M, ...), without labels.

        Raises:
            InputError: there are fewer examples or inputs than ``dimension``.
        """
        from sklearn.decomposition import PCA  # noqa: PLC0415 (most runs have no features, and it takes a second)

        flat = x.float().flatten(1)
        most = min(flat.shape)
        require(
            dimension <= most,
            f"'dimension' must be at most {most}, for a shadow set of {len(flat)} examples with "
            f"{flat.shape[1]} inputs (got {dimension})",
        )
        with threadpool_limits(1):
            fitted = PCA(dimension, random_state=0).fit(flat.numpy())
        scale = torch.from_numpy(fitted.explained_variance_).float().pow(0.25).clamp(min=1e-6)
        module = PrincipalComponents(flat.shape[1], dimension)
        module.mean.copy_(torch.from_numpy(fitted.mean_))
        module.matrix.copy_(torch.from_numpy(fitted.components_).T / scale)
        return module


class FeatureMap(nn.Sequential):
    """A fitted map of inputs (B, ...) to features (B, d), frozen and in evaluation mode."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(*modules)
        self.requires_grad_(False).eval()

    def transform(self, x: Tensor, *, threads: int = 1) -> Tensor:
        """Map inputs x (M, ...) to features (M, d) float32 with ``threads`` parallel threads, in batches."""

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
            raise InputError(
                f"features cannot be computed from inputs of shape {tuple(x.shape[1:])} ({reason})"
            ) from error
        finally:
            torch.set_num_threads(before)
        return features

    def to_bytes(self) -> bytes:
        """Convert the map to a safetensors file."""
        about = [[_NAMES.get(type(module), ""), *getattr(module, "sizes", ())] for module in self]
        return save(
            {name: value.contiguous() for name, value in self.state_dict().items()}, {"maps": json.dumps(about)}
        )

    @staticmethod
    def load(path: Path) -> "FeatureMap | None":
        """Load the map from a file of `to_bytes`, or None if the file lacks the code of a user's own module.

        Raises:
            InputError: the file is damaged.
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
"""The names by which a file identifies Shoal's own maps."""


def _map(name: str) -> str:
    """Validate the name of a map."""
    if name not in ("scattering", "pca") and ":" not in name:
        raise ValueError("'scattering', 'pca' or 'module:Name'")
    return name


@settings
class Features:
    """A fixed feature map before the trained network, computed once per example.

    The inputs of the map are images or rows of numbers, not texts.

    Args:
        maps: the feature maps, in the order of application. ``scattering`` is a wavelet transform of images. ``pca``
            projects onto the principal components of the shadow set, whose labels are not used. Your own map is
            ``module:Name``, a class or function without arguments that returns a `torch.nn.Module`.
        dimension: the number of components of ``pca``.
        modules: the class, function or module of each ``module:Name`` in ``maps``, for use from Python.

    Raises:
        InputError: there is no map, ``pca`` has no dimension, a dimension is given without ``pca``, or ``scattering``
            is not the first map.

    Example:
        >>> import torch
        >>> from shoal import Features
        >>> images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> fitted = Features(("scattering", "pca"), dimension=5).fit(images)
        >>> fitted.transform(images[:2]).shape
        torch.Size([2, 5])
    """

    maps: tuple[Annotated[str, AfterValidator(_map)], ...] = ("scattering", "pca")
    dimension: Positive | None = None
    modules: Annotated[Any, Internal()] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        require(len(self.maps) > 0, "'maps' must name at least one map; remove [model.features] for no features")
        for first, then in pairwise(self.maps):
            require(
                then != "scattering", f"'scattering' must be the first of 'maps' (got 'scattering' after {first!r})"
            )
        pca = "pca" in self.maps
        require(self.maps.count("pca") <= 1, "'maps' must name 'pca' at most once")
        require(pca or self.dimension is None, "'dimension' is only allowed with 'pca' in 'maps'; remove 'dimension'")
        require(not pca or self.dimension is not None, "'dimension' is missing; set the number of components for 'pca'")

    @property
    def needs_public_examples(self) -> bool:
        """Whether the map must be fitted to the shadow set."""
        return "pca" in self.maps

    def fit(self, public: Tensor) -> FeatureMap:
        """Fit the map to ``public`` inputs (M, ...); maps without fitted parameters only use the inputs' shape.

        Raises:
            InputError: a map cannot take the inputs, or there are too few inputs.
        """
        return self.fit_and_map(public)[0]

    def fit_and_map(self, public: Tensor, threads: int = 1) -> tuple[FeatureMap, Tensor]:
        """Fit the map to ``public`` inputs, and return the map and the inputs' features."""
        require(
            public.is_floating_point() or public.dtype == torch.uint8,
            "features cannot be computed from texts; give images or rows of numbers",
        )
        modules, done, before = list[nn.Module](), 0, public
        for name in self.maps:
            if name == "scattering":
                _require_images(public.shape[1:])
                modules.append(NormalizedScattering(*public.shape[2:]))
            elif name == "pca":
                assert self.dimension is not None
                done = len(modules)
                before = FeatureMap(*modules).transform(public, threads=threads) if modules else public
                modules.append(PrincipalComponents.fit(before, self.dimension))
            else:
                modules.append(self._module(name))
        return FeatureMap(*modules), FeatureMap(*modules[done:]).transform(before, threads=threads)

    def width(self, inputs: Sequence[int]) -> int:
        """Return the number of features for inputs of a shape, such as ``features.width((1, 28, 28))``."""
        shape = torch.Size(inputs)
        for name in self.maps:
            if name == "pca":
                shape = torch.Size([self.dimension or 0])
            elif name == "scattering":
                _require_images(shape)
                (channels, height, width), side = shape, 2**SCALE
                shape = torch.Size([channels * (1 + ANGLES * SCALE + ANGLES**2), height // side, width // side])
            else:
                shape = FeatureMap(self._module(name)).transform(torch.zeros(1, *shape)).shape[1:]
        return shape.numel()

    def _module(self, name: str) -> nn.Module:
        require(name in self.modules, f"'modules' must have an entry for the map '{name}'")
        value: Any = self.modules[name]
        module: Any = value if isinstance(value, nn.Module) or not callable(value) else value()
        require(isinstance(module, nn.Module), f"'{name}' must return a torch.nn.Module (got {module!r})")
        return module


def _require_images(shape: Sequence[int]) -> None:
    require(len(shape) == 3, f"'scattering' requires images (C, H, W) (got inputs of shape {tuple(shape)})")


ANGLES = 8
"""The number L of a wavelet's orientations."""

_TOGETHER = 32
"""The number of images in a batch."""


class Scattering(nn.Module):
    """The scattering transform: averages of wavelet moduli of orders 0, 1 and 2 over windows of 2^J pixels.

    Source: Bruna and Mallat, "Invariant scattering convolution networks", TPAMI 2013, with the filters, padding and
    subsampling of the Kymatio package.

    With the wavelet psi of scale 2^j and angle a, the Gaussian phi of width 2^J, and the convolution ``*``, the
    averages are ``x * phi``, ``|x * psi_(j, a)| * phi``, and ``||x * psi_(j, a)| * psi_(k, b)| * phi`` for k > j, at
    every 2^J-th pixel. Each channel of an image gives 1 + L J + L^2 J (J - 1) / 2 channels, with L = `ANGLES`.

    Args:
        height, width: the images' height and width, in pixels.
        scale: the scale J, at least 1; images need at least 2^(J + 1) pixels per side.

    Raises:
        InputError: the images are too small for ``scale``.

    Example:
        >>> import torch
        >>> from shoal.models import Scattering
        >>> Scattering(28, 28)(torch.rand(5, 1, 28, 28)).shape
        torch.Size([5, 81, 7, 7])
    """

    def __init__(self, height: int, width: int, scale: int = 2) -> None:
        super().__init__()
        window = 2**scale
        require(
            min(height, width) >= 2 * window,
            f"scattering at scale {scale} requires images of at least {2 * window}x{2 * window} pixels (got "
            f"{height}x{width})",
        )
        self.scale, self.size = scale, (height, width)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to float32 (B, C (1 + L J + L^2 J (J - 1) / 2), H / 2^J, W / 2^J)."""
        batch, channels, height, width = images.shape
        flat = images.float().reshape(batch * channels, 1, height, width)
        # A few at a time, whose spectra stay in the processor's cache.
        joined = torch.cat([self._transformed(part) for part in flat.split(_TOGETHER)])
        return joined.reshape(batch, channels * joined.shape[1], *joined.shape[2:])

    def _transformed(self, images: Tensor) -> Tensor:
        bank = _bank(*self.size, self.scale, images.device)
        height, width = (_margins(side, 2**self.scale) for side in self.size)
        images = functional.pad(images, (*width, *height), mode="reflect")
        whole, averages, deeper = torch.fft.fft2(images), [self._average_blocks(images, bank, 0)], []
        for j in range(self.scale):
            moduli = torch.fft.ifft2(_subsample(whole * bank[f"psi {j} 0"], 2**j)).abs()
            averages.append(self._average_blocks(moduli, bank, j))
            spectra = torch.fft.fft2(moduli)[:, :, None] if j + 1 < self.scale else moduli
            for k in range(j + 1, self.scale):
                # (B, L, 1, h, w) by (L, h, w): each angle of the first wavelet with each of the second.
                pairs = _subsample(spectra * bank[f"psi {k} {j}"], 2 ** (k - j)).flatten(1, 2)
                deeper.append(self._average_blocks(torch.fft.ifft2(pairs).abs(), bank, k))
        return torch.cat([*averages, *deeper], dim=1)

    def _average_blocks(self, images: Tensor, bank: dict[str, Tensor], level: int) -> Tensor:
        """Average images (B, c, h, w), subsampled by 2^level, around every 2^J-th original pixel, without margins."""
        return bank[f"rows {level}"] @ images @ bank[f"columns {level}"].T


def _margins(side: int, window: int) -> tuple[int, int]:
    """Return the pixels to add at both ends for a multiple of the window, with a spare average at each end."""
    padded = ((side + window) // window + 1) * window
    return (padded - side) // 2, padded - side - (padded - side) // 2


def _subsample(spectrum: Tensor, step: int) -> Tensor:
    """Return the spectrum of every ``step``-th pixel, the mean over aliased frequencies."""
    while step > 1:
        # Sums of halves: PyTorch's mean over such dimensions took three quarters of the whole transform.
        height, width = (side // 2 for side in spectrum.shape[-2:])
        spectrum = spectrum[..., :width] + spectrum[..., width:]
        spectrum = (spectrum[..., :height, :] + spectrum[..., height:, :]) * 0.25
        step //= 2
    return spectrum


@lru_cache(maxsize=8)
def _bank(height: int, width: int, scale: int, device: torch.device) -> dict[str, Tensor]:
    """Return wavelet spectra "psi scale level" (L, h, w), and phi's matrices "rows level" and "columns level"."""
    size = tuple(sum(_margins(side, 2**scale)) + side for side in (height, width))
    bank = {}
    for level in range(scale):
        for name, side in zip(("rows", "columns"), size, strict=True):
            bank[f"{name} {level}"] = _averages(side, scale, level)
        for j in range(level, scale):
            angles = [math.pi * (ANGLES // 2 - 1 - a) / ANGLES for a in range(ANGLES)]
            wavelets = [_morlet(size, 2**j, angle) for angle in angles]
            bank[f"psi {j} {level}"] = torch.stack([_low_frequencies(wavelet, level) for wavelet in wavelets])
    return {name: filters.float().to(device) for name, filters in bank.items()}


def _averages(side: int, scale: int, level: int) -> Tensor:
    """Return the weights of pixels in m averages along a side without margins, (m, side / 2^level)."""
    sigma = 0.8 * 2 ** (scale - 1)
    pixels = torch.arange(-2 * side, 3 * side, dtype=torch.float64)
    periodic = torch.exp(-(pixels**2) / (2 * sigma**2)).view(5, side).sum(dim=0) / (math.sqrt(2 * math.pi) * sigma)
    spectrum = torch.fft.fft(periodic).real
    kept = side // 2**level
    low = torch.cat([spectrum[: kept // 2], spectrum[side - (kept - kept // 2) :]]) if level else spectrum
    weights = torch.fft.ifft(low).real
    places = torch.arange(0, kept, 2 ** (scale - level))[1:-1]
    return weights[(places[:, None] - torch.arange(kept)[None]) % kept]


def _morlet(size: tuple[int, ...], scale: float, angle: float) -> Tensor:
    """Return a Morlet wavelet's spectrum: a Gaussian times a wave of 3 pi / (4 scale) per pixel, minus a Gaussian."""
    slant = 4 / ANGLES
    wave = _spectrum(size, scale, angle, 0.75 * math.pi / scale, slant)
    envelope = _spectrum(size, scale, angle, 0.0, slant)
    return wave - wave[0, 0] / envelope[0, 0] * envelope


def _spectrum(size: tuple[int, ...], scale: float, angle: float, frequency: float, slant: float) -> Tensor:
    """Return the spectrum (h, w) of a periodic Gaussian times a wave; across the wave, it is 1 / ``slant`` as wide."""
    height, width = size
    sigma = 0.8 * scale
    # The plane is covered by shifted copies; beyond two of them the Gaussian is nothing.
    rows = (torch.arange(-2 * height, 3 * height, dtype=torch.float64))[:, None]
    columns = torch.arange(-2 * width, 3 * width, dtype=torch.float64)[None]
    along = rows * math.cos(angle) + columns * math.sin(angle)
    across = columns * math.cos(angle) - rows * math.sin(angle)
    gaussian = torch.exp(-(along.square() + (slant * across).square()) / (2 * sigma**2))
    wave = torch.polar(gaussian, frequency * along) * (slant / (2 * math.pi * sigma**2))
    periodic = wave.view(5, height, 5, width).sum(dim=(0, 2))
    return torch.fft.fft2(periodic).real


def _low_frequencies(spectrum: Tensor, level: int) -> Tensor:
    """Return the low frequencies of a filter's spectrum, for every 2^level-th pixel."""
    if level == 0:
        return spectrum
    for dim in (0, 1):
        size = spectrum.shape[dim]
        kept = size // 2**level
        low = torch.arange(size)
        outside = (low >= kept // 2) & (low < kept // 2 + size - kept)
        spectrum = spectrum.masked_fill(outside[:, None] if dim == 0 else outside[None], 0.0)
    height, width = (side // 2**level for side in spectrum.shape)
    return spectrum.view(2**level, height, 2**level, width).sum(dim=(0, 2))
