"""Readers of files from untrusted sources, with limits on size and depth."""

import contextlib
import gzip
import io
import json
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shoal.core.errors import InputError, search_place

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image


MAX_TEXT = 2**25
"""The maximum size of a JSON or TOML file, in bytes."""

MAX_DEPTH = 64
"""The maximum nesting depth of tables and lists."""

MAX_BYTES = 2**32
"""The maximum decompressed size of a table or of arrays, in bytes."""

MAX_ROWS, MAX_COLUMNS, MAX_CELLS = 10**8, 10**5, 10**9
"""The maximum numbers of a table's rows, columns and cells."""

MAX_PIXELS = 10**8
"""The maximum number of a picture's pixels."""


def read_text(path: Path) -> str:
    """Return the text of a JSON or TOML file in UTF-8.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is larger than `MAX_TEXT` bytes or is not UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(MAX_TEXT + 1)
    require_at_most(len(content), MAX_TEXT, "bytes")
    return content.decode("utf-8-sig")


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever JSON has
    """Return the value in a JSON file, with the exceptions of `read_text` and `parse_json`."""
    return parse_json(read_text(path))


def parse_json(text: str) -> Any:  # noqa: ANN401 - whatever JSON has
    """Return the value in a JSON text, with the exceptions of `parse_shallow`."""
    return parse_shallow(json.loads, text)


def parse_shallow(parse: Callable[[str], Any], text: str) -> Any:  # noqa: ANN401 - whatever the format has
    """Return ``parse(text)`` if its tables and lists are nested at most `MAX_DEPTH` deep.

    Raises:
        ValueError: the value is nested too deeply, or ``parse`` rejects the text.
    """
    try:
        value = parse(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _require_shallow(value)
    return value


def _require_shallow(value: object) -> None:
    """Raise `ValueError` if tables and lists are nested too deeply for recursive readers."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            member
            for each in level
            if isinstance(each, dict | list)
            for member in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise ValueError("it is nested too deeply")


def require_small_csv(path: Path) -> bytes:
    """Check that a CSV file, possibly compressed, fits into memory, and return its first megabyte.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file has too many bytes, rows or columns, or is damaged.
    """
    # Here, so that what has no table does not load pandas.
    from pandas.io.common import get_handle  # noqa: PLC0415 # pyright: ignore[reportMissingImports] - not in the stubs

    size = lines = commas = 0
    first = b""
    in_header = True
    try:
        with get_handle(path, "rb", compression="infer", is_text=False) as opened:
            while chunk := cast("bytes", opened.handle.read(2**20)):
                first = first or chunk
                if in_header:
                    header, end, _ = chunk.replace(b"\r", b"\n").partition(b"\n")
                    commas, in_header = commas + max(map(header.count, (b",", b";", b"\t"))), not end
                size, lines = size + len(chunk), lines + chunk.count(b"\n")
                require_at_most(size, MAX_BYTES, "bytes")
                require_at_most(lines - 1, MAX_ROWS, "rows")
                require_at_most(commas + 1, MAX_COLUMNS, "columns")
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise ValueError(str(error)) from error
    return first


def require_at_most(number: int, most: int, what: str) -> None:
    """Raise `ValueError` if ``number`` exceeds ``most``; ``what`` names the counted things, such as "rows"."""
    if number > most:
        raise ValueError(f"it has more than {most:,} {what}")


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file to read bytes, and decompress a gzip file.

    Raises:
        InputError: the file cannot be read, is truncated or is damaged.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if zipped:
                with gzip.GzipFile(fileobj=file, mode="rb") as unzipped:
                    yield unzipped
            else:
                yield file
    except FileNotFoundError as error:
        raise InputError(f"'{path}' is missing{search_place(path)}") from error
    except EOFError as error:
        raise InputError(f"'{path}' is truncated (its gzip stream ends too early); download the file again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"'{path}' has a corrupt gzip stream ({error}); download the file again") from error
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror or error}; make the file readable") from error


def read_pictures(
    paths: Sequence[Path], formats: tuple[str, ...], pixels_of: "Callable[[Image], np.ndarray]"
) -> "list[np.ndarray]":
    """Return ``pixels_of(picture)`` for each picture, in the order of the paths, decoded by several threads.

    Raises:
        InputError: Pillow is not installed, or a picture is damaged, of a format outside ``formats``, or rejected by
            ``pixels_of``.
    """
    try:
        import PIL.Image  # noqa: PLC0415 - Pillow is an extra
    except ImportError as error:
        raise InputError("reading pictures needs Pillow; run pip install 'shoal[images]'") from error

    def read(path: Path) -> "np.ndarray":
        try:
            with PIL.Image.open(path, formats=formats) as picture:
                require_at_most(picture.width * picture.height, MAX_PIXELS, "pixels")
                return pixels_of(picture)
        except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            raise InputError(f"'{path}' cannot be read as a picture ({reason}); replace or remove the file") from error

    with ThreadPoolExecutor() as threads:
        return list(threads.map(read, paths))
