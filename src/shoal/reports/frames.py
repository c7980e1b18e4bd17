"""Columns of data frames as arrays."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def column(frame: pd.DataFrame, name: str) -> Floats:
    """(rows,) the numbers of a column; NaN throughout where there is no such column."""
    return np.asarray(frame[name], dtype=float) if name in frame else np.full(len(frame), np.nan)


def by_cluster(rounds: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    """Each cluster with its rows."""
    for k in np.unique(rounds["cluster"]).tolist():
        yield int(k), rounds[rounds["cluster"] == k]
