"""Data frames of a run, read back from disk and taken apart."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shoal.core.checks import InputError, require

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

WORDS = ("group", "non_members")
"""Columns of text; all others hold numbers."""

COMPLETE = ("round", "cluster", "clients", "present", *WORDS)
"""Columns without gaps."""


def read_table(path: Path, columns: Sequence[str], *, empty: bool = False) -> pd.DataFrame:
    """A CSV file of a run, which has at least ``columns``. Only an empty cell is NaN: a group may be called "NA".

    ``empty``: whether it may be without rows.

    Raises:
        InputError: the file is missing or damaged.
    """
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=dict.fromkeys(WORDS, str))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: is damaged: {' '.join(str(error).split())}") from error
    missing = [name for name in columns if name not in frame]
    require(not missing, f"{path}: is damaged: no {', '.join(missing)} among its columns")
    if empty and len(frame) == 0:
        return frame.astype({name: float for name in frame if name not in WORDS})
    strange = [str(name) for name in frame if name not in WORDS and not pd.api.types.is_numeric_dtype(frame[name])]
    require(not strange, f"{path}: is damaged: not only numbers in its columns {', '.join(strange)}")
    gaps = [name for name in COMPLETE if name in frame and not present(frame, name).all()]
    require(not gaps, f"{path}: is damaged: gaps in its columns {', '.join(gaps)}")
    require(len(frame) > 0, f"{path}: is damaged: it has no rows")
    return frame


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
