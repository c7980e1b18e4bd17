"""Data frames of a run, read back from disk and taken apart."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

WORDS = ("group", "non_members")
"""Columns of text; all others hold numbers."""


def column(frame: pd.DataFrame, name: str) -> Floats:
    """(rows,) the numbers of a column; NaN throughout where there is no such column."""
    return np.asarray(frame[name], dtype=float) if name in frame else np.full(len(frame), np.nan)


def present(frame: pd.DataFrame, name: str) -> Bools:
    """(rows,) whether a column has a value."""
    return np.asarray(frame[name].notna(), dtype=bool)


def of_group(frame: pd.DataFrame, group: str) -> Bools:
    """(rows,) whether a row is about ``group``."""
    return np.asarray(frame["group"] == group, dtype=bool)


def rows(frame: pd.DataFrame, where: Bools) -> pd.DataFrame:
    """The rows at ``where`` (rows,)."""
    return frame.take(np.flatnonzero(where))


def by_cluster(rounds: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    """Each cluster with its rows."""
    cluster = column(rounds, "cluster")
    for k in np.unique(cluster):
        yield int(k), rows(rounds, cluster == k)
