"""A vector for each of N clients, such as its own model: a copy-on-write (N, d) store, in memory or on disk."""

import os
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import InputError, require

ENDING = ".rows"
"""The end of the names of files of vectors."""

BLOCK = 2**24
"""Numbers that are copied at once: 64 MiB."""


class ClientVectors(ABC):
    """N vectors of d float32 numbers, one per client.

    A value: `replaced` returns another one, at the cost of the replaced vectors alone, and leaves this one unchanged.
    Clients with the same vector, as all have before the first round, share it until it is replaced.

    Example:
        >>> import torch
        >>> from shoal.engine import ClientVectors
        >>> before = ClientVectors.same(torch.zeros(2), 3)
        >>> after = before.moved(torch.tensor([1]), torch.ones(1, 2))
        >>> after.tensor().tolist(), before.tensor().sum(), len(after.distinct()[0])
        ([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]], tensor(0.), 2)
    """

    @staticmethod
    def same(row: Tensor, clients: int) -> "VectorsInMemory":
        """The same vector ``row`` (d,) for each of N ``clients``."""
        return VectorsInMemory((row.clone(),) * clients)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """N and d."""

    @abstractmethod
    def __getitem__(self, clients: Tensor) -> Tensor:
        """The vectors of the clients at positions (n,) int64: (n, d), a new tensor."""

    @abstractmethod
    def replaced(self, clients: Tensor, rows: Tensor) -> "ClientVectors":
        """The store with ``rows`` (n, d) for ``clients`` (n,) int64, each client at most once."""

    @abstractmethod
    def _places(self) -> Sequence[int]:
        """(N,), the place of each client's vector, which is the same for clients that share it."""

    def moved(self, clients: Tensor, update: Tensor) -> "ClientVectors":
        """The store with ``update`` (n, d) added to the vectors of ``clients`` (n,) int64, each client at most once."""
        return self.replaced(clients, self[clients] + update)

    def tensor(self) -> Tensor:
        """All vectors: (N, d), a new tensor."""
        return self[torch.arange(len(self))]

    def distinct(self) -> tuple[Tensor, Tensor]:
        """A client of each of the U distinct vectors (U,), in order of first appearance; and each client's number of
        its vector among them (N,).
        """
        first: dict[int, int] = {}
        for client, place in enumerate(places := self._places()):
            first.setdefault(place, client)
        number = {place: u for u, place in enumerate(first)}
        return torch.tensor(list(first.values())), torch.tensor([number[place] for place in places])

    def blocks(self) -> Iterator[Tensor]:
        """The U vectors of `distinct` in order, in blocks (u, d)."""
        for clients in self.distinct()[0].split(max(1, BLOCK // max(1, self.shape[1]))):
            yield self[clients]

    def in_memory(self) -> "VectorsInMemory":
        """The same vectors in memory."""
        rows = [row.clone() for block in self.blocks() for row in block]
        return VectorsInMemory(tuple(rows[u] for u in self.distinct()[1].tolist()))

    def on_disk(self, name: str, folder: Path | None) -> "VectorsOnDisk":
        """The same vectors in a file in ``folder``, named after ``name``; None: in a file without a name.

        Raises:
            OSError: the file cannot be written; it is removed then.
        """
        file = _RowFile.new(folder, name, self.shape[1])
        try:
            for block in self.blocks():
                file.append(block)
        except BaseException:
            if file.path is not None:
                file.path.unlink(missing_ok=True)
            raise
        return VectorsOnDisk(file, name, self.distinct()[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.shape}"


class VectorsInMemory(ClientVectors):
    """Vectors in memory; a vector that no value refers to is freed.

    Args:
        rows: N vectors (d,), at least one; the same tensor for clients that share a vector.
    """

    def __init__(self, rows: tuple[Tensor, ...]) -> None:
        self._rows = rows

    @property
    def shape(self) -> tuple[int, int]:
        """N and d."""
        return len(self._rows), len(self._rows[0])

    def __getitem__(self, clients: Tensor) -> Tensor:
        if not len(clients):
            return self._rows[0].new_empty(0, self.shape[1])
        return torch.stack([self._rows[i] for i in clients.tolist()])

    def replaced(self, clients: Tensor, rows: Tensor) -> "VectorsInMemory":
        """The store with copies of ``rows``: a view would keep all of them until the last one is replaced."""
        changed = list(self._rows)
        for i, row in zip(clients.tolist(), rows, strict=True):
            changed[i] = row.to(changed[i], copy=True)
        return VectorsInMemory(tuple(changed))

    def _places(self) -> Sequence[int]:
        return [id(row) for row in self._rows]

    def in_memory(self) -> "VectorsInMemory":
        """The store itself."""
        return self


class VectorsOnDisk(ClientVectors):
    """Vectors in a file that only grows, so that earlier values and a crash find theirs as they were written.

    In memory is one number per client. `replaced` appends; where more than half of the file would be of no client, it
    goes on in a new file, and leaves the old one to the values that refer to it.

    Args:
        file: of the vectors.
        name: after which files are named.
        at: (N,) int64, the row of the file that each client has.
    """

    def __init__(self, file: "_RowFile", name: str, at: Tensor) -> None:
        self._file, self.name, self.at = file, name, at

    @staticmethod
    def opened(folder: Path, name: str, at: Tensor, file: dict[str, Any]) -> "VectorsOnDisk":
        """The vectors in a file of ``folder``, by their `at` and `stored_in`.

        Raises:
            InputError: the file is missing or cut off.
        """
        return VectorsOnDisk(_RowFile(folder / file["file"], file["width"], file["rows"]), name, at)

    @property
    def stored_in(self) -> dict[str, Any]:
        """The name of the "file", how many of its "rows" count, and their "width"."""
        return {"file": self.path and self.path.name, "rows": self._file.rows, "width": self._file.width}

    @property
    def path(self) -> Path | None:
        """The path of the file; None where it has no name."""
        return self._file.path

    @property
    def shape(self) -> tuple[int, int]:
        """N and d."""
        return len(self.at), self._file.width

    def __getitem__(self, clients: Tensor) -> Tensor:
        return self._file.read(self.at[clients])

    def replaced(self, clients: Tensor, rows: Tensor) -> "VectorsOnDisk":
        """The store with ``rows`` appended to the file.

        Raises:
            OSError: they cannot be written, as on a full disk.
        """
        stays = torch.ones(len(self), dtype=torch.bool)
        stays[clients] = False
        file, at = self._file, self.at.clone()
        if file.rows + len(clients) > 2 * (len(at[stays].unique()) + len(clients)):
            file = _RowFile.new(self.path and self.path.parent, self.name, file.width)
            if bool(stays.any()):
                kept = VectorsOnDisk(self._file, self.name, at[stays])
                for block in kept.blocks():
                    file.append(block)
                at[stays] = kept.distinct()[1]
        at[clients] = file.append(rows)
        return VectorsOnDisk(file, self.name, at)

    def _places(self) -> Sequence[int]:
        return self.at.tolist()

    def on_disk(self, name: str, folder: Path | None) -> "VectorsOnDisk":
        """The store itself where it is in ``folder`` already; else a copy."""
        return self if (self.path and self.path.parent) == folder else super().on_disk(name, folder)

    def sync(self) -> None:
        """Return once all vectors are on the disk."""
        self._file.sync()

    def __reduce__(self) -> tuple[type[VectorsInMemory], tuple[tuple[Tensor, ...]]]:
        # Another process has no such file.
        return VectorsInMemory, (self.in_memory()._rows,)


class _RowFile:
    """A file of float32 rows, to which rows are appended; the first ``rows`` of them count, and never change.

    The file may be removed while the object lives. One without a path the operating system removes with the process.
    """

    def __init__(self, path: Path | None, width: int, rows: int | None = None) -> None:
        self.path, self.width, self.rows = path, width, rows or 0
        mode = "x+b" if rows is None else "r+b" if path and os.access(path, os.W_OK) else "rb"
        try:
            self._file = tempfile.TemporaryFile() if path is None else path.open(mode, buffering=0)  # noqa: SIM115
        except OSError as error:
            if rows is None:
                raise
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        weakref.finalize(self, self._file.close)
        size, needed = os.fstat(self._file.fileno()).st_size, self.rows * 4 * width
        require(size >= needed, f"{path}: is cut off: it has {size} bytes of the {needed} of the clients' vectors")

    @staticmethod
    def new(folder: Path | None, name: str, width: int) -> "_RowFile":
        """A new file, numbered on among those of ``name`` in ``folder``; None: one without a path."""
        begin = f"{quote(name, safe='')}-"
        names = [] if folder is None else [path.stem for path in folder.glob(f"*{ENDING}")]
        taken = [name.removeprefix(begin) for name in names if name.startswith(begin)]
        number = max((int(suffix) for suffix in taken if suffix.isdecimal()), default=0) + 1
        return _RowFile(folder and folder / f"{begin}{number:06d}{ENDING}", width)

    def append(self, rows: Tensor) -> Tensor:
        """Write ``rows`` (n, d) behind those that count; gives their places (n,) int64. None counts after an error."""
        content = rows.detach().to("cpu", torch.float32).contiguous().numpy().reshape(-1).view(np.uint8).data
        position = self.rows * 4 * self.width
        try:
            while content:
                done = os.pwrite(self._file.fileno(), content, position)
                position, content = position + done, content[done:]
        except OSError as error:
            error.filename = str(self.path or tempfile.gettempdir())
            raise
        self.rows += len(rows)
        return torch.arange(self.rows - len(rows), self.rows)

    def read(self, places: Tensor) -> Tensor:
        """The rows at ``places`` (n,): (n, d)."""
        if not places.numel() or not self.width:
            return torch.empty(len(places), self.width)
        mapped = np.memmap(self._file, np.float32, "r", shape=(self.rows, self.width))
        return torch.from_numpy(mapped[places.numpy()])

    def sync(self) -> None:
        """Return once all rows are on the disk."""
        os.fsync(self._file.fileno())
