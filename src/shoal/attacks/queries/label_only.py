"""Label-only attacks, which query a model with changed inputs to measure how robust its predicted label is.

The predicted label of a member survives more changes than the label of a non-member. The baseline is the gap attack,
`shoal.attacks.queries.yeom.Gap`.

Source: Choquette-Choo, Tramer, Carlini, Papernot 2021, ICML, arXiv:2007.14321, section 3 (data augmentation attack) and
section 3.3 (decision boundary distance by random noise).
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
"""The number of records per batch of copies, to limit memory; changes only the last bits of results."""

Change = Callable[[Tensor], Tensor]
"""A map of inputs (m, ...) to inputs of the same shape."""


@settings
class ImageChanges:
    """Copies of an image: the image itself, translations and rotations.

    Args:
        pixels: the largest translation; translations by (i, j) have ``|i| + |j| = 1..pixels`` and are padded with 0; no
            translation if ``pixels`` is 0.
        degrees: the angle of the rotations in both directions, bilinear and padded with 0; an angle of 0 means no
            rotation.
    """

    pixels: Count = 1
    degrees: NonNegativeFloat = 4.0

    def changes(self) -> Iterator[Change]:
        """Iterate over the changes of an image, including the identity."""
        for down in range(-self.pixels, self.pixels + 1):
            for right in range(abs(down) - self.pixels, self.pixels - abs(down) + 1):
                yield partial(translate_images, down=down, right=right)
        if self.degrees > 0:
            yield from (partial(_rotate_images, degrees=angle) for angle in (self.degrees, -self.degrees))


def augmentation_votes(
    engine: Engine, model: Tensor, x: Tensor, y: Tensor, rows: Tensor, copies: ImageChanges | None = None
) -> Tensor:
    """Count the copies of each record for which the model predicts the record's label, (M,) int64.

    A higher count means more likely a member.

    Args:
        engine: the model's engine.
        model: the model's parameters, (P,).
        x: the inputs, (N, ...), raw or prepared by `Engine.prepare`.
        y: the labels, (N,) int64.
        rows: the indices of the records to score, (M,) int64.
        copies: the changes; ``None`` means the default `ImageChanges`.

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
    """Return the smallest noise level at which the model misclassifies each record, averaged over draws, (M,).

    A higher distance means more likely a member. Each draw is one noise direction for all records, scaled by each
    level. The distance is 0 for a record that is misclassified before noise is added. A draw that never causes a
    misclassification counts as twice the largest level. The number of queries per record is ``draws`` times the number
    of levels, plus one.

    Args:
        levels: the standard deviations of the noise in units of the inputs, positive and increasing.
        draws: the number of noise directions.
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
        distances.append(total / draws * _is_correct(engine, model, x, y, part, lambda inputs: inputs))
    return torch.cat(distances)


def _is_correct(engine: Engine, model: Tensor, x: Tensor, y: Tensor, rows: Tensor, change: Change) -> Tensor:
    """Return whether the model predicts each changed record's label, (m,) bool on the CPU."""
    rows = rows.to(x.device)
    outputs = engine.outputs(model, change(gather(x, rows).float())).cpu()
    return outputs.argmax(dim=1) == y[rows.to(y.device)].cpu()


def translate_images(images: Tensor, down: int, right: int) -> Tensor:
    """Shift images by some pixels, padded with 0."""
    height, width = images.shape[-2:]
    padded = pad(images, (max(right, 0), max(-right, 0), max(down, 0), max(-down, 0)))
    top, left = max(-down, 0), max(-right, 0)
    return padded[..., top : top + height, left : left + width]


def _rotate_images(images: Tensor, degrees: float) -> Tensor:
    return rotate(images, torch.full((len(images),), degrees, device=images.device))


def _with_noise(inputs: Tensor, stream: Stream, std: float) -> Tensor:
    noise = torch.randn(inputs.shape[1:], generator=stream.generator())
    return inputs + std * noise.to(inputs.device)
