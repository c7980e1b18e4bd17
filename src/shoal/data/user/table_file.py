"""Tables of clients: a CSV or Parquet file with a row an example, and a column that names the client."""

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from shoal.core import foreign_files
from shoal.core.errors import InputError, require, unread
from shoal.core.foreign_files import require_at_most, require_small_csv
from shoal.data.user.arrays import Columns
from shoal.data.user.client_dataset import ClientDataset
from shoal.data.user.origins import NameOf, file_row
from shoal.data.user.table_rows import read_rows, require_distinct

PARQUET = (".parquet", ".pq")
_EMPTY = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL"]
"""Cells without a value; a client or a group may be called so."""


def load_table(path: Path, columns: Columns) -> ClientDataset:
    """The rows of a table as examples, in the order of the file.

    Labels may be words; they and the clients are numbered in sorted order, integers by size.

    Args:
        path: a CSV file (by commas, UTF-8, with a header, possibly compressed), or ``.parquet``.
        columns: what its columns are.

    Raises:
        InputError: a file that cannot be read, as `read_rows`, or no pyarrow, which reads Parquet.

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
        >>> data.client_names, data.inputs, len(data.warnings)
        (('a', 'b'), ('age',), 1)
    """
    parquet = path.suffix.lower() in PARQUET
    names = [column for column in (columns.client, columns.group) if column is not None]
    table = _read_parquet(path) if parquet else read_csv(path, names, columns.label)
    return table_dataset(f"'{path}'", table, columns, partial(file_row, path.name))


def table_dataset(name: str, table: pd.DataFrame, columns: Columns, origin: NameOf) -> ClientDataset:
    """The rows of ``table``, which sentences call ``name``; ``origin`` names each of them.

    Raises:
        InputError: as `read_rows`.
    """
    rows = read_rows(name, table, columns)
    require(bool(rows.inputs), f"{name} has no column of numbers or words; the inputs are these")
    return ClientDataset.from_names(
        rows.name,
        rows.x,
        clients=rows.clients,
        labels=rows.labels,
        groups=rows.groups,
        inputs=rows.inputs,
        words=rows.words,
        impute=columns.impute,
        warnings=rows.warnings,
        origin=origin,
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
            require_small_csv(path)
            header = pd.read_csv(path, nrows=0, encoding="utf-8-sig", index_col=False).columns
            # As a header, a name that comes twice gets a number.
            first = pd.read_csv(path, nrows=1, header=None, encoding="utf-8-sig", dtype=str, keep_default_na=False)
            titles = first.iloc[0].tolist()
            require_distinct(f"'{path}'", filter(None, titles))
            empty = {column: [""] if column in names else _EMPTY for column in header}
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
        raise InputError(f"'{path}' cannot be read: {unread(path, error)}; a readable file is needed") from error
    # No UTF-8, no columns, or rows of more cells than the header.
    except (ValueError, pd.errors.ParserWarning) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"'{path}' is not a CSV file with a header, by commas and in UTF-8: {reason}") from error


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        from pyarrow import parquet  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InputError("Parquet files are read with pyarrow: pip install 'shoal[parquet]'") from error
    try:
        about = parquet.read_metadata(path)
        size = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        require_at_most(size, foreign_files.MAX_BYTES, "bytes")
        require_at_most(about.num_rows, foreign_files.MAX_ROWS, "rows")
        require_at_most(about.num_columns, foreign_files.MAX_COLUMNS, "columns")
        # A value that repeats takes no bytes in the file.
        require_at_most(about.num_rows * about.num_columns, foreign_files.MAX_CELLS, "cells")
        return pd.read_parquet(path, engine="pyarrow")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"'{path}' cannot be read as a Parquet file: {reason}") from error
