"""What every source becomes: one tensor of pictures or texts, one of labels."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A labelled set of pictures, as its publisher made it: nothing scaled, shuffled or dropped.

    Attributes:
        name: name of the set in the catalog, such as ``"fashion-mnist"``.
        pixels: (M, C, H, W) uint8, brightness from 0 (dark) to ``white``.
        white: the value of full brightness: 255, or 16 for scikit-learn's digits.
        labels: (M,) int64, each in ``range(classes)``.
        train_count: the first ``train_count`` pictures are the official training split, the rest the official
            test split; M where the set has no official split.
        classes: classes the set officially has, even if some have no picture here.
        holds: (M,) bool, which pictures hold the property of the task; None where the task names none.
    """

    name: str
    pixels: Tensor
    white: int
    labels: Tensor
    train_count: int
    classes: int
    holds: Tensor | None = None

    @property
    def kind(self) -> str:
        """What it is a set of, in sentences."""
        return "images"


@dataclass(frozen=True, eq=False)
class TextDataset:
    """A labelled set of texts as numbered words.

    Attributes:
        name: name of the set in the catalog, such as ``"yelp"``.
        words: (M, L) int64, each text's words by number, 1 to ``vocabulary``; 0 pads a text after its last word.
        vocabulary: the largest number of a word.
        labels, train_count, classes, holds: as `ImageDataset`.
    """

    name: str
    words: Tensor
    vocabulary: int
    labels: Tensor
    train_count: int
    classes: int
    holds: Tensor | None = None

    @property
    def kind(self) -> str:
        """What it is a set of, in sentences."""
        return "texts"


LabelledDataset = ImageDataset | TextDataset
"""What a source gives."""
