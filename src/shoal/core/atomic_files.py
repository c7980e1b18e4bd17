"""Atomic file writes: fill a temporary file, flush the file to disk, and move the file into place."""

import errno
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from shoal.core.errors import require

_UNFINISHED = ".unfinished"

PRIVATE = 0o600
"""The mode of a file that only its owner may read and write."""

_ANY = 0o666
"""The mode of any other file before the process's umask applies."""


def write_atomically(path: Path, write: Callable[[Path], object], *, mode: int = _ANY) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush the file to disk, and move it to ``path``.

    A crash leaves the old file or the new file, never a partial file. The temporary file has ``mode`` before any
    content is written.

    Raises:
        OSError: the file cannot be written; the error names ``path`` instead of the temporary file.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}{_UNFINISHED}"
    try:
        temporary.touch(mode, exist_ok=False)
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files that a crash left in ``folder``."""
    for path in folder.glob(f".*{_UNFINISHED}"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, mode: int = _ANY) -> None:
    """Write ``text`` to ``path`` in UTF-8, completely or not at all."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline=""), mode=mode)


def write_bytes(path: Path, content: bytes, *, mode: int = _ANY) -> None:
    """Write ``content`` to ``path``, completely or not at all."""
    write_atomically(path, lambda temporary: temporary.write_bytes(content), mode=mode)


def private_folder(path: Path) -> Path:
    """Create a folder that only its owner may open; an existing folder keeps its mode."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def open_to_append(path: str | Path) -> TextIO:
    """Open ``path`` to append UTF-8 text.

    Raises:
        InputError: the path is a symbolic link, which could redirect the text to another file.
    """

    def without_links(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)

    try:
        return open(path, "a", encoding="utf-8", newline="", opener=without_links)
    except OSError as error:
        require(error.errno != errno.ELOOP, f"{path}: is a symbolic link; remove it")
        raise


def write_folder(path: Path, fill: Callable[[Path], object]) -> None:
    """Let ``fill`` write into a temporary folder, and move the folder to ``path``, which must not exist.

    A crash leaves no folder or a complete folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}{_UNFINISHED}"
    temporary.mkdir()
    try:
        fill(temporary)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
