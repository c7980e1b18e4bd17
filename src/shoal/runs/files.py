"""The files of a run, read back and checked."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from shoal.core.errors import InputError, require
from shoal.reports.frames import WORDS as TEXT_COLUMNS
from shoal.reports.frames import present
from shoal.reports.summary_text import WORDS, Figures

NEEDED = (*WORDS, "seed", "rounds", "accuracy.overall", "violations.total", "migrated", "seconds.total")
"""Keys that every summary has."""


def read_run(out: Path) -> Figures:
    """The summary of a finished run.

    Raises:
        InputError: ``out`` is not the directory of a finished run.
    """
    path = out / "summary.json"
    require(path.exists(), f"{out}: is not a finished run (no summary.json); finish it with shoal run --resume")
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    require(isinstance(figures, dict), f"{path}: is damaged: it must hold figures under flat keys")
    missing = [key for key in NEEDED if key not in figures]
    require(not missing, f"{path}: is damaged: {', '.join(missing)} missing")
    whole = all(
        key in WORDS or (isinstance(value, int | float) and not isinstance(value, bool))
        for key, value in figures.items()
    )
    require(
        whole and isinstance(figures["algorithm"], str), f"{path}: is damaged: it must hold numbers under flat keys"
    )
    return figures


COMPLETE = ("round", "cluster", "clients", "present", *TEXT_COLUMNS)
"""Columns without gaps."""


def read_table(path: Path, columns: Sequence[str], *, empty: bool = False) -> pd.DataFrame:
    """A CSV file of a run, which has at least ``columns``. Only an empty cell is NaN: a group may be called "NA".

    ``empty``: whether it may be without rows.

    Raises:
        InputError: the file is missing or damaged.
    """
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=dict.fromkeys(TEXT_COLUMNS, str))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: is damaged: {' '.join(str(error).split())}") from error
    missing = [name for name in columns if name not in frame]
    require(not missing, f"{path}: is damaged: no {', '.join(missing)} among its columns")
    if empty and len(frame) == 0:
        return frame.astype({name: float for name in frame if name not in TEXT_COLUMNS})
    strange = [
        str(name) for name in frame if name not in TEXT_COLUMNS and not pd.api.types.is_numeric_dtype(frame[name])
    ]
    require(not strange, f"{path}: is damaged: not only numbers in its columns {', '.join(strange)}")
    gaps = [name for name in COMPLETE if name in frame and not present(frame, name).all()]
    require(not gaps, f"{path}: is damaged: gaps in its columns {', '.join(gaps)}")
    require(len(frame) > 0, f"{path}: is damaged: it has no rows")
    return frame
