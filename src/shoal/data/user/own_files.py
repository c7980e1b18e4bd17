"""Readers of clients' own examples: a folder of pictures, a table, or the result of a user's function."""

import csv
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from shoal.core import foreign_files
from shoal.core.errors import InputError, describe, escape_text, read_error, require, search_place
from shoal.core.foreign_files import read_pictures, require_at_most, require_small_csv
from shoal.core.settings import one_of, settings
from shoal.data.names import NameOf, file_row, numbered_name
from shoal.data.sources.named_tables import NAMED_TABLES
from shoal.data.user.arrays import LARGEST, Columns, Task, grey_or_rgb, labelled_arrays
from shoal.data.user.client_dataset import ClientDataset, SourceData
from shoal.data.user.tables import chosen_rows, frame_of, read_rows, require_columns, require_distinct, require_named

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_BILINEAR = 2  # Pillow's filter

PARQUET = (".parquet", ".pq")
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_DECIMAL_COMMA = re.compile(r"(^|;)\s*-?\d+,\d+\s*(;|$)")

_EMPTY = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL"]
"""The spellings of an empty cell; clients and groups may still have these names."""


def _height_and_width(size: tuple[int, ...]) -> tuple[int, ...]:
    if len(size) != 2:
        raise ValueError("two integers, [height, width]")
    return size


@settings
class PictureFormat:
    """The format to which every picture is converted.

    Args:
        size: the [height, width] in pixels to which every picture is resized (bilinear, without keeping the aspect
            ratio). By default, pictures are not resized and must have equal sizes.
        channels: the number of channels: 1 for grey, 3 for RGB. The default is 3 if any picture has colours, else 1.

    Raises:
        InputError: a value is outside its allowed range.
    """

    size: (
        Annotated[
            tuple[Annotated[int, Field(ge=1, le=10_000, strict=True)], ...],
            Field(strict=False),
            AfterValidator(_height_and_width),
        ]
        | None
    ) = None
    channels: Literal[1, 3] | None = None


Reading = PictureFormat | Columns
"""The format of clients' files: pictures or a table."""


def load_client_data(source: str, path: Path | None, task: str | None, reading: Reading) -> ClientDataset:
    """Load the examples of the source ``folder``, ``table`` or one of `NAMED_TABLES`.

    Raises:
        InputError: a required path is missing, the task is unknown, or a file cannot be used.
    """
    tasks = () if isinstance(reading, PictureFormat) else get_args(Task)
    allowed = one_of(tasks) if tasks else "left out"
    require(task is None or task in tasks, f"'task' of data source '{source}' must be {allowed} (got '{task}')")
    if source in NAMED_TABLES and isinstance(reading, Columns):
        require(path is None, f"'path' is not allowed for data source '{source}' (got '{path}'); remove 'path'")
        table, numbers = NAMED_TABLES[source].read(source)
        origin = partial(numbered_name, f"{source} row {{}}".format, numbers)
        return table_dataset(f"'{source}'", table, reading, origin, task)
    if path is None:
        what = "folder of pictures, or a CSV file that names pictures" if source == "folder" else "CSV or Parquet file"
        raise InputError(f"'path' of data source '{source}' is missing; give a {what}")
    require(
        path.exists(),
        f"'path' of data source '{source}' does not exist (got '{escape_text(path)}'){search_place(path)}",
    )
    if isinstance(reading, PictureFormat):
        return load_folder(path, reading)
    require(path.is_file(), f"'path' of data source 'table' must be a file (got the folder '{path}')")
    return load_table(path, reading) if task is None else load_table(path, reading, task)


def own_data(source: str, value: object, columns: Reading | None) -> SourceData:
    """Convert the data that a user's function returned.

    Args:
        source: the function's ``module:Name``.
        value: the function's result.
        columns: the columns of a returned table.

    Raises:
        InputError: the result is not a data set, a pair of inputs and labels, a table or a federation; or ``columns``
            is missing for a table or given without a table.
    """
    table = isinstance(value, pd.DataFrame) or isinstance(getattr(value, "column_names", None), list)
    require(
        not table or columns is not None,
        f"'client' and 'label' are missing; name the columns of the table that '{source}' returned",
    )
    require(
        table or columns is None,
        f"'client' and 'label' are not allowed, because '{source}' did not return a table; remove both keys",
    )
    if table and isinstance(columns, Columns):
        return table_dataset(f"the table of '{source}'", frame_of(source, value), columns, f"{source} row {{}}".format)
    if isinstance(value, SourceData):
        return value
    if isinstance(value, tuple) and len(value) == 2:
        return labelled_arrays(f"'{source}'", *value)
    raise InputError(
        f"'{source}' must return a Federation, a pair (inputs, labels), a DataFrame, an ImageDataset, a TextDataset or "
        f"a TableDataset (got {describe(value)})"
    )


def load_table(path: Path, columns: Columns, task: str | None = None) -> ClientDataset:
    """Load a table's rows as examples, in the order of the file.

    Labels, which may be words, and clients are numbered in sorted order.

    Args:
        path: a CSV file (UTF-8, with a header, separated by commas, semicolons or tabs, possibly compressed), or a
            ``.parquet`` file.
        columns: the roles of the columns.
        task: "regression", or None for classification.

    Raises:
        InputError: the file cannot be read, a column is missing or unusable, or a Parquet file is read without pyarrow.

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
        (('a', 'b'), ('age', 'note'), 0)
    """
    parquet = path.suffix.lower() in PARQUET
    names = [column for column in (columns.client, columns.group) if column is not None]
    label = columns.label if task != "regression" else None
    table = _read_parquet(path) if parquet else read_csv(path, names, label)
    return table_dataset(f"'{path}'", table, columns, partial(file_row, path.name), task)


def table_dataset(
    name: str, table: pd.DataFrame, columns: Columns, origin: NameOf, task: str | None = None
) -> ClientDataset:
    """Convert the rows of ``table`` to examples.

    Args:
        origin: a function that returns a row's name in results.
        task: "regression", or None for classification.

    Raises:
        InputError: `read_rows` fails.
    """
    regression = task == "regression"
    chosen = chosen_rows(name, table, columns)
    rows = read_rows(name, table.iloc[chosen.numpy()], columns, "regression" if regression else "classification")
    require(isinstance(rows.x, pd.DataFrame), f"{name} must have at least one input column of numbers or words")
    return ClientDataset.from_names(
        rows.name,
        rows.x,
        clients=rows.clients,
        labels=_targets(name, columns.label, rows.labels) if regression else rows.labels,
        groups=rows.groups,
        impute=columns.impute,
        warnings=rows.warnings,
        origin=origin if columns.rows is None else partial(numbered_name, origin, chosen),
    )


def _targets(name: str, column: str, labels: np.ndarray) -> Tensor:
    """Return the regression targets, (M, 1) float64."""
    numbers = pd.to_numeric(pd.Series(labels), errors="coerce").to_numpy(np.float64, na_value=np.nan)
    wrong = np.flatnonzero(~(np.abs(numbers) < LARGEST))
    first = f"'{labels[wrong[0]]}' in row {wrong[0] + 1}" if len(wrong) else ""
    require(
        len(wrong) == 0,
        f"{name}, column '{column}': {len(wrong):,} of {len(labels):,} cells are not numbers or are too "
        f"large (first {first}, without the header); correct these cells or remove the rows",
    )
    return torch.from_numpy(numbers.copy())[:, None]


def read_csv(path: Path, names: Sequence[str], label: str | None = None) -> pd.DataFrame:
    """Read a CSV file with the columns ``names`` and ``label`` as text.

    The separator is the most frequent of comma, semicolon and tab in the header. Numbers in a file with semicolons may
    have a decimal comma. In the columns ``names`` only a cell without text is empty. In other columns, cells with "NA",
    "null" and similar words are empty too.

    Raises:
        InputError: the file is missing, is not a CSV file, or has two columns of equal name.
    """
    text = [*names, *([] if label is None else [label])]
    head, separator = [], ","
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            head = require_small_csv(path).decode("utf-8-sig", errors="replace").splitlines()
            separator = max(_SEPARATORS, key=lambda sign: len(next(csv.reader(head[:1], delimiter=sign), ())))
            decimal = "," if separator == ";" and any(map(_DECIMAL_COMMA.search, head)) else "."
            form: dict[str, Any] = {"encoding": "utf-8-sig", "sep": separator}
            header = pd.read_csv(path, nrows=0, index_col=False, **form).columns
            # As a header, a name that comes twice gets a number.
            first = pd.read_csv(path, nrows=1, header=None, dtype=str, keep_default_na=False, **form)
            titles = first.iloc[0].tolist()
            require_distinct(f"'{path}'", filter(None, titles))
            empty = {column: [""] if column in names else _EMPTY for column in header}
            table = pd.read_csv(
                path,
                index_col=False,
                dtype=dict.fromkeys(text, str),
                keep_default_na=False,
                na_values=empty,
                low_memory=False,
                decimal=decimal,
                **form,
            )
            if separator != ",":
                point = " and a comma as the decimal point" if decimal == "," else ""
                table.attrs["warnings"] = (f"'{path}': read with {_SEPARATORS[separator]} between columns{point}",)
            return table
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {read_error(path, error)}") from error
    # No UTF-8, no columns, or rows of more cells than the header.
    except (ValueError, pd.errors.ParserWarning) as error:
        reason = " ".join(str(error).split())
        if not isinstance(error, UnicodeError):
            _refuse_longer_rows(path, head, separator)
        kinds = "a CSV file in UTF-8 with a header and columns separated by commas, semicolons or tabs"
        raise InputError(f"'{path}' must be {kinds} ({reason})") from error


def _refuse_longer_rows(path: Path, lines: Sequence[str], separator: str) -> None:
    """Raise `InputError` if a row has more cells than the header."""
    rows = csv.reader(lines, delimiter=separator)
    width = len(next(rows, ()))
    for row in rows:
        require(
            len(row) <= width,
            f"'{path}', line {rows.line_num}: the row must have at most {width} cells, like the header (got "
            f"{len(row)}); quote cells that contain {_SEPARATORS[separator]}",
        )


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        from pyarrow import parquet  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InputError(
            f"{path}: pyarrow, which reads Parquet files, is not installed; run pip install 'shoal[parquet]'"
        ) from error
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


class _Picture(NamedTuple):
    path: Path
    client: str
    label: str
    group: str | None = None


def load_folder(path: Path, form: PictureFormat) -> ClientDataset:
    """Load the pictures of a folder ``path/client/class/picture.png``, or of a CSV file of pictures.

    The CSV file has the columns ``client``, ``class``, ``path`` (relative to the file's folder) and optionally
    ``group``. Names that begin with a dot are ignored. Next to the folders of clients or classes, files other than
    pictures are ignored.

    Raises:
        InputError: there is no picture; a picture has no client or no class, or cannot be read; sizes differ without
            ``form.size``; or Pillow is not installed.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from PIL import Image
        >>> from shoal.data import PictureFormat, load_folder
        >>> with TemporaryDirectory() as folder:
        ...     for name in ("anna/cat", "anna/dog", "ben/cat"):
        ...         Path(folder, name).mkdir(parents=True)
        ...         Image.new("L", (8, 8)).save(Path(folder, name, "1.png"))
        ...     data = load_folder(Path(folder), PictureFormat())
        ...
        >>> data.client_names, data.class_names, tuple(data.x.shape)
        (('anna', 'ben'), ('cat', 'dog'), (3, 1, 8, 8))
    """
    pictures = list(_in_folder(path) if path.is_dir() else _in_csv(path))
    require(
        bool(pictures),
        f"'{path}' has no pictures; put pictures into client/class/picture.png, or name the pictures in a CSV file",
    )
    paths, clients, labels, groups = zip(*pictures, strict=True)
    within = path if path.is_dir() else path.parent
    return ClientDataset.from_names(
        f"'{path}'",
        _decode(paths, form),
        clients=clients,
        labels=labels,
        groups=None if groups[0] is None else groups,
        origin=partial(getitem, tuple(os.path.relpath(picture, within) for picture in paths)),
    )


def _in_folder(folder: Path) -> Iterator[_Picture]:
    for client in _children(folder, "client"):
        for label in _children(client, "class"):
            for picture in _list_files(label):
                readable = picture.is_file() and picture.suffix.lower() in SUFFIXES
                require(readable, f"'{picture}' is not a picture; class folders may only hold {', '.join(SUFFIXES)}")
                yield _Picture(picture, client.name, label.name)


def _children(folder: Path, level: str) -> Iterator[Path]:
    """Yield the sub-folders; raise `InputError` if a picture is next to them."""
    for path in _list_files(folder):
        if path.is_dir():
            yield path
        else:
            beside = path.suffix.lower() in SUFFIXES
            require(not beside, f"'{path}' has no {level} folder; move the picture into a folder client/class")


def _list_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"'{folder}' cannot be read: {error.strerror}") from error


def _in_csv(path: Path) -> Iterator[_Picture]:
    columns = ("path", "client", "class", "group")
    table = read_csv(path, columns)
    require_columns(f"'{path}'", table, columns[:3])
    used = [column for column in columns if column in table]
    for column in used:
        require_named(f"'{path}'", table[column])
    rows: dict[str, int] = {}
    for row, (file, *names) in enumerate(table[used].itertuples(index=False), start=1):
        place = os.path.normpath(path.parent / file)
        # Of two copies one could be trained on and the other be a non-member.
        require(
            place not in rows,
            f"'{path}' must name each picture once (got '{file}' in rows {rows.get(place)} and {row})",
        )
        rows[place] = row
        yield _Picture(path.parent / file, *names)


def _decode(paths: Sequence[Path], form: PictureFormat) -> Tensor:
    """Read the pictures, (M, C, H, W) uint8, in the order of the paths."""
    images = read_pictures(paths, _FORMATS, partial(_pixels, form))
    sizes: dict[tuple[int, ...], Path] = {}
    for path, image in zip(paths, images, strict=True):
        sizes.setdefault(image.shape[:2], path)
    spelled = [f"{height}x{width} ('{path}')" for (height, width), path in sizes.items()]
    require(
        len(sizes) == 1,
        f"the pictures must have equal sizes (got {' and '.join(spelled[:2])}); set 'size' = [height, width]",
    )
    channels = max(image.shape[2] for image in images)
    images = [image if image.shape[2] == channels else image.repeat(channels, axis=2) for image in images]
    return torch.from_numpy(np.stack(images).transpose(0, 3, 1, 2).copy())


def _pixels(form: PictureFormat, picture: "Image") -> np.ndarray:
    """Convert a picture to (H, W, C) uint8, rotated by its EXIF orientation, without transparency."""
    from PIL import ImageOps  # noqa: PLC0415 - Pillow is an extra

    upright = grey_or_rgb(ImageOps.exif_transpose(picture), form.channels)
    if form.size is not None:
        height, width = form.size
        upright = upright.resize((width, height), _BILINEAR)
    return np.atleast_3d(np.asarray(upright))
