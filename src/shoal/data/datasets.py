"""The three kinds of data sets: labelled images, labelled texts and labelled rows of numbers."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from shoal.core.representation import one_line


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A labelled set of images, as its publisher made it: nothing scaled, shuffled or dropped.

    Args:
        name: name of the set in the catalog, such as ``"fashion-mnist"``.
        pixels: (M, C, H, W) uint8 (or float32), brightness from 0 (dark) to ``white``.
        white: the value of full brightness: 255, or 16 for scikit-learn's digits.
        labels: (M,) int64, each in ``range(classes)``.
        train_count: the first ``train_count`` images are the official training split, the rest the official test
            split; M where the set has no official split.
        classes: number of classes of the official set, even if some have no image here.
        has_property: (M,) bool, which images have the property that the task names; None where it names none.

    Example:
        >>> import torch, shoal
        >>> pixels = torch.arange(8, dtype=torch.uint8).reshape(8, 1, 1, 1)
        >>> dataset = shoal.ImageDataset("grey", pixels, 7, labels=torch.arange(8) // 4, train_count=8, classes=2)
        >>> plan, groups = shoal.Partition(2, 3, test_examples=2), [shoal.Group("all", 1.0)]
        >>> federation = shoal.partition_dataset(dataset, plan, groups)
        >>> federation.clients.sizes.tolist(), bool((federation.clients.x <= 1).all())
        ([3, 3], True)
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

    Args:
        name: name of the set in the catalog, such as ``"yelp"``.
        words: (M, L) int64, the numbers of the words, 1 to ``vocabulary``; zeros pad a text after its last word.
        vocabulary: the largest number of a word.
        labels, train_count, classes, has_property: as in `ImageDataset`.

    Example:
        >>> import torch, shoal
        >>> words = torch.tensor([[5, 3, 0], [2, 0, 0], [1, 4, 2], [3, 3, 0]])  # zeros pad shorter texts
        >>> shoal.TextDataset("notes", words, vocabulary=5, labels=torch.arange(4) % 2, train_count=4, classes=2).kind
        'texts'
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


@dataclass(frozen=True, eq=False)
class TableDataset:
    """A labelled set of rows of numbers, each column standardised by the clients' training rows in a partition.

    Args:
        name: name of the set in sentences.
        rows: (M, F) float32, M examples of F numbers.
        labels, train_count, classes, has_property: as in `ImageDataset`.

    Example:
        >>> import torch, shoal
        >>> rows, labels = torch.arange(12.0)[:, None], torch.arange(12) % 2
        >>> dataset = shoal.TableDataset("numbers", rows, labels, train_count=12, classes=2)
        >>> groups = [shoal.Group("all", 1.0)]
        >>> federation = shoal.partition_dataset(dataset, shoal.Partition(2, 4, test_examples=4), groups)
        >>> federation.kind, abs(round(float(federation.clients.x.mean()), 6))
        ('rows', 0.0)
    """

    name: str
    rows: Tensor
    labels: Tensor
    train_count: int
    classes: int
    has_property: Tensor | None = None
    kind: ClassVar[str] = "rows"
    __repr__ = one_line


LabelledDataset = ImageDataset | TextDataset | TableDataset
"""A data set that is partitioned across clients."""
