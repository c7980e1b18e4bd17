"""Columns of tables as inputs, fitted to training rows, so that clients elsewhere can do as the server does."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.data.user.arrays import Impute

Words = tuple[tuple[str, ...], ...]
"""The words of each column; none where it holds numbers."""


@dataclass(frozen=True)
class Standardizer:
    """Numbers as ``(x - mean) / std``, and a word as one input per word of its column: 1 for its own, 0 otherwise.

    Args:
        inputs: the names of the F columns.
        mean: of each column; of words 0.
        std: standard deviation of each column; infinite for a constant column, which becomes 0; of words 1.
        words: the words of each column that have an input; a row of another word has 0 in all. (): all columns hold
            numbers.
        fill: what replaces an empty cell of each column: a number, or the place of a word. (): nothing does.

    Example:
        >>> import torch
        >>> from shoal.data import Standardizer
        >>> standardizer = Standardizer.fit(("age", "ward"), torch.tensor([[40.0, 7.0], [60.0, 7.0]]).double())
        >>> standardizer
        Standardizer(inputs=('age', 'ward'), mean=(50.0, 7.0), std=(10.0, inf), words=(), fill=())
        >>> standardizer.transform(torch.tensor([[70.0, 8.0]]).double())
        tensor([[2., 0.]])
        >>> rows, words = torch.tensor([[40.0, 1.0], [60.0, 0.0]]).double(), ((), ("f", "m"))
        >>> Standardizer.fit(("age", "sex"), rows, words).transform(rows, words)
        tensor([[-1.,  0.,  1.],
                [ 1.,  1.,  0.]])
    """

    inputs: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    words: Words = ()
    fill: tuple[float, ...] = ()

    @staticmethod
    def fit(inputs: tuple[str, ...], x: Tensor, words: Words = (), impute: Impute | None = None) -> "Standardizer":
        """Fit to training rows.

        Args:
            inputs: the names of the F columns.
            x: (M, F) float64, a word by its place in ``words`` and NaN where a cell is empty.
            words: of each column; (): all hold numbers.
            impute: what replaces empty cells, in a column of words the most frequent one; None: there are none.
        """
        # Here, so that what has no table does not load scikit-learn.
        from sklearn.impute import SimpleImputer  # noqa: PLC0415
        from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

        values, fill, words = x.numpy(), [], words if any(words) else ()
        has_words = [bool(column) for column in words] or [False] * len(inputs)
        if impute is not None:
            empty = [name for name, column in zip(inputs, values.T, strict=True) if np.isnan(column).all()]
            require(not empty, f"the column '{(empty or [''])[0]}' is empty in every training row; leave it out")
            filled = []
            for column, worded in zip(values.T, has_words, strict=True):
                imputer = SimpleImputer(strategy="most_frequent" if worded else impute.replace("-", "_"))
                filled.append(imputer.fit_transform(column[:, None])[:, 0])
                fill.append(float(np.asarray(imputer.statistics_)[0]))
            values = np.stack(filled, axis=1)
        scaler = StandardScaler().fit(values)
        # Of equal numbers the standard deviation is rounding, which would be blown up to 1.
        std = np.where(values.min(axis=0) == values.max(axis=0), np.inf, np.asarray(scaler.scale_))
        mean = np.where(has_words, 0.0, np.asarray(scaler.mean_))
        kept = ()
        if words:
            pairs = list(zip(words, map(np.unique, values.T), strict=True))
            kept = tuple(tuple(column[int(i)] for i in used) if column else () for column, used in pairs)
            fill = [
                float(used.searchsorted(f)) if column else f for f, (column, used) in zip(fill, pairs, strict=False)
            ]
        return Standardizer(
            inputs, tuple(mean.tolist()), tuple(np.where(has_words, 1.0, std).tolist()), kept, tuple(fill)
        )

    @property
    def width(self) -> int:
        """The number of inputs of the network, one per column of numbers and one per word."""
        return sum(len(column) or 1 for column in self.words or [()] * len(self.inputs))

    def transform(self, x: Tensor, words: Words = ()) -> Tensor:
        """The rows (M, F) float64, whose columns have ``words``, as float32 (M, width).

        Raises:
            InputError: a column of numbers where words were fitted, or the other way round, or an empty cell that
                nothing replaces.
        """
        values, ours, theirs = x.numpy(), self.words or ((),) * len(self.inputs), words or ((),) * x.shape[1]
        for name, fitted, column in zip(self.inputs, ours, theirs, strict=True):
            kinds = ["words" if content else "numbers" for content in (column, fitted)]
            require(kinds[0] == kinds[1], f"the column '{name}' holds {kinds[0]}, where others hold {kinds[1]}")
        if self.fill:
            # Of words the place behind the last stands for the word that fills.
            ends = np.array([len(column) or f for column, f in zip(theirs, self.fill, strict=True)])
            values = np.where(np.isnan(values), ends, values)
        require(not np.isnan(values).any(), f"'{self.inputs[0] if self.inputs else ''}' or another input is empty")
        if not self.words:
            return torch.from_numpy(((values - np.array(self.mean)) / np.array(self.std)).astype(np.float32))
        parts = []
        for i, column in enumerate(ours):
            if column:
                filled = [column[int(self.fill[i])]] if self.fill else []
                row_words = np.array([*theirs[i], *filled])[values[:, i].astype(np.int64)]
                parts.append(row_words[:, None] == np.array(column))
            else:
                parts.append((values[:, i : i + 1] - self.mean[i]) / self.std[i])
        return torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32))
