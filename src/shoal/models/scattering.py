"""The scattering transform of images: fixed wavelets, no training, no data.

Source: Bruna and Mallat, "Invariant scattering convolution networks", TPAMI 2013. Filters, padding and subsampling are
those of its usual implementation, which a test compares numbers with.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.core.errors import require

ANGLES = 8
"""Orientations of a wavelet, L."""

_TOGETHER = 32
"""Images that are transformed at once."""


class Scattering(nn.Module):
    """Averages of wavelet moduli over windows of 2^J pixels, of order 0, 1 and 2.

    With the wavelet psi of scale 2^j and angle a, the Gaussian phi of width 2^J, and * the convolution, they are
    ``x * phi``, ``|x * psi_(j, a)| * phi``, and ``||x * psi_(j, a)| * psi_(k, b)| * phi`` for k > j, each kept at
    every 2^J-th pixel: 1 + L J + L^2 J (J - 1) / 2 channels of an image's channel, L = `ANGLES`.

    Args:
        height, width: of the images.
        scale: J, at least 1; of images of less than 2^(J + 1) pixels a side there is nothing to average.

    Raises:
        InputError: images too small for ``scale``.

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
            f"scattering at scale {scale} takes images of at least {2 * window}x{2 * window} pixels; these have "
            f"{height}x{width}",
        )
        self.scale, self.size = scale, (height, width)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to float32 (B, C (1 + L J + L^2 J (J - 1) / 2), H / 2^J, W / 2^J)."""
        batch, channels, height, width = images.shape
        flat = images.float().reshape(batch * channels, 1, height, width)
        # A few at a time, whose spectra stay in the processor's cache.
        joined = torch.cat([self._transformed(part) for part in flat.split(_TOGETHER)])
        return joined.reshape(batch, channels * joined.shape[1], *joined.shape[2:])

    def _transformed(self, images: Tensor) -> Tensor:
        bank = _bank(*self.size, self.scale, images.device)
        height, width = (_margins(side, 2**self.scale) for side in self.size)
        images = functional.pad(images, (*width, *height), mode="reflect")
        whole, averages, deeper = torch.fft.fft2(images), [self._averaged(images, bank, 0)], []
        for j in range(self.scale):
            moduli = torch.fft.ifft2(_subsampled(whole * bank[f"psi {j} 0"], 2**j)).abs()
            averages.append(self._averaged(moduli, bank, j))
            spectra = torch.fft.fft2(moduli)[:, :, None] if j + 1 < self.scale else moduli
            for k in range(j + 1, self.scale):
                # (B, L, 1, h, w) by (L, h, w): each angle of the first wavelet with each of the second.
                pairs = _subsampled(spectra * bank[f"psi {k} {j}"], 2 ** (k - j)).flatten(1, 2)
                deeper.append(self._averaged(torch.fft.ifft2(pairs).abs(), bank, k))
        return torch.cat([*averages, *deeper], dim=1)

    def _averaged(self, images: Tensor, bank: dict[str, Tensor], level: int) -> Tensor:
        """Images (B, c, h, w) at 2^level, averaged by phi, at every 2^J-th pixel, without margins."""
        return bank[f"rows {level}"] @ images @ bank[f"columns {level}"].T


def _margins(side: int, window: int) -> tuple[int, int]:
    """Pixels to add on either side, so that the whole is a multiple of the window with one to spare at each end."""
    padded = ((side + window) // window + 1) * window
    return (padded - side) // 2, padded - side - (padded - side) // 2


def _subsampled(spectrum: Tensor, step: int) -> Tensor:
    """The spectrum of every ``step``-th pixel: the mean over the frequencies that it cannot tell apart."""
    while step > 1:
        # Sums of halves: PyTorch's mean over such dimensions took three quarters of the whole transform.
        height, width = (side // 2 for side in spectrum.shape[-2:])
        spectrum = spectrum[..., :width] + spectrum[..., width:]
        spectrum = (spectrum[..., :height, :] + spectrum[..., height:, :]) * 0.25
        step //= 2
    return spectrum


@lru_cache(maxsize=8)
def _bank(height: int, width: int, scale: int, device: torch.device) -> dict[str, Tensor]:
    """The filters: spectra "psi scale level" (L, h, w) at the size of each level, and phi, which is a product, as a
    matrix of averages for "rows level" and for "columns level".
    """
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
    """(m, side / 2^level): the weights of pixels in each of the m averages along one side, without margins."""
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
    """The spectrum of a wavelet of mean zero: a Gaussian times a wave of 3 pi / (4 scale) a pixel, less a Gaussian."""
    slant = 4 / ANGLES
    wave = _spectrum(size, scale, angle, 0.75 * math.pi / scale, slant)
    envelope = _spectrum(size, scale, angle, 0.0, slant)
    return wave - wave[0, 0] / envelope[0, 0] * envelope


def _spectrum(size: tuple[int, ...], scale: float, angle: float, frequency: float, slant: float) -> Tensor:
    """(h, w) float64: the real spectrum of a periodic Gaussian of standard deviation 0.8 ``scale`` along the wave, and
    1 / ``slant`` times that across.
    """
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
    """A filter's spectrum for images of every 2^level-th pixel: its low frequencies."""
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
