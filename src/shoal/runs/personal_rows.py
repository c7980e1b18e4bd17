"""The clients' own models and other vectors as long in a checkpoint: which row of which file beside it is whose."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.core.client_vectors import ClientVectors, VectorsInMemory
from shoal.core.vectors_on_disk import RowFile, VectorsOnDisk

_BEGIN = "personal/"

_FORMERLY = {
    "local.personal": "local",
    "ditto.personal": "ditto",
    "apfl.personal": "apfl",
    "fedsoft.personal": "fedsoft",
    "fedrep.head": "fedrep",
    "scaffold.c": "scaffold",
}
"""What earlier versions stored as one tensor among those of the clients, and its name now."""


@dataclass(frozen=True)
class StoredRows:
    """What a checkpoint has of clients' rows.

    Args:
        tensors: by name in the checkpoint: where in its file each client's row is, and its checksum.
        files: by the rows' name: the "file" that they are in, how many of its "rows" count, and their "width".
    """

    tensors: dict[str, Tensor]
    files: dict[str, dict[str, Any]]


def stored_rows(personal: Mapping[str, ClientVectors], folder: Path) -> StoredRows:
    """What a checkpoint in ``folder`` stores of `State.personal`; files are on the disk when this returns.

    Rows that are not in a file there are written into a new one, some at a time.
    """
    tensors, files = dict[str, Tensor](), dict[str, dict[str, Any]]()
    for name, rows in personal.items():
        written = (
            rows if isinstance(rows, VectorsOnDisk) and rows.folder == folder else VectorsOnDisk.of(rows, name, folder)
        )
        assert written.file.path is not None
        written.file.sync()
        tensors |= {f"{_BEGIN}{name}/at": written.at, f"{_BEGIN}{name}/checksums": written.checksums}
        files[name] = {"file": written.file.path.name, "rows": written.file.rows, "width": written.file.width}
    return StoredRows(tensors, files)


def read_rows(stored: StoredRows, folder: Path) -> dict[str, ClientVectors]:
    """The `State.personal` that was stored in ``folder``: in its files, of which nothing is read yet.

    Raises:
        InputError: a file of rows is missing or cut off.
    """
    personal: dict[str, ClientVectors] = {}
    for name, about in stored.files.items():
        at, checksums = (stored.tensors[f"{_BEGIN}{name}/{each}"] for each in ("at", "checksums"))
        personal[name] = VectorsOnDisk(
            RowFile(folder / about["file"], about["width"], about["rows"]), name, at, checksums
        )
    return personal


def of_earlier_versions(clients: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, ClientVectors]]:
    """`State.clients` without what is a part of `State.personal` now, and that part."""
    moved = {
        now: VectorsInMemory(tuple(row.clone() for row in clients[was]))
        for was, now in _FORMERLY.items()
        if was in clients
    }
    return {name: tensor for name, tensor in clients.items() if name not in _FORMERLY}, {**moved}
