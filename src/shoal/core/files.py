"""Files that are either whole or absent: written under a temporary name, then moved into place."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

_UNFINISHED = ".unfinished"
"""Ending of temporary files."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, make it durable, and move it to ``path``.

    A crash at any moment leaves the old file or the new one, never a part.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files that a crash left in ``folder``."""
    for path in folder.glob(f".*{_UNFINISHED}"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in UTF-8, whole or not at all."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline=""))


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, whole or not at all."""
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
