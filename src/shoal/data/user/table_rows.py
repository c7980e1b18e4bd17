"""Rows of a table as examples, the same for a file and for a frame in Python: checked, and each column what it is."""

from collections.abc import Iterable, Sequence
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
        words: of each column its words in sorted order; none where it holds numbers.
        clients: (M,) names.
        labels: (M,) names of classes; of a regression the column.
        groups: (M,) names; None without a column of groups.
        warnings: what a user should know of how the table was read, a sentence each.
    """

    name: str
    x: Tensor
    inputs: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    clients: list[str]
    labels: Any
    groups: list[str] | None
    warnings: tuple[str, ...]


_Kind = Literal["numbers", "words", "numbers and others", "other"]


def frame_of(name: str, table: Table) -> pd.DataFrame:
    """A table, a pandas frame or a Hugging Face `datasets.Dataset`, as a frame.

    Raises:
        InputError: it is neither.
    """
    if isinstance(table, pd.DataFrame):
        return table
    names = getattr(table, "column_names", None)
    if not isinstance(names, list):
        raise InputError(f"{name} must be a pandas DataFrame or a datasets.Dataset; got {described(table)}")
    return pd.DataFrame({each: list(table[each]) for each in names})


def read_rows(
    name: str, table: pd.DataFrame, columns: Columns, task: Task = "classification", *, of_clients: bool = True
) -> TableRows:
    """The rows of a table.

    Args:
        name: of the table, in sentences.
        table: with a row an example.
        columns: what its columns are.
        task: what labels are.
        of_clients: whether each row needs the name of its client; the server's need none.

    Raises:
        InputError: a column that is missing or cannot be what it is said to be, or cells without a value.
    """
    require_instance("columns", columns, Columns, "such as Columns(client='ward', label='sick')")
    named = [each for each in (columns.client, columns.group) if each is not None]
    require_columns(name, table, [*named, columns.label, *(columns.inputs or ())])
    require(len(table) > 0, f"{name} has no rows; at least one client with a few examples is needed")
    for each in [*named, columns.label][0 if of_clients else 1 :]:
        require_named(name, table[each])
    inputs, warnings = _inputs(name, table, columns)
    pictures = len(inputs) == 1 and _kind(table[inputs[0]]) == "other"
    read = [] if pictures else [_column(table[each]) for each in inputs]
    x = stacked(name, table[inputs[0]].tolist()) if pictures else torch.from_numpy(np.stack([v for v, _ in read], 1))
    if not pictures:
        _require_values(name, inputs, x.numpy(), empty=columns.impute is not None)
    return TableRows(
        name=name,
        x=x,
        inputs=() if pictures else tuple(inputs),
        words=tuple(words for _, words in read),
        clients=_spelled(table[columns.client]),
        labels=table[columns.label].to_numpy() if task == "regression" else _labels(name, table[columns.label]),
        groups=None if columns.group is None else _spelled(table[columns.group]),
        warnings=tuple(warnings),
    )


def require_columns(name: str, table: pd.DataFrame, names: Iterable[str]) -> None:
    """Raise `InputError` unless the table has these columns."""
    for each in names:
        require(each in table.columns, f"{name} has no column '{each}'; {nearest(each, map(str, table.columns))}")


def require_named(name: str, column: pd.Series) -> None:
    """Raise `InputError` where a column has cells without a value."""
    empty = np.flatnonzero(column.isna())
    require(
        len(empty) == 0,
        f"{name} has {len(empty):,} of {len(column):,} rows without a value in the column '{column.name}', the first "
        f"in row {empty[0] + 1 if len(empty) else 0} (without the header); every example needs one",
    )


def _inputs(name: str, table: pd.DataFrame, columns: Columns) -> tuple[list[str], list[str]]:
    """The columns that are inputs, and sentences on those that a user may not expect."""
    used = (columns.client, columns.label, columns.group)
    given = [each for each in table.columns if each not in used] if columns.inputs is None else list(columns.inputs)
    kinds: dict[str, _Kind] = {each: _kind(table[each]) for each in given}
    inputs = [each for each in given if kinds[each] == "numbers" or (kinds[each] == "words" and columns.one_hot)]
    if not inputs and len(given) == 1 and kinds[given[0]] == "other":
        return given, []
    if columns.inputs is not None:
        require(bool(given), "'inputs' must name at least one column")
        for each in [each for each in given if each not in inputs]:
            fault = f": {_not_numbers(table[each])}" if kinds[each] == "numbers and others" else ""
            others = "choose others as 'inputs', or set 'one_hot' for words"
            require(False, f"{name} has not only numbers in the column '{each}'{fault}; {others}")
        return inputs, []
    require(
        bool(inputs), f"{name} has no column of numbers besides {quoted(filter(None, used))}; the model needs inputs"
    )
    return inputs, [*_left_out(name, table, columns, kinds), *_perhaps_codes(name, table, inputs)]


def _kind(column: pd.Series) -> _Kind:
    if pd.api.types.is_numeric_dtype(column):
        return "other" if pd.api.types.is_complex_dtype(column) else "numbers"
    known = column.dropna()
    if known.empty or not known.map(lambda cell: isinstance(cell, str | int | float)).all():
        return "other"
    share = pd.to_numeric(known, errors="coerce").notna().mean()
    return "numbers" if share == 1 else "numbers and others" if share > 0.5 else "words"


def _not_numbers(column: pd.Series) -> str:
    """How many cells of a column are no numbers, and the first of them."""
    wrong = np.flatnonzero(pd.to_numeric(column, errors="coerce").isna() & column.notna())
    first = f"'{column.iloc[wrong[0]]}' in row {wrong[0] + 1}"
    return f"{len(wrong):,} of {len(column):,} cells {'is no number' if len(wrong) == 1 else 'are no numbers'}, {first}"


def _left_out(name: str, table: pd.DataFrame, columns: Columns, kinds: dict[str, _Kind]) -> Iterable[str]:
    """Sentences on columns that are no inputs."""
    for each, kind in kinds.items():
        if kind == "numbers and others":
            fault = _not_numbers(table[each])
            yield f"{name}: the column '{each}' is left out, since {fault}; correct it or name 'inputs'"
    words = [each for each, kind in kinds.items() if kind == "other" or (kind == "words" and not columns.one_hot)]
    if words:
        how = "" if columns.one_hot else "; 'one_hot' makes columns of words inputs"
        yield f"{name}: left out as inputs, since they hold no numbers: {quoted(words)}{how}"


def _perhaps_codes(name: str, table: pd.DataFrame, inputs: Sequence[str]) -> Iterable[str]:
    """A sentence on inputs that look like ids or postcodes."""
    found = []
    for each in [each for each in inputs if pd.api.types.is_integer_dtype(table[each])]:
        if len(table) >= 10 and table[each].is_unique:
            found.append(f"'{each}' (another whole number in each row)")
        elif table[each].min() >= 1000:
            found.append(f"'{each}' (whole numbers of 4 digits or more)")
    if found:
        yield f"{name}: inputs that may be ids or codes: {', '.join(found)}; 'inputs' can leave them out"


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
        where = [f"'{name}' ({count:,})" for name, count in zip(inputs, counts.tolist(), strict=True) if count]
        shown = ", ".join(where[:5]) + (f" and {len(where) - 5} more columns" if len(where) > 5 else "")
        total, row = int(counts.sum()), np.flatnonzero(wrong.any(axis=1))[0] + 1
        kind = "infinite" if empty else "empty, NaN or infinite"
        raise InputError(
            f"{name} has {total:,} {kind} cell{'s' * (total > 1)} in {shown}, the first in row {row} (without the "
            f"header); {'' if empty else 'set ' + repr('impute') + ', '}fill them, or leave these rows out"
        )


def _spelled(column: pd.Series) -> list[str]:
    """Names as text, whole numbers without a decimal point."""
    if pd.api.types.is_float_dtype(column) and bool((column % 1 == 0).all()):
        column = column.astype("int64")
    return [str(each) for each in column.tolist()]


def _labels(name: str, column: pd.Series) -> list[str]:
    """The labels as text; a column of numbers must have whole ones."""
    numbers = pd.to_numeric(column, errors="coerce")
    if pd.api.types.is_bool_dtype(column) or not bool(np.isfinite(numbers.to_numpy(np.float64, na_value=np.nan)).all()):
        return _spelled(column)
    fractions = numbers[numbers % 1 != 0].tolist()
    require(
        not fractions,
        f"{name} has numbers that are not whole in the column '{column.name}', such as {fractions[:1]}; labels are "
        "classes, by name or whole number; numbers to be predicted are given in Python with task='regression'",
    )
    return _spelled(numbers)
