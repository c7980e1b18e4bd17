"""Rows of a table as examples, the same for a file and for a frame in Python, with the kind of each column."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.core.errors import InputError, described, nearest, quoted, require, require_instance
from shoal.data.user.arrays import Columns, Table, Task, stacked


@dataclass(frozen=True, eq=False)
class TableRows:
    """M rows of a table.

    Attributes:
        name: of the table, in sentences.
        x: (M, F) float64, a word by its place in ``words`` and NaN where a cell is empty; of a column of pictures or
            lists (M, ...), as they are.
        inputs: names of the F columns; none of pictures.
        words: the words of each column in sorted order; none where it holds numbers.
        clients: (M,) names.
        labels: (M,) names of classes; of a regression the column.
        groups: (M,) names; None without a column of groups.
        warnings: sentences for the user on how the table was read.
    """

    name: str
    x: Tensor
    inputs: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    clients: list[str]
    labels: Any
    groups: list[str] | None
    warnings: tuple[str, ...]


_WHOLE = re.compile(r"\A\s*(0|-?[1-9][0-9]*)(\.0*)?\s*\Z")
"""The spelling of an integer, also with an empty fraction or spaces."""

_Kind = Literal["numbers", "words", "numbers and others", "other"]


def frame_of(name: str, table: Table, client: str = "") -> pd.DataFrame:
    """A pandas frame, a Hugging Face `datasets.Dataset` or a partitioner of flwr-datasets as a frame.

    ``client`` is the column for the numbers of partitions.

    Raises:
        InputError: the table is none of these, or partitions have that column already.
    """
    if hasattr(table, "load_partition"):
        return _of_partitions(name, table, client)
    if isinstance(table, pd.DataFrame):
        return table
    columns = getattr(table, "column_names", None)
    if not isinstance(columns, list):
        kinds = "a pandas DataFrame, a datasets.Dataset or a partitioner of flwr-datasets"
        raise InputError(f"{name} must be {kinds}; got {described(table)}")
    return pd.DataFrame({column: list(table[column]) for column in columns})


def _of_partitions(name: str, table: Any, client: str) -> pd.DataFrame:  # noqa: ANN401 - of a package that may be absent
    """The rows of all partitions, which are the clients."""
    by_split = getattr(table, "partitioners", None)
    if by_split is not None:
        require(len(by_split) == 1, f"{name} has partitions of {len(by_split)} splits; give the partitioner of one")
        (split,) = by_split
        # Until then the partitioner has no data.
        table.load_partition(0, split)
        table = by_split[split]
    frames = [frame_of(name, table.load_partition(number)) for number in range(table.num_partitions)]
    taken = any(client in frame for frame in frames)
    require(
        not taken, f"{name} has a column '{client}', but partitions are its clients; name another 'client' for them"
    )
    return pd.concat([frame.assign(**{client: str(i)}) for i, frame in enumerate(frames)], ignore_index=True)


def read_rows(
    name: str, table: pd.DataFrame, columns: Columns, task: Task = "classification", *, of_clients: bool = True
) -> TableRows:
    """The rows of a table, which sentences call ``name``.

    ``of_clients``: whether each row needs the name of its client; the server's need none.

    Raises:
        InputError: a column that is missing or of the wrong kind, or cells without a value.
    """
    require_instance("columns", columns, Columns, "such as Columns(client='ward', label='sick')")
    names = [column for column in (columns.client, columns.group) if column is not None]
    table = _with_text_names(name, table)
    require_columns(name, table, [*names, columns.label, *(columns.inputs or ())])
    require(len(table) > 0, f"{name} has no rows; at least one client with a few examples is needed")
    for column in [*names, columns.label][0 if of_clients else 1 :]:
        require_named(name, table[column])
    inputs, warnings = _inputs(name, table, columns)
    pictures = len(inputs) == 1 and _kind(table[inputs[0]]) == "other"
    values = [] if pictures else [_column(table[column]) for column in inputs]
    x = stacked(name, table[inputs[0]].tolist()) if pictures else torch.from_numpy(np.stack([v for v, _ in values], 1))
    if not pictures:
        _require_values(name, inputs, x.numpy(), empty=columns.impute is not None)
    return TableRows(
        name=name,
        x=x,
        inputs=() if pictures else tuple(inputs),
        words=tuple(words for _, words in values),
        clients=_spelled(table[columns.client]),
        labels=table[columns.label].to_numpy() if task == "regression" else _labels(name, table[columns.label]),
        groups=None if columns.group is None else _spelled(table[columns.group]),
        warnings=tuple(warnings),
    )


def _with_text_names(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The table with the names of its columns as text; `InputError` where one has none, or two have the same."""
    for place, title in enumerate(table.columns, start=1):
        missing = pd.api.types.is_scalar(title) and pd.isna(title)
        require(not missing, f"{name} has no name for column {place} (got {title}); give it one")
    titles = [str(title) for title in table.columns]
    require_distinct(name, titles)
    return table.set_axis(titles, axis=1)


def require_distinct(name: str, titles: Iterable[str]) -> None:
    """Raise `InputError` where two columns have the same name."""
    twice = next((title for title, count in Counter(titles).items() if count > 1), None)
    require(twice is None, f"{name} has two columns '{twice}'; give one another name")


def require_columns(name: str, table: pd.DataFrame, columns: Iterable[str]) -> None:
    """Raise `InputError` unless the table has these columns."""
    for column in columns:
        if column not in table.columns:
            raise InputError(f"{name} has no column '{column}'; {nearest(column, map(str, table.columns))}")


def require_named(name: str, column: pd.Series) -> None:
    """Raise `InputError` where a column has cells without a value."""
    empty = np.flatnonzero(column.isna())
    require(
        len(empty) == 0,
        f"{name} has {len(empty):,} of {len(column):,} rows without a value in the column '{column.name}', the first "
        f"in row {empty[0] + 1 if len(empty) else 0} (without the header); every example needs one",
    )


def _inputs(name: str, table: pd.DataFrame, columns: Columns) -> tuple[list[str], list[str]]:
    """The columns that are inputs, and warnings of those that a user may not expect."""
    used = (columns.client, columns.label, columns.group)
    asked = [column for column in table.columns if column not in used] if columns.inputs is None else columns.inputs
    kinds: dict[str, _Kind] = {column: _kind(table[column]) for column in asked}
    words: tuple[_Kind, ...] = ("words",) if columns.one_hot else ()
    inputs = [column for column, kind in kinds.items() if kind in ("numbers", *words)]
    usable = set(inputs)
    if not inputs and list(kinds.values()) == ["other"]:
        return list(asked), []
    if columns.inputs is not None:
        require(bool(asked), "'inputs' must name at least one column")
        for column, kind in kinds.items():
            fault = f": {_not_numbers(table[column])}" if kind == "numbers and others" else ""
            remedy = "choose others as 'inputs', or set 'one_hot' for words"
            require(column in usable, f"{name} has not only numbers in the column '{column}'{fault}; {remedy}")
        return inputs, []
    require(
        bool(inputs), f"{name} has no column of numbers besides {quoted(filter(None, used))}; the model needs inputs"
    )
    return inputs, [*_left_out(name, table, columns, kinds), *_code_warnings(name, table, inputs)]


def _kind(column: pd.Series) -> _Kind:
    if pd.api.types.is_numeric_dtype(column):
        return "other" if pd.api.types.is_complex_dtype(column) else "numbers"
    cells = column.dropna()
    if cells.empty or not cells.map(lambda cell: isinstance(cell, str | int | float)).all():
        return "other"
    share = pd.to_numeric(cells, errors="coerce").notna().mean()
    return "numbers" if share == 1 else "numbers and others" if share > 0.5 else "words"


def _not_numbers(column: pd.Series) -> str:
    """The number of cells of a column that are not numbers, and the first of them."""
    wrong = np.flatnonzero(pd.to_numeric(column, errors="coerce").isna() & column.notna())
    first, are = f"'{column.iloc[wrong[0]]}' in row {wrong[0] + 1}", "is not a number"
    if len(wrong) > 1:
        are = "are not numbers"
    return f"{len(wrong):,} of {len(column):,} cells {are}, {first}"


def _left_out(name: str, table: pd.DataFrame, columns: Columns, kinds: dict[str, _Kind]) -> Iterator[str]:
    for column, kind in kinds.items():
        if kind == "numbers and others":
            fault = _not_numbers(table[column])
            yield f"{name}: the column '{column}' is left out, since {fault}; correct it or name 'inputs'"
    words = [column for column, kind in kinds.items() if kind == "other" or (kind == "words" and not columns.one_hot)]
    if words:
        how = "" if columns.one_hot else "; 'one_hot' makes columns of words inputs"
        yield f"{name}: left out as inputs, since they hold no numbers: {quoted(words)}{how}"


def _code_warnings(name: str, table: pd.DataFrame, inputs: Sequence[str]) -> Iterator[str]:
    """A warning of inputs that look like ids or postcodes."""
    codes = []
    for column in [column for column in inputs if pd.api.types.is_integer_dtype(table[column])]:
        if len(table) >= 10 and table[column].is_unique:
            codes.append(f"'{column}' (another integer in each row)")
        elif table[column].min() >= 1000:
            codes.append(f"'{column}' (integers of 4 digits or more)")
    if codes:
        yield f"{name}: inputs that may be ids or codes: {', '.join(codes)}; 'inputs' can leave them out"


def _column(column: pd.Series) -> tuple[np.ndarray, tuple[str, ...]]:
    """A column as numbers (M,) float64, and its words where it holds some."""
    if _kind(column) == "numbers":
        return pd.to_numeric(column).to_numpy(dtype=np.float64, na_value=np.nan), ()
    places, words = pd.factorize(column.map(str, na_action="ignore"), sort=True)
    return np.where(places < 0, np.nan, places), tuple(words)


def _require_values(name: str, inputs: Sequence[str], values: np.ndarray, *, empty: bool) -> None:
    """Raise where inputs (M, F) are infinite or, unless cells may be ``empty``, NaN."""
    wrong = np.isinf(values) if empty else ~np.isfinite(values)
    counts = wrong.sum(axis=0)
    if counts.any():
        where = [f"'{column}' ({count:,})" for column, count in zip(inputs, counts.tolist(), strict=True) if count]
        shown = ", ".join(where[:5]) + (f" and {len(where) - 5} more columns" if len(where) > 5 else "")
        total, row = int(counts.sum()), np.flatnonzero(wrong.any(axis=1))[0] + 1
        kind = "infinite" if empty else "empty, NaN or infinite"
        raise InputError(
            f"{name} has {total:,} {kind} cell{'s' * (total > 1)} in {shown}, the first in row {row} (without the "
            f"header); {'' if empty else 'set ' + repr('impute') + ', '}fill them, or leave these rows out"
        )


def _spelled(column: pd.Series) -> list[str]:
    """Names as text, integers without a decimal point."""
    if pd.api.types.is_float_dtype(column) and bool((column % 1 == 0).all()):
        return [str(int(cell)) for cell in column.tolist()]
    return [str(cell) for cell in column.tolist()]


def _labels(name: str, column: pd.Series) -> list[str]:
    """The labels as text, so that codes such as 01, 1E2 or 20 digits stay what they are; 1.0 is the integer 1.

    A column of numbers must have integers.
    """
    labels = _spelled(column)
    numbers = pd.to_numeric(pd.Series(labels), errors="coerce").to_numpy(np.float64, na_value=np.nan)
    if np.isfinite(numbers).all():
        # A text without a point, such as 2E-1, is a code.
        words = not pd.api.types.is_numeric_dtype(column)
        is_code = [words and "." not in label for label in labels]
        fractions = [number for number, code in zip(numbers.tolist(), is_code, strict=True) if number % 1 and not code]
        require(
            not fractions,
            f"{name} has numbers that are not integers in the column '{column.name}', such as {fractions[:1]}; labels "
            "are classes, by name or integer; numbers to be predicted are given in Python with task='regression'",
        )
    return [_WHOLE.sub(r"\1", label) for label in labels]
