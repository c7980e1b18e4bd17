"""Rows in a file that only grows, so that an earlier value's rows stay readable, and what a crash cuts off is known."""

import os
import tempfile
import weakref
import zlib
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from shoal.core.client_vectors import ClientVectors, VectorsInMemory
from shoal.core.errors import InputError, require

ENDING = ".rows"


class RowFile:
    """A file of rows of d float32 numbers, in the processor's order of bytes, to which rows are appended.

    Rows that were written stay, so whoever knows their positions can read them as long as this object lives, also after
    the file's name was removed.

    Args:
        path: of the file; None: it has no name, and the operating system removes it with the process.
        width: d.
        rows: how many of its rows count; what lies behind them is cut off by the first `append`. None: the file is
            new, and must not exist.

    Raises:
        InputError: the file is missing or has fewer rows.
        OSError: it cannot be made.
    """

    def __init__(self, path: Path | None, width: int, rows: int | None = None) -> None:
        self.path, self.width, self.rows = path, width, rows or 0
        self._appended = rows is None
        if path is None:
            with tempfile.TemporaryFile() as unnamed:
                self._file = os.dup(unnamed.fileno())
        elif rows is None:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        else:
            self._file = _opened(path)
        weakref.finalize(self, os.close, self._file)
        size = os.fstat(self._file).st_size
        needed = self.rows * self._bytes
        require(size >= needed, f"{path}: is cut off: it has {size} bytes of the {needed} that clients' rows take")

    @staticmethod
    def new(folder: Path | None, name: str, width: int) -> "RowFile":
        """A file for what is called ``name``, numbered on in ``folder``; None: one without a name."""
        if folder is None:
            return RowFile(None, width)
        begin = f"{quote(name, safe='')}-"
        taken = [each.stem.removeprefix(begin) for each in folder.glob(f"*{ENDING}") if each.stem.startswith(begin)]
        number = max((int(each) for each in taken if each.isdecimal()), default=0) + 1
        return RowFile(folder / f"{begin}{number:06d}{ENDING}", width)

    @property
    def _bytes(self) -> int:
        """Of a row."""
        return 4 * self.width

    def append(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Write ``rows`` (n, d) behind the others; gives their positions and their checksums, (n,) int64 each.

        Raises:
            OSError: they cannot be written, as on a full disk; then none of them counts.
        """
        given = rows.detach().to("cpu", torch.float32).contiguous()
        content = given.numpy().reshape(-1).view(np.uint8).data
        begin, done = self.rows * self._bytes, 0
        try:
            if not self._appended:
                os.ftruncate(self._file, begin)
                self._appended = True
            while done < len(content):
                done += os.pwrite(self._file, content[done:], begin + done)
        except OSError as error:
            error.filename = tempfile.gettempdir() if self.path is None else str(self.path)
            raise
        positions = torch.arange(self.rows, self.rows + len(given))
        self.rows += len(given)
        each = [zlib.crc32(content[i * self._bytes : (i + 1) * self._bytes]) for i in range(len(given))]
        return positions, torch.tensor(each, dtype=torch.int64)

    def read(self, positions: Tensor, checksums: Tensor) -> Tensor:
        """The rows at ``positions`` (n,), of ``checksums`` (n,): (n, d).

        Raises:
            InputError: a row is not what was written.
        """
        rows = torch.empty(len(positions), self.width)
        for row, position, checksum in zip(rows, positions.tolist(), checksums.tolist(), strict=True):
            content = os.pread(self._file, self._bytes, position * self._bytes)
            whole = len(content) == self._bytes and zlib.crc32(content) == checksum
            require(
                whole, f"{self.path or 'a temporary file'}: is damaged: a client's row is not what was written there"
            )
            row.copy_(torch.frombuffer(bytearray(content), dtype=torch.float32))
        return rows

    def sync(self) -> None:
        """Return once all rows are on the disk."""
        if self._appended:
            os.fsync(self._file)


def _opened(path: Path) -> int:
    """The descriptor of an existing file; only for reading where it must not be written, as a run that is audited."""
    try:
        return os.open(path, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


class VectorsOnDisk(ClientVectors):
    """Rows in a `RowFile`: in memory there are those that are asked for, and two numbers for each client.

    Where more than half of the file's rows would be of no client, `replaced` writes those that are into a new file
    beside it, and leaves the old one to whoever still refers to it.

    Args:
        file: holds the rows.
        name: what they are called, as their files are.
        at: (N,) int64, where in the file each client's row is.
        checksums: (N,) int64, of these rows.
    """

    def __init__(self, file: RowFile, name: str, at: Tensor, checksums: Tensor) -> None:
        self.file, self.name, self.at, self.checksums = file, name, at, checksums

    @staticmethod
    def of(rows: ClientVectors, name: str, folder: Path | None) -> "VectorsOnDisk":
        """A copy of ``rows`` in a new file in ``folder``; None: in one without a name.

        Raises:
            OSError: they cannot be written; no file is left behind then.
        """
        file = RowFile.new(folder, name, rows.shape[1])
        try:
            written = [file.append(block) for block in rows.blocks()]
        except BaseException:
            # On a full disk, for one, which should not stay full of rows that nothing refers to.
            if file.path is not None:
                file.path.unlink(missing_ok=True)
            raise
        number = rows.distinct()[1]
        return VectorsOnDisk(file, name, number, torch.cat([sums for _, sums in written])[number])

    @property
    def folder(self) -> Path | None:
        """Where the file is; None where it has no name."""
        return None if self.file.path is None else self.file.path.parent

    @property
    def shape(self) -> tuple[int, int]:
        """See `ClientVectors`."""
        return len(self.at), self.file.width

    def __getitem__(self, clients: Tensor) -> Tensor:
        return self.file.read(self.at[clients], self.checksums[clients])

    def replaced(self, clients: Tensor, rows: Tensor) -> "VectorsOnDisk":
        """See `ClientVectors`; the rows are appended to the file, or to a new one where too few of the others count."""
        stays = torch.ones(len(self), dtype=torch.bool)
        stays[clients] = False
        live = len(self.at[stays].unique()) + len(clients)
        target = self
        if self.file.rows + len(clients) > 2 * live:
            target = self._without(clients, stays)
        positions, sums = target.file.append(rows)
        at, checksums = target.at.clone(), target.checksums.clone()
        at[clients], checksums[clients] = positions, sums
        return VectorsOnDisk(target.file, self.name, at, checksums)

    def _without(self, clients: Tensor, stays: Tensor) -> "VectorsOnDisk":
        """In a new file, which has no rows of ``clients``: theirs are to be appended."""
        kept = torch.nonzero(stays).flatten()
        file, at, sums = RowFile.new(self.folder, self.name, self.file.width), self.at.clone(), self.checksums.clone()
        if len(kept):
            some = VectorsOnDisk(self.file, self.name, self.at[kept], self.checksums[kept])
            for block in some.blocks():
                file.append(block)
            at[kept] = some.distinct()[1]
        # Nobody's row yet: to be read before it is written would be a defect.
        at[clients] = -1
        return VectorsOnDisk(file, self.name, at, sums)

    def distinct(self) -> tuple[Tensor, Tensor]:
        """See `ClientVectors`; in the order of the file."""
        used, number = self.at.unique(return_inverse=True)
        first = torch.full_like(used, len(self)).scatter_reduce(0, number, torch.arange(len(self)), "amin")
        return first, number

    def __reduce__(self) -> tuple[type[VectorsInMemory], tuple[tuple[Tensor, ...]]]:
        # Another process has no such file.
        number = self.distinct()[1].tolist()
        each = [row.clone() for block in self.blocks() for row in block]
        return VectorsInMemory, (tuple(each[i] for i in number),)
