"""Properties measured on grey pictures: how thick their strokes are, how far they slant.

A property of a task is what the main label does not say, so the threshold is each class's own: in every class the
same share of pictures, a fifth, holds the property, which is then independent of the main label by construction. On
digits the two measures mean what their names say; on other pictures they are still measures of shape.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import nearest, require
from shoal.data.datasets import ImageDataset
from shoal.data.sources.tasks import read_task

SHARE = 0.2  # of each class holds the property
_MEASURES = ("slanted", "thick")
_BLOCK = 512  # pictures measured at a time


def with_task(images: ImageDataset, task: str | None) -> ImageDataset:
    """The same pictures and labels, and which of them hold the property of the task.

    Args:
        images: grey pictures.
        task: ``"class"``, ``"class/thick"``, ``"class/slanted"`` or None, which is ``"class"``.

    Raises:
        InputError: the pictures have no such task.
    """
    held = None if task is None else read_task(task, images.name, {"class": _MEASURES})[1]
    return images if held is None else replace(images, holds=measure(images, held))


def measure(images: ImageDataset, prop: str) -> Tensor:
    """Which pictures hold a property: (M,) bool, the same share of every class to within one picture.

    Of each class's n pictures the ``round(n / 5)`` with the largest measure hold it (`thickness` for ``thick``,
    `slant` for ``slanted``), the earlier picture first where two measure the same.

    Raises:
        InputError: unknown property, or pictures that are not grey.
    """
    require(prop in _MEASURES, f"'data.task' has the unknown property '{prop}'; {nearest(prop, _MEASURES)}")
    channels = images.pixels.shape[1]
    require(channels == 1, f"'{images.name}' has pictures of {channels} channels; '{prop}' is measured on grey ones")
    values = (thickness if prop == "thick" else slant)(images.pixels)
    holds = torch.zeros(len(values), dtype=torch.bool)
    for label in range(images.classes):
        members = torch.nonzero(images.labels == label).flatten()
        order = torch.argsort(values[members], descending=True, stable=True)
        holds[members[order[: round(SHARE * len(members))]]] = True
    return holds


def thickness(pixels: Tensor) -> Tensor:
    """Mean width of the strokes in pixels, (M,) float64; 0 for a picture without ink.

    Twice the ink over the length of its edge, which is the total variation of the brightness: the length of a level
    set, averaged over levels (the coarea formula). A long straight stroke of width w has the edge 2 per unit length
    and so measures w.

    Args:
        pixels: (M, 1, H, W), ink is bright.

    >>> bars = torch.zeros(2, 1, 40, 40)
    >>> bars[0, 0, :, 10:12] = 255
    >>> bars[1, 0, :, 10:16] = 255
    >>> [round(float(width)) for width in thickness(bars)]
    [2, 5]
    """
    widths = [np.zeros(0)]
    for block in pixels[:, 0].split(_BLOCK):
        ink = np.pad(block.numpy().astype(np.float32), ((0, 0), (1, 1), (1, 1)))
        right, down = np.diff(ink, axis=2)[:, :-1], np.diff(ink, axis=1)[:, :, :-1]
        edge = np.sqrt(right * right + down * down).sum((1, 2), dtype=np.float64)
        widths.append(2 * ink.sum((1, 2), dtype=np.float64) / np.maximum(edge, 1e-9))
    return torch.from_numpy(np.concatenate(widths))


def slant(pixels: Tensor) -> Tensor:
    """How far strokes lean to the right: pixels to the right per pixel up, (M,) float64; 0 without ink or height.

    From the second moments about the centre of the ink, ``-mu_xy / mu_yy`` with y downward, by which pictures are
    also deslanted.

    Args:
        pixels: (M, 1, H, W), ink is bright.

    >>> stroke = torch.zeros(1, 1, 8, 8)
    >>> for row in range(8):
    ...     stroke[0, 0, row, 7 - row] = 255
    >>> float(slant(stroke))
    1.0
    """
    height, width = pixels.shape[-2:]
    y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    monomials = torch.stack([torch.ones_like(x), x, y, x * y, y * y]).flatten(1).T
    leans = [torch.zeros(0, dtype=torch.float64)]
    for block in pixels.flatten(1).split(_BLOCK):
        # Sums of whole numbers, exact in float64, so that no order of summation decides near a threshold.
        ink, sx, sy, sxy, syy = (block.double() @ monomials).unbind(1)
        mixed, down = ink * sxy - sx * sy, ink * syy - sy * sy
        leans.append(torch.where(down > 0, -mixed / down.clamp(min=1), 0.0))
    return torch.cat(leans)
