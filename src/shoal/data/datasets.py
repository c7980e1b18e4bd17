"""The two kinds of data sets: labelled images and labelled texts."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from shoal.core.representation import one_line


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A labelled set of images, as its publisher made it: nothing scaled, shuffled or dropped.

    Attributes:
        name: name of the set in the catalog, such as ``"fashion-mnist"``.
        pixels: (M, C, H, W) uint8, brightness from 0 (dark) to ``white``.
        white: the value of full brightness: 255, or 16 for scikit-learn's digits.
        labels: (M,) int64, each in ``range(classes)``.
        train_count: the first ``train_count`` images are the official training split, the rest the official test
            split; M where the set has no official split.
        classes: number of classes of the official set, even if some have no image here.
        has_property: (M,) bool, which images have the property that the task names; None where it names none.
    """

    name: str
    pixels: Tensor
    white: int
    labels: Tensor
    train_count: int
    classes: int
    has_property: Tensor | None = None
    kind: ClassVar[str] = "images"
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class TextDataset:
    """A labelled set of texts as numbered words.

    Attributes:
        name: name of the set in the catalog, such as ``"yelp"``.
        words: (M, L) int64, the numbers of the words, 1 to ``vocabulary``; zeros pad a text after its last word.
        vocabulary: the largest number of a word.
        labels: as in `ImageDataset`.
        train_count: as in `ImageDataset`.
        classes: as in `ImageDataset`.
        has_property: as in `ImageDataset`.
    """

    name: str
    words: Tensor
    vocabulary: int
    labels: Tensor
    train_count: int
    classes: int
    has_property: Tensor | None = None
    kind: ClassVar[str] = "texts"
    __repr__ = one_line


LabelledDataset = ImageDataset | TextDataset
"""A data set as a source returns it."""
