"""Labelled data sets of images, texts and rows of numbers, and the standardisation of table columns."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.formats import one_line

Impute = Literal["mean", "median", "most-frequent"]
"""The statistic that replaces a column's empty cells."""


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A labelled set of images as published, without scaling, shuffling or selection.

    Args:
        name: the name of the data set in the catalog, such as ``"fashion-mnist"``.
        pixels: the brightness of each pixel from 0 (dark) to ``white``, (M, C, H, W) uint8 or float32.
        white: the value of full brightness, such as 255.
        labels: the class of each image, (M,) int64 in ``range(classes)``.
        train_count: the number of images in the official training split, which comes first; M without such a split.
        classes: the number of classes of the official data set, even if a class has no image here.
        has_property: whether each image has the property that attacks infer, (M,) bool, or None without a property.

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
    """Labelled texts, stored as word numbers.

    Args:
        name: the name of the data set in the catalog, such as ``"yelp"``.
        words: the numbers of the words, (M, L) int64 from 1 to ``vocabulary``; zeros pad a text after its last word.
        vocabulary: the largest word number.
        labels, train_count, classes, has_property: each text's class, the number of official training texts, the number
            of classes, and each text's property.

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
    """A labelled set of rows of numbers; partitioning standardises each column by the clients' training rows.

    Args:
        name: the name of the data set in messages.
        rows: the numbers of each example, (M, F) float32.
        labels, train_count, classes, has_property: each row's class, the number of official training rows, the number
            of classes, and each row's property.

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
    """The standardisation of a table's columns, fitted to training rows.

    A column of numbers becomes ``(x - mean) / std``. A column of words becomes one 0/1 input per word.

    Args:
        inputs: the names of the F columns.
        mean: the mean of each column; 0 for a column of words.
        std: the standard deviation of each column; infinite for a constant column, and 1 for a column of words.
        words: the words of each column that have a 0/1 input, () for a column of numbers. Other words set all inputs of
            the column to 0. If all columns hold numbers, ``words`` is ().
        fill: the number or word index that replaces each column's empty cells; () if empty cells are not replaced.

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
        """Fit to training rows with F columns of float64 or words; empty cells are NaN.

        ``impute`` replaces empty cells; without ``impute`` no cell may be empty.

        Raises:
            InputError: a column has only empty cells.
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
        """The number of network inputs, one per column of numbers and one per word of the other columns."""
        return sum(len(column) or 1 for column in self.words or [()] * len(self.inputs))

    def transform(self, rows: pd.DataFrame) -> Tensor:
        """Transform rows of the fitted columns to (M, width) float32.

        Raises:
            InputError: a column changed between numbers and words, or an empty cell has no replacement.
        """
        parts = []
        for i, name in enumerate(self.inputs):
            column, words = rows[name], self.words[i] if self.words else ()
            kinds = ["words" if holds else "numbers" for holds in (_holds_words(column), words)]
            require(
                kinds[0] == kinds[1], f"column '{name}' must hold {kinds[1]}, like the training rows (got {kinds[0]})"
            )
            if self.fill:
                column = column.fillna(words[int(self.fill[i])] if words else self.fill[i])
            require(not column.isna().any(), f"column '{name}' has an empty cell; set 'impute' or fill the cell")
            cells = column.to_numpy()[:, None]
            scaled = cells == np.array(words, dtype=object) if words else (cells - self.mean[i]) / self.std[i]
            parts.append(scaled.astype(np.float32))
        return torch.from_numpy(np.concatenate(parts, axis=1))


def _replacement(column: pd.Series, impute: Impute) -> Any:  # noqa: ANN401 - a number or a word
    """Return the value for a column's empty cells; raise `InputError` if all cells are empty."""
    require(bool(column.notna().any()), f"column '{column.name}' is empty in every training row; remove the column")
    frequent = impute == "most-frequent" or _holds_words(column)
    return column.mode().iloc[0] if frequent else column.agg(impute)


def _holds_words(column: pd.Series) -> bool:
    """Return whether a column holds words."""
    return not pd.api.types.is_numeric_dtype(column)
