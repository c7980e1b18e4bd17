"""Contents of files that come from elsewhere: what is wrong with a file is one sentence that names it."""

import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.core import foreign_files
from shoal.core.errors import InputError, searched_in

if TYPE_CHECKING:
    from PIL.Image import Image


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[io.BufferedIOBase]:
    """A file open for reading, decompressed if its first bytes are gzip's, whatever its name.

    Raises:
        InputError: the file cannot be read, or proves truncated or damaged while it is read.
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
        raise InputError(f"'{path}' is missing{searched_in(path)}") from error
    except EOFError as error:
        raise InputError(f"'{path}' is truncated: its gzip stream ends too early; fetch the file again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"'{path}' is damaged: its gzip stream is corrupt ({error}); fetch the file again") from error
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror or error}; a readable file is needed") from error


def read_pictures(
    paths: Sequence[Path], formats: tuple[str, ...], pixels_of: Callable[["Image"], np.ndarray]
) -> list[np.ndarray]:
    """``pixels_of`` each picture, in the order of the paths, decoded by several threads.

    Raises:
        InputError: a picture cannot be read or is in none of Pillow's ``formats``, ``pixels_of`` raises `ValueError`,
            or Pillow is not installed.
    """
    try:
        import PIL.Image  # noqa: PLC0415 - Pillow is an extra
    except ImportError as error:
        raise InputError("pictures are read by Pillow: pip install 'shoal[images]'") from error

    def read(path: Path) -> np.ndarray:
        try:
            with PIL.Image.open(path, formats=formats) as picture:
                foreign_files.require_at_most(picture.width * picture.height, foreign_files.MAX_PIXELS, "pixels")
                return pixels_of(picture)
        except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            raise InputError(f"'{path}' cannot be read as a picture ({reason}); replace it, or leave it out") from error

    with ThreadPoolExecutor() as threads:
        return list(threads.map(read, paths))
