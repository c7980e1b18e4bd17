"""Queries with 18 copies of an image: itself and its mirror image, unshifted and shifted to eight sides.

Source: Carlini et al. 2022, arXiv:2112.03570 (queries with augmented inputs); the copies of Aerni, Zhang and Tramer
2024, arXiv:2404.17399. Ours: every attack reads the mean of the copies' scores.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.attacks.membership_attack import logit_confidence
from shoal.attacks.queries.label_only import translate_images
from shoal.core.errors import integer, require
from shoal.data.shards import gather
from shoal.engine import Engine

MAX_QUERIES = 18
"""2 flips times 9 shifts."""

_CHUNK = 512
"""Records copied at a time. It changes no result beyond the last bits."""


def require_queries(queries: object, shape: Sequence[int]) -> int:
    """Return the number of queries per record.

    Raises:
        InputError: a number outside 1 to 18, or copies of inputs that are not images.
    """
    number = integer("queries", queries, "such as 18", 1)
    require(number <= MAX_QUERIES, f"'queries' must be 1 to {MAX_QUERIES} (2 flips x 9 shifts); got {number}")
    require(
        number == 1 or len(shape) == 3,
        f"'queries' above 1 asks for copies of images; these inputs are of shape {tuple(shape)}",
    )
    return number


def image_copies(images: Tensor, number: int) -> list[Tensor]:
    """Return the first ``number`` copies of images (m, channels, height, width): unshifted, then shifted, in pairs with
    their mirror images.

    Shifts are an eighth of the image, 4 pixels of 32, with 0 outside.

    Example:
        >>> import torch
        >>> from shoal.attacks.queries.augmented_queries import image_copies
        >>> [copy[0, 0, 0].tolist() for copy in image_copies(torch.arange(16.0).view(1, 1, 4, 4), 3)]
        [[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    down, right = (max(1, round(side / 8)) for side in images.shape[-2:])
    shifts = [(0, 0), *((i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))][: (number + 1) // 2]
    shifted = (translate_images(images, down=-i * down, right=j * right) for i, j in shifts)
    return [copy for image in shifted for copy in (image, image.flip(-1))][:number]


def mean_confidence(engine: Engine, model: Tensor, x: Tensor, labels: Tensor, rows: Tensor, number: int) -> Tensor:
    """Return the logit-scaled confidence (m,) float64 of a model (P,) on the inputs of x at ``rows`` (m,), with their
    ``labels`` (m,), averaged over ``number`` copies; 1: the input itself, which need not be an image.
    """
    if number == 1:
        return logit_confidence(engine.outputs(model, x, rows).cpu(), labels, engine.model.loss)
    means = [torch.empty(0, dtype=torch.float64)]
    for part, truth in zip(rows.split(_CHUNK), labels.split(_CHUNK), strict=True):
        copies = image_copies(gather(x, part.to(x.device)).float(), number)
        outputs = (engine.outputs(model, copy).cpu() for copy in copies)
        means.append(torch.stack([logit_confidence(copy, truth, engine.model.loss) for copy in outputs]).mean(dim=0))
    return torch.cat(means)
