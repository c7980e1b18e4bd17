"""The digits that come with scikit-learn: real data with nothing to download."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from shoal.data.datasets import ImageDataset


def load_sklearn_digits() -> ImageDataset:
    """1,797 handwritten digits of 8x8 pixels in 17 shades, without an official split.

    Source: the test part of Alpaydin and Kaynak, "Optical recognition of handwritten digits" (UCI, 1998), as
    scikit-learn ships it.

    >>> digits = load_sklearn_digits()
    >>> digits.pixels.shape, digits.pixels.dtype, digits.white, digits.train_count
    (torch.Size([1797, 1, 8, 8]), torch.uint8, 16, 1797)
    """
    # The file itself: to load scikit-learn takes a second of processor time.
    rows = torch.from_numpy(np.loadtxt(digits_file(), delimiter=",", dtype=np.uint8))
    return ImageDataset("digits", rows[:, :-1].contiguous().reshape(-1, 1, 8, 8), 16, rows[:, -1].long(), len(rows), 10)


def digits_file() -> Path:
    """Where scikit-learn has the digits: a gzipped table of comma-separated numbers, 64 pixels and the label a line."""
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
