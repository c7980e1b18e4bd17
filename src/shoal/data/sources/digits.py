"""The digits that come with scikit-learn: real data with nothing to download."""

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
    from sklearn.datasets import load_digits  # noqa: PLC0415 - scikit-learn takes a second to import

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).to(torch.uint8).reshape(-1, 1, 8, 8)
    return ImageDataset("digits", images, 16, torch.from_numpy(labels).long(), len(images), 10)
