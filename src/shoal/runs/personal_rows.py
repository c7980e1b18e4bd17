"""The clients' own models and other vectors as long in a checkpoint: their rows, or where in which file they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.core.client_rows import ClientRows, RowsInMemory
from shoal.core.row_file import RowFile, RowsOnDisk

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
        tensors: by name in the file.
        files: by the rows' name: the "file" that they are in, how many of its "rows" count, and their "width".
    """

    tensors: dict[str, Tensor]
    files: dict[str, dict[str, Any]]


def stored_rows(personal: Mapping[str, ClientRows], folder: Path) -> StoredRows:
    """What a checkpoint in ``folder`` stores of `State.personal`; files are on the disk when this returns."""
    tensors, files = dict[str, Tensor](), dict[str, dict[str, Any]]()
    for name, rows in personal.items():
        if isinstance(rows, RowsOnDisk) and rows.file.path is not None and rows.folder == folder:
            rows.file.sync()
            tensors |= {f"{_BEGIN}{name}/at": rows.at, f"{_BEGIN}{name}/checksums": rows.checksums}
            files[name] = {"file": rows.file.path.name, "rows": rows.file.rows, "width": rows.file.width}
        else:
            first, number = rows.distinct()
            tensors |= {f"{_BEGIN}{name}/at": number, f"{_BEGIN}{name}/rows": rows[first]}
    return StoredRows(tensors, files)


def read_rows(stored: StoredRows, folder: Path) -> dict[str, ClientRows]:
    """The `State.personal` that was stored in ``folder``, also by earlier versions.

    Raises:
        InputError: a file of rows is missing or cut off.
    """
    personal: dict[str, ClientRows] = {}
    for key, at in stored.tensors.items():
        if not (key.startswith(_BEGIN) and key.endswith("/at")):
            continue
        begin = key.removesuffix("at")
        name = begin.removeprefix(_BEGIN).removesuffix("/")
        if name in stored.files:
            about = stored.files[name]
            file = RowFile(folder / about["file"], about["width"], about["rows"])
            personal[name] = RowsOnDisk(file, name, at, stored.tensors[f"{begin}checksums"])
        else:
            each = [row.clone() for row in stored.tensors[f"{begin}rows"]]
            personal[name] = RowsInMemory(tuple(each[i] for i in at.tolist()))
    return personal


def of_earlier_versions(clients: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, ClientRows]]:
    """`State.clients` without what is a part of `State.personal` now, and that part."""
    moved = {
        now: RowsInMemory(tuple(row.clone() for row in clients[was]))
        for was, now in _FORMERLY.items()
        if was in clients
    }
    return {name: tensor for name, tensor in clients.items() if name not in _FORMERLY}, {**moved}
