"""Tables of clients: a CSV or Parquet file with a row an example, and a column that names the client."""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from shoal.core.errors import InputError, nearest, quoted, require
from shoal.data.client_data import ClientDataset
from shoal.data.own_data import Columns

PARQUET = (".parquet", ".pq")
_EMPTY = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL"]
"""Cells without a value; a client or a group may be called so."""


def load_table(path: Path, columns: Columns) -> ClientDataset:
    """The rows of a table as examples, in the order of the file.

    Labels may be words; they and the clients are numbered in sorted order, whole numbers by size.

    Args:
        path: a CSV file (by commas, UTF-8, with a header, possibly compressed), or ``.parquet``.
        columns: what its columns are; the inputs are all other columns of numbers unless it names them.

    Raises:
        InputError: a file that cannot be read, a column that is missing or holds no numbers, cells without a value, or
            no pyarrow, which reads Parquet.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import pandas as pd
        >>> import shoal
        >>> from shoal.data import load_table
        >>> table = pd.DataFrame({"who": ["b", "a"], "age": [30, 40], "note": ["x", "y"], "state": ["ill", "well"]})
        >>> with TemporaryDirectory() as folder:
        ...     table.to_csv(Path(folder, "wards.csv"), index=False)
        ...     data = load_table(Path(folder, "wards.csv"), shoal.Columns(client="who", label="state"))
        ...
        >>> data.client_names, data.inputs, data.omitted
        (('a', 'b'), ('age',), ('note',))
    """
    parquet = path.suffix.lower() in PARQUET
    names = [each for each in (columns.client, columns.group) if each is not None]
    table = _read_parquet(path) if parquet else read_csv(path, names, columns.label)
    require_columns(path, table, [*names, columns.label, *(columns.inputs or ())])
    require(len(table) > 0, f"'{path}' has no rows; at least one client with a few examples is needed")
    for each in (*names, columns.label):
        require_named(path, table[each])
    inputs, omitted = _inputs(path, table, columns)
    values = table[inputs].to_numpy(dtype=np.float64, na_value=np.nan)
    _require_values(path, inputs, values)
    return ClientDataset.from_names(
        f"'{path}'",
        torch.from_numpy(values.copy()),
        clients=_spelled(table[columns.client]),
        labels=_labels(path, table[columns.label]),
        groups=None if columns.group is None else _spelled(table[columns.group]),
        inputs=inputs,
        omitted=omitted,
    )


def read_csv(path: Path, names: Sequence[str], label: str | None = None) -> pd.DataFrame:
    """A CSV file whose columns ``names`` and ``label`` are text; of these only ``label`` has the usual empty cells.

    Raises:
        InputError: it is missing, no CSV file, or has two columns of one name.
    """
    text = [*names, *([] if label is None else [label])]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            header = pd.read_csv(path, nrows=0, encoding="utf-8-sig", index_col=False).columns
            # As a header, a name that comes twice gets a number.
            first = pd.read_csv(path, nrows=1, header=None, encoding="utf-8-sig", dtype=str, keep_default_na=False)
            given = first.iloc[0].tolist()
            twice = [each for each in given if each and given.count(each) > 1]
            require(not twice, f"'{path}' has two columns '{twice[0] if twice else ''}'; give one another name")
            empty = {each: [""] if each in names else _EMPTY for each in header}
            return pd.read_csv(
                path,
                encoding="utf-8-sig",
                index_col=False,
                dtype=dict.fromkeys(text, str),
                keep_default_na=False,
                na_values=empty,
                low_memory=False,
            )
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror or error}; a readable file is needed") from error
    # No UTF-8, no columns, or rows of more cells than the header.
    except (ValueError, pd.errors.ParserWarning) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"'{path}' is no CSV file with a header, by commas and in UTF-8: {reason}") from error


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise InputError("Parquet files are read with pyarrow: pip install 'shoal[parquet]'") from error
    try:
        return pd.read_parquet(path, engine="pyarrow")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"'{path}' cannot be read as a Parquet file: {reason}") from error


def require_columns(path: Path, table: pd.DataFrame, names: Iterable[str]) -> None:
    """Raise `InputError` unless the table has these columns."""
    for each in names:
        require(each in table.columns, f"'{path}' has no column '{each}'; {nearest(each, map(str, table.columns))}")


def require_named(path: Path, column: pd.Series) -> None:
    """Raise `InputError` where a column has cells without a value."""
    empty = np.flatnonzero(column.isna())
    require(
        len(empty) == 0,
        f"'{path}' has {len(empty):,} of {len(column):,} rows without a value in the column '{column.name}', the first "
        f"in row {empty[0] + 1 if len(empty) else 0} (without the header); every example needs one",
    )


def _inputs(path: Path, table: pd.DataFrame, columns: Columns) -> tuple[list[str], list[str]]:
    """The columns that are inputs, and those that are left out since they hold no numbers."""
    used = (columns.client, columns.label, columns.group)
    if columns.inputs is not None:
        for each in columns.inputs:
            number = _is_number(table[each])
            require(number, f"'{path}' has no numbers in the column '{each}'; choose others as 'inputs'")
        require(bool(columns.inputs), "'inputs' must name at least one column")
        return list(columns.inputs), []
    others = [each for each in table.columns if each not in used]
    inputs = [each for each in others if _is_number(table[each])]
    require(
        bool(inputs), f"'{path}' has no column of numbers besides {quoted(filter(None, used))}; the model needs inputs"
    )
    return inputs, [str(each) for each in others if each not in inputs]


def _is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column)


def _require_values(path: Path, inputs: Sequence[str], values: np.ndarray) -> None:
    """Raise where inputs (M, F) are NaN or infinite."""
    wrong = ~np.isfinite(values)
    counts = wrong.sum(axis=0)
    if counts.any():
        where = [f"'{name}' ({count:,})" for name, count in zip(inputs, counts.tolist(), strict=True) if count]
        shown = ", ".join(where[:5]) + (f" and {len(where) - 5} more columns" if len(where) > 5 else "")
        total, row = int(counts.sum()), np.flatnonzero(wrong.any(axis=1))[0] + 1
        raise InputError(
            f"'{path}' has {total:,} empty, NaN or infinite cell{'s' * (total > 1)} in {shown}, the first in row {row} "
            "(without the header); fill them, or leave these rows out"
        )


def _spelled(column: pd.Series) -> list[str]:
    """Names as text, whole numbers without a decimal point."""
    if pd.api.types.is_float_dtype(column) and bool((column % 1 == 0).all()):
        column = column.astype("int64")
    return [str(each) for each in column.tolist()]


def _labels(path: Path, column: pd.Series) -> list[str]:
    """The labels as text; a column of numbers must have whole ones."""
    numbers = pd.to_numeric(column, errors="coerce")
    if pd.api.types.is_bool_dtype(column) or not bool(np.isfinite(numbers.to_numpy(np.float64, na_value=np.nan)).all()):
        return _spelled(column)
    fractions = numbers[numbers % 1 != 0].tolist()
    require(
        not fractions,
        f"'{path}' has numbers that are not whole in the column '{column.name}', such as {fractions[:1]}; labels are "
        "classes, by name or whole number",
    )
    return _spelled(numbers)
