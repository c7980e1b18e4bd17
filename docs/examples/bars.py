"""A data source: images of a bright row or column in noise."""

from pathlib import Path

import torch

from shoal import ImageDataset, Stream

COUNT, SIZE, CLASSES = 2_000, 8, 4


def load(path: Path | None, task: str | None) -> ImageDataset:
    """2,000 images of 8x8 pixels in 4 classes: which pair of rows is bright.

    Args:
        path: of [data]; the images are computed, so it is not used.
        task: of [data]; there is none.
    """
    del path, task
    draw = Stream(0, ("bars",)).generator()
    labels = torch.randint(0, CLASSES, (COUNT,), generator=draw)
    pixels = torch.randint(0, 100, (COUNT, 1, SIZE, SIZE), generator=draw, dtype=torch.uint8)
    for row in (0, 1):
        pixels[torch.arange(COUNT), 0, 2 * labels + row] += 120
    return ImageDataset("bars", pixels, white=255, labels=labels, train_count=COUNT - 400, classes=CLASSES)
