"""Queries with up to 18 copies of an image: the image and its mirror image, unshifted and shifted in eight directions.

Source: Carlini et al. 2022, arXiv:2112.03570 (queries with augmented inputs); Aerni, Zhang and Tramer 2024,
arXiv:2404.17399 (the copies). Extension: the score of a record is the mean score of its copies.
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
"""The number of records per batch of copies; changes only the last bits of results."""


def require_queries(queries: object, shape: Sequence[int]) -> int:
    """Check and return the number of queries per record.

    Raises:
        InputError: the number is outside 1 to 18, or exceeds 1 for inputs that are not images.
    """
    number = integer("queries", queries, "such as 18", 1)
    require(
        number <= MAX_QUERIES,
        f"'queries' must be at most {MAX_QUERIES} (got {number})",
    )
    require(
        number == 1 or len(shape) == 3,
        f"'queries' above 1 needs images of shape (channels, height, width) (got inputs of shape {tuple(shape)})",
    )
    return number


def image_copies(images: Tensor, number: int) -> list[Tensor]:
    """Return the first ``number`` of 18 copies of images (m, channels, height, width).

    The order is the image, its mirror image, then each shifted image and its mirror image. Images are shifted by an
    eighth of their side and padded with 0.

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
    """Return the mean logit-scaled confidence of a model (P,) over ``number`` copies of each input, (m,) float64.

    The inputs are the rows ``rows`` (m,) of ``x``, with the true classes ``labels`` (m,). If ``number`` is 1, inputs
    need not be images.
    """
    if number == 1:
        return logit_confidence(engine.outputs(model, x, rows).cpu(), labels, engine.model.loss)
    means = [torch.empty(0, dtype=torch.float64)]
    for part, truth in zip(rows.split(_CHUNK), labels.split(_CHUNK), strict=True):
        copies = image_copies(gather(x, part.to(x.device)).float(), number)
        outputs = (engine.outputs(model, copy).cpu() for copy in copies)
        means.append(torch.stack([logit_confidence(copy, truth, engine.model.loss) for copy in outputs]).mean(dim=0))
    return torch.cat(means)
