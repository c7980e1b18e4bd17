"""Atomic file writes: a file is written under a temporary name, flushed to disk, then moved into place."""

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
"""The mode of a file that its owner alone may read and write."""

_ANY = 0o666
"""The mode of any other file, less what the process's umask takes away."""


def write_atomically(path: Path, write: Callable[[Path], object], *, mode: int = _ANY) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it to disk, and move it to ``path``.

    A crash at any moment leaves the old file or the new one, never a part of it. The file has its ``mode`` before
    anything is written into it.

    Raises:
        OSError: it cannot be written; the error names ``path``, whatever the operating system says of it.
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
    """Make a folder that its owner alone may open; one that exists keeps its mode."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def open_to_append(path: str | Path) -> TextIO:
    """Open ``path`` to append text in UTF-8.

    Raises:
        InputError: it is a symbolic link, which could redirect a write to another file.
    """

    def without_links(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)

    try:
        return open(path, "a", encoding="utf-8", newline="", opener=without_links)
    except OSError as error:
        require(error.errno != errno.ELOOP, f"{path}: is a symbolic link; remove it")
        raise


def write_folder(path: Path, fill: Callable[[Path], object]) -> None:
    """Let ``fill`` write into a temporary folder beside ``path``, and move that to ``path``, which must not exist.

    A crash at any moment leaves no folder or a complete one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}{_UNFINISHED}"
    temporary.mkdir()
    try:
        fill(temporary)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
