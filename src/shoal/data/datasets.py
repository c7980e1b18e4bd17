"""The three kinds of labelled data sets, images, texts and rows of numbers, and the scale of a table's columns."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.formats import one_line

Impute = Literal["mean", "median", "most-frequent"]
"""The replacement of empty cells in a column."""


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
        labels, train_count, classes, has_property: the arguments of `ImageDataset`.

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
        labels, train_count, classes, has_property: the arguments of `ImageDataset`.

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


@dataclass(frozen=True)
class Standardizer:
    """The scale of a table's columns, fitted to training rows, as numbers that a server can send to its clients.

    A number becomes ``(x - mean) / std``, a word one input per word of its column: 1 for its own, 0 otherwise.

    Args:
        inputs: the names of the F columns.
        mean: the mean of each column; 0 for words.
        std: the standard deviation of each column; infinite for a constant column, which becomes 0; 1 for words.
        words: the words of each column that have an input, none where it holds numbers; a row of another word has 0 in
            all. (): all columns hold numbers.
        fill: each column's replacement of an empty cell, a number or the place of a word. (): empty cells stay.

    Example:
        >>> import pandas as pd
        >>> from shoal.data import Standardizer
        >>> rows = pd.DataFrame({"age": [40.0, 60.0], "ward": [7.0, 7.0], "sex": ["m", "f"]})
        >>> standardizer = Standardizer.fit(rows)
        >>> standardizer.mean, standardizer.std, standardizer.words
        ((50.0, 7.0, 0.0), (10.0, inf, 1.0), ((), (), ('f', 'm')))
        >>> standardizer.transform(rows)
        tensor([[-1.,  0.,  0.,  1.],
                [ 1.,  0.,  1.,  0.]])
    """

    inputs: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    words: tuple[tuple[str, ...], ...] = ()
    fill: tuple[float, ...] = ()

    @staticmethod
    def fit(rows: pd.DataFrame, impute: Impute | None = None) -> "Standardizer":
        """Fit to training rows: F columns of float64 or of words, NaN where a cell is empty.

        ``impute`` replaces empty cells, in a column of words by the most frequent one; None: there are none.

        Raises:
            InputError: a column without any value.
        """
        # Here, so that what has no table does not load scikit-learn.
        from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

        fill = {} if impute is None else {name: _replacement(column, impute) for name, column in rows.items()}
        columns = [column for _, column in rows.fillna(fill).items()]
        words = tuple(tuple(sorted(column.unique())) if _holds_words(column) else () for column in columns)
        pairs = list(zip(columns, words, strict=True))
        values = np.stack([np.zeros(len(rows)) if known else column.to_numpy() for column, known in pairs], axis=1)
        scaler = StandardScaler().fit(values)
        # Of equal numbers the standard deviation is rounding, which would be blown up to 1.
        constant = (values.min(axis=0) == values.max(axis=0)) & np.array([not known for known in words])
        places = (known.index(cell) if known else cell for cell, known in zip(fill.values(), words, strict=False))
        return Standardizer(
            inputs=tuple(map(str, rows)),
            mean=tuple(np.asarray(scaler.mean_).tolist()),
            std=tuple(np.where(constant, np.inf, np.asarray(scaler.scale_)).tolist()),
            words=words if any(words) else (),
            fill=tuple(map(float, places)),
        )

    @property
    def width(self) -> int:
        """The number of inputs of the network, one per column of numbers and one per word."""
        return sum(len(column) or 1 for column in self.words or [()] * len(self.inputs))

    def transform(self, rows: pd.DataFrame) -> Tensor:
        """The rows (M, F), with the same columns, as float32 (M, width).

        Raises:
            InputError: a column of numbers where words were fitted, or the other way round, or an empty cell that
                nothing replaces.
        """
        parts = []
        for i, name in enumerate(self.inputs):
            column, words = rows[name], self.words[i] if self.words else ()
            kinds = ["words" if holds else "numbers" for holds in (_holds_words(column), words)]
            require(kinds[0] == kinds[1], f"the column '{name}' holds {kinds[0]}, where others hold {kinds[1]}")
            if self.fill:
                column = column.fillna(words[int(self.fill[i])] if words else self.fill[i])
            require(not column.isna().any(), f"the column '{name}' has an empty cell, and 'impute' replaces none")
            cells = column.to_numpy()[:, None]
            scaled = cells == np.array(words, dtype=object) if words else (cells - self.mean[i]) / self.std[i]
            parts.append(scaled.astype(np.float32))
        return torch.from_numpy(np.concatenate(parts, axis=1))


def _replacement(column: pd.Series, impute: Impute) -> Any:  # noqa: ANN401 - a number or a word
    """What replaces the empty cells of a column; `InputError` where all cells are empty."""
    require(bool(column.notna().any()), f"the column '{column.name}' is empty in every training row; leave it out")
    frequent = impute == "most-frequent" or _holds_words(column)
    return column.mode().iloc[0] if frequent else column.agg(impute)


def _holds_words(column: pd.Series) -> bool:
    """Whether a column of a table holds words, and not numbers."""
    return not pd.api.types.is_numeric_dtype(column)
