"""Tasks ``"MAIN/PROPERTY"``, such as ``"smiling/sunglasses"``: the label that is learned, the property under attack.

Properties of grey images are the thickness and the slant of their strokes. A property should say nothing about the main
label, so in every class the same share of images, a fifth, has it. On digits the two measures mean what their names
say; on other images they are still measures of shape.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import InputError, quote, require, suggest
from shoal.data.datasets import ImageDataset

AUTHORS = 10
"""Authors in a set of reviews, numbered from 1 by falling number of reviews."""

AUTHOR_TASKS = ("score", *(f"score/author-{author}" for author in range(1, AUTHORS + 1)))
"""The score alone, and the score with the property "the review is by that author"."""

PROPERTY_SHARE = 0.2  # of each class
_BLOCK = 512  # images measured at a time


def read_task(task: str | None, source: str, choices: Mapping[str, Iterable[str]]) -> tuple[str, str | None]:
    """The main label and the property (or None) of a task, ``"MAIN/PROPERTY"`` or ``"MAIN"``, of the set ``source``.

    ``choices`` are its main labels, each with the properties that it can be combined with.

    Raises:
        InputError: no task, an unknown label or property, or a property that cannot be combined with the label.
    """
    if task is None:
        main, properties = next(iter(choices.items()))
        example = f"'{main}/{next(iter(properties))}' or '{main}'"
        raise InputError(f"data source '{source}' needs a 'task', such as {example}; main labels are {quote(choices)}")
    main, slash, name = task.partition("/")
    require(main in choices, f"'task' has the unknown main label '{main}' of '{source}'; {suggest(main, choices)}")
    if not slash:
        return main, None
    known = {name for properties in choices.values() for name in properties}
    require(name in known, f"'task' has the unknown property '{name}' of '{source}'; {suggest(name, known)}")
    allowed = list(choices[main])
    require(
        name in allowed,
        f"'task' is '{task}', whose main label and property are of the same attribute; with '{main}' go "
        f"{quote(allowed)}",
    )
    return main, name


def read_author_task(task: str | None, source: str) -> int | None:
    """The author, from 0, in a task of the set of reviews ``source``; None where it names none.

    Raises:
        InputError: the task is not in `AUTHOR_TASKS`.
    """
    task = "score" if task is None else task
    require(task in AUTHOR_TASKS, f"'task' is '{task}', no task of '{source}'; {suggest(task, AUTHOR_TASKS)}")
    author = task.partition("/author-")[2]
    return int(author) - 1 if author else None


def with_stroke_property(images: ImageDataset, task: str | None) -> ImageDataset:
    """The same images and labels, with ``has_property`` of the task, which every class has in the same share.

    Of the n images of a class the ``round(n / 5)`` with the largest measure have it (`thickness` for ``thick``,
    `slant` for ``slanted``), the earlier image first where two measure the same.

    Tasks are ``"class"`` (also None), ``"class/thick"`` and ``"class/slanted"``.

    Raises:
        InputError: the images have no such task, or are not grey.
    """
    name = None if task is None else read_task(task, images.name, {"class": _MEASURES})[1]
    if name is None:
        return images
    channels = images.pixels.shape[1]
    require(channels == 1, f"'{images.name}' has images of {channels} channels; '{name}' is measured on grey ones")
    values = _MEASURES[name](images.pixels)
    has_property = torch.zeros(len(values), dtype=torch.bool)
    for label in range(images.classes):
        members = torch.nonzero(images.labels == label).flatten()
        order = torch.argsort(values[members], descending=True, stable=True)
        has_property[members[order[: round(PROPERTY_SHARE * len(members))]]] = True
    return replace(images, has_property=has_property)


def thickness(pixels: Tensor) -> Tensor:
    """Mean width of the strokes in pixels, (M,) float64; 0 for an image without ink.

    Twice the ink over the length of its edge, which is the total variation of the brightness: the length of a level
    set, averaged over levels (the coarea formula). A long straight stroke of width w has the edge 2 per unit length
    and so measures w. In ``pixels`` (M, 1, H, W) ink is bright.
    """
    widths = [np.zeros(0)]
    for block in pixels[:, 0].split(_BLOCK):
        ink = np.pad(block.numpy().astype(np.float32), ((0, 0), (1, 1), (1, 1)))
        right, down = np.diff(ink, axis=2)[:, :-1], np.diff(ink, axis=1)[:, :, :-1]
        edge = np.sqrt(right * right + down * down).sum((1, 2), dtype=np.float64)
        widths.append(2 * ink.sum((1, 2), dtype=np.float64) / np.maximum(edge, 1e-9))
    return torch.from_numpy(np.concatenate(widths))


def slant(pixels: Tensor) -> Tensor:
    """Slant of the strokes: pixels to the right per pixel up, (M,) float64; 0 without ink or height.

    From the second moments about the centre of the ink, ``-mu_xy / mu_yy`` with y downward, as images are deslanted.
    In ``pixels`` (M, 1, H, W) ink is bright.
    """
    height, width = pixels.shape[-2:]
    y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    monomials = torch.stack([torch.ones_like(x), x, y, x * y, y * y]).flatten(1).T
    slants = [torch.zeros(0, dtype=torch.float64)]
    for block in pixels.flatten(1).split(_BLOCK):
        # Sums of integers, exact in float64, so that the order of summation cannot change a threshold.
        ink, sx, sy, sxy, syy = (block.double() @ monomials).unbind(1)
        mixed, down = ink * sxy - sx * sy, ink * syy - sy * sy
        slants.append(torch.where(down > 0, -mixed / down.clamp(min=1), 0.0))
    return torch.cat(slants)


_MEASURES = {"slanted": slant, "thick": thickness}
