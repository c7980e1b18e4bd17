"""Label-only attacks: how robust the predicted label is, from queries with changed inputs.

Source: Choquette-Choo, Tramer, Carlini, Papernot 2021, ICML, arXiv:2007.14321, section 3: data augmentation attack and
decision boundary distance by random noise (3.3). A record that was trained on keeps its label under more changes.

These attacks ask the model about new inputs, which a `Query` does not have; so they are functions that give a score for
each record, higher for members. The gap attack, their baseline, is `shoal.attacks.queries.yeom.Gap`.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from shoal.core.randomness import Stream
from shoal.core.settings import Count, NonNegativeFloat, settings
from shoal.data.shards import gather
from shoal.data.shifts import rotate
from shoal.engine import Engine

_CHUNK = 512
"""Records changed at a time, so that copies take little memory. It changes no result beyond the last bits."""

Change = Callable[[Tensor], Tensor]
"""Changes inputs (m, ...) to others of the same shape."""


@settings
class ImageChanges:
    """Copies of an image: itself, translations, and rotations.

    Args:
        pixels: translations by (i, j) with ``|i| + |j| = 1..pixels``, 0 outside; 0: none.
        degrees: rotation by so much both ways, bilinear, 0 outside; 0: none.
    """

    pixels: Count = 1
    degrees: NonNegativeFloat = 4.0

    def changes(self) -> Iterator[Change]:
        """The changes of one image, among them none."""
        for down in range(-self.pixels, self.pixels + 1):
            for right in range(abs(down) - self.pixels, self.pixels - abs(down) + 1):
                yield partial(translate_images, down=down, right=right)
        if self.degrees > 0:
            yield from (partial(_rotated, degrees=angle) for angle in (self.degrees, -self.degrees))


def augmentation_votes(
    engine: Engine, model: Tensor, x: Tensor, y: Tensor, rows: Tensor, copies: ImageChanges | None = None
) -> Tensor:
    """Number (M,) int64 of changed copies of each record to which the model gives the record's label.

    Args:
        engine: evaluates the model.
        model: (P,) parameters.
        x: (N, ...) inputs, as `Engine.prepare` stores them or not.
        y: (N,) int64, labels.
        rows: (M,) int64, the records that are scored.
        copies: the changes; None: those of `ImageChanges`.

    Example:
        >>> import torch, shoal
        >>> from shoal.attacks import ImageChanges, augmentation_votes, boundary_distance
        >>> model = shoal.create_model("logistic", shoal.Shape(1, 8, 8, 2))
        >>> corner = torch.zeros(1, 1, 8, 8).index_fill(2, torch.tensor(0), 1.0)  # a bright first row
        >>> weight = torch.stack([corner.flatten(), -corner.flatten()])
        >>> row = model.layout.pack({"output.weight": weight, "output.bias": torch.tensor([0.0, 0.5])})
        >>> x, y, rows = torch.cat([corner, torch.ones(1, 1, 8, 8)]), torch.tensor([0, 0]), torch.tensor([0, 1])
        >>> moved = ImageChanges(pixels=1, degrees=0.0)
        >>> with shoal.Engine(model) as engine:
        ...     votes = augmentation_votes(engine, row, x, y, rows, moved)
        ...     distances = boundary_distance(engine, row, x, y, rows, shoal.Stream(0))
        ...
        >>> votes, distances.round(decimals=2)
        (tensor([3, 4]), tensor([1.6000, 1.6000], dtype=torch.float64))
    """
    changes = list((copies or ImageChanges()).changes())
    votes = [
        sum(_is_correct(engine, model, x, y, part, change).long() for change in changes) for part in rows.split(_CHUNK)
    ]
    return torch.cat([torch.as_tensor(part) for part in votes]) if votes else torch.empty(0, dtype=torch.int64)


def boundary_distance(
    engine: Engine,
    model: Tensor,
    x: Tensor,
    y: Tensor,
    rows: Tensor,
    stream: Stream,
    *,
    levels: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8),
    draws: int = 4,
) -> Tensor:
    """The smallest (M,) of some noise levels at which the model's label is no longer the record's, a mean over draws.

    Each draw is one direction of noise for all records, scaled by the levels. A record that is wrong without noise has
    distance 0, and a draw whose label holds at all levels counts twice the largest of them. A record takes ``draws``
    times the number of levels queries, and one more.

    Args:
        engine, model, x, y, rows: as in `augmentation_votes`.
        stream: of the noise.
        levels: standard deviations of the noise in units of the inputs, above 0 and increasing.
        draws: directions of noise.
    """
    distances = [torch.empty(0, dtype=torch.float64)]
    for part in rows.split(_CHUNK):
        total = torch.zeros(len(part), dtype=torch.float64)
        for draw in range(draws):
            flips = torch.full_like(total, 2 * levels[-1])
            for level in reversed(levels):
                noisy = partial(_with_noise, stream=stream("draw", draw), std=level)
                right = _is_correct(engine, model, x, y, part, noisy)
                flips[~right] = level
            total += flips
        distances.append(total / draws * _is_correct(engine, model, x, y, part, _identity))
    return torch.cat(distances)


def _is_correct(engine: Engine, model: Tensor, x: Tensor, y: Tensor, rows: Tensor, change: Change) -> Tensor:
    """(m,) bool on the CPU, True where the model gives a changed record its label."""
    rows = rows.to(x.device)
    outputs = engine.outputs(model, change(gather(x, rows).float())).cpu()
    return outputs.argmax(dim=1) == y[rows.to(y.device)].cpu()


def _identity(inputs: Tensor) -> Tensor:
    return inputs


def translate_images(images: Tensor, down: int, right: int) -> Tensor:
    """Images moved by so many pixels, 0 where they came from outside."""
    height, width = images.shape[-2:]
    padded = pad(images, (max(right, 0), max(-right, 0), max(down, 0), max(-down, 0)))
    top, left = max(-down, 0), max(-right, 0)
    return padded[..., top : top + height, left : left + width]


def _rotated(images: Tensor, degrees: float) -> Tensor:
    return rotate(images, torch.full((len(images),), degrees, device=images.device))


def _with_noise(inputs: Tensor, stream: Stream, std: float) -> Tensor:
    noise = torch.randn(inputs.shape[1:], generator=stream.generator())
    return inputs + std * noise.to(inputs.device)
