"""Inputs from the columns of tables, by what training rows say, so that clients elsewhere can do as the server does."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.data.user.arrays import Impute

Words = tuple[tuple[str, ...], ...]
"""Of each column its words; none where it holds numbers."""


@dataclass(frozen=True)
class Standardizer:
    """Numbers as ``(x - mean) / deviation``, a word as one input for each word of its column: 1 for its own, 0 else.

    Args:
        inputs: the names of the F columns.
        mean: of each; of words 0.
        deviation: of each; infinite for a column that is constant, which becomes 0; of words 1.
        words: of each column those that have an input; a row of another has 0 in all. (): all columns hold numbers.
        fill: of each column what stands for an empty cell: a number, or the place of a word. (): nothing does.

    Example:
        >>> import torch
        >>> from shoal.data import Standardizer
        >>> scale = Standardizer.of(("age", "ward"), torch.tensor([[40.0, 7.0], [60.0, 7.0]]).double())
        >>> scale
        Standardizer(inputs=('age', 'ward'), mean=(50.0, 7.0), deviation=(10.0, inf), words=(), fill=())
        >>> scale.applied(torch.tensor([[70.0, 8.0]]).double())
        tensor([[2., 0.]])
        >>> rows = torch.tensor([[40.0, 1.0], [60.0, 0.0]]).double()
        >>> Standardizer.of(("age", "sex"), rows, words=((), ("f", "m"))).applied(rows, ((), ("f", "m")))
        tensor([[-1.,  0.,  1.],
                [ 1.,  1.,  0.]])
    """

    inputs: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    words: Words = ()
    fill: tuple[float, ...] = ()

    @staticmethod
    def of(inputs: tuple[str, ...], x: Tensor, words: Words = (), impute: Impute | None = None) -> "Standardizer":
        """That of training rows, by scikit-learn's transformers.

        Args:
            inputs: the names of the F columns.
            x: (M, F) float64, a word by its place in ``words`` and NaN where a cell is empty.
            words: of each column; (): all hold numbers.
            impute: what stands for empty cells, in a column of words the most frequent; None: there are none.
        """
        # Here, so that what has no table does not load scikit-learn.
        from sklearn.impute import SimpleImputer  # noqa: PLC0415
        from sklearn.preprocessing import OneHotEncoder, StandardScaler  # noqa: PLC0415

        known, fill, words = x.numpy(), [], words if any(words) else ()
        of_words = [bool(each) for each in words] or [False] * len(inputs)
        if impute is not None:
            empty = [name for name, column in zip(inputs, known.T, strict=True) if np.isnan(column).all()]
            require(not empty, f"the column '{(empty or [''])[0]}' is empty in every training row; leave it out")
            filled = []
            for column, worded in zip(known.T, of_words, strict=True):
                strategy = "most_frequent" if worded else impute.replace("-", "_")
                imputer = SimpleImputer(strategy=strategy)
                filled.append(imputer.fit_transform(column[:, None])[:, 0])
                fill.append(float(np.asarray(imputer.statistics_)[0]))
            known = np.stack(filled, axis=1)
        scaler = StandardScaler().fit(known)
        # Of equal numbers the deviation is rounding, which would be blown up to 1.
        deviation = np.where(known.min(axis=0) == known.max(axis=0), np.inf, np.asarray(scaler.scale_))
        mean = np.where(of_words, 0.0, np.asarray(scaler.mean_))
        kept = ()
        if words:
            places = OneHotEncoder().fit(known).categories_
            chosen = zip(words, places, strict=True)
            kept = tuple(tuple(own[int(i)] for i in there) if own else () for own, there in chosen)
            fill = [
                float(each.searchsorted(f)) if own else f for f, each, own in zip(fill, places, words, strict=False)
            ]
        return Standardizer(
            inputs, tuple(mean.tolist()), tuple(np.where(of_words, 1.0, deviation).tolist()), kept, tuple(fill)
        )

    @property
    def width(self) -> int:
        """The number of inputs of the network, one for each column of numbers and one for each word."""
        return sum(len(each) or 1 for each in self.words or [()] * len(self.inputs))

    def applied(self, x: Tensor, words: Words = ()) -> Tensor:
        """The rows (M, F) float64, whose columns have ``words``, as float32 (M, inputs).

        Raises:
            InputError: a column of numbers where this has words, or the other way round, or an empty cell that nothing
                stands for.
        """
        values, ours, theirs = x.numpy(), self.words or ((),) * len(self.inputs), words or ((),) * x.shape[1]
        for name, one, other in zip(self.inputs, ours, theirs, strict=True):
            kinds = ["words" if each else "numbers" for each in (other, one)]
            require(kinds[0] == kinds[1], f"the column '{name}' holds {kinds[0]}, where others hold {kinds[1]}")
        if self.fill:
            # Of words the place behind the last stands for the word that fills.
            ends = np.array([len(own) or f for own, f in zip(theirs, self.fill, strict=True)])
            values = np.where(np.isnan(values), ends, values)
        require(not np.isnan(values).any(), f"'{self.inputs[0] if self.inputs else ''}' or another input is empty")
        if not self.words:
            return torch.from_numpy(((values - np.array(self.mean)) / np.array(self.deviation)).astype(np.float32))
        parts = []
        for i, known in enumerate(ours):
            if known:
                filled = [known[int(self.fill[i])]] if self.fill else []
                own = np.array([*theirs[i], *filled])[values[:, i].astype(np.int64)]
                parts.append(own[:, None] == np.array(known))
            else:
                parts.append((values[:, i : i + 1] - self.mean[i]) / self.deviation[i])
        return torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32))
