"""The last charge of each client's privacy ledger that the server has seen, in a file that outlives runs.

A client whose disk went back to an older copy, or lost the ledger, would count too little: the offer says what the
server has seen, and the client stops. See `shoal_flower.client.ledger`.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock
from flwr.app import RecordDict
from pydantic import TypeAdapter, ValidationError

from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError
from shoal_flower.flower_records import unpack_stamp
from shoal_flower.messages import Stamp

_STAMPS = TypeAdapter(dict[str, Stamp])


@dataclass
class LedgerStamps:
    """The stamps of all clients, by name.

    Args:
        path: of the file, which other runs may have too.
        last: the stamps.
    """

    path: Path
    last: dict[str, Stamp] = field(default_factory=dict)

    @staticmethod
    def open(path: Path) -> "LedgerStamps":
        """The stamps in a file; none where there is none.

        Raises:
            InputError: the file is damaged.
        """
        return LedgerStamps(path, _read(path))

    def of(self, name: str) -> Stamp:
        """The stamp of a client; ``(0, "")`` where none was seen."""
        return self.last.get(name, (0, ""))

    def take(self, name: str, reply: RecordDict) -> None:
        """Take the stamp out of a client's reply, and keep it where it is later; raises `RejectedReplyError`."""
        self.last[name] = max(self.of(name), unpack_stamp(reply), key=lambda stamp: stamp[0])

    def save(self) -> None:
        """Write them, each the later of this and of the file's."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            for name, stamp in _read(self.path).items():
                self.last[name] = max(self.of(name), stamp, key=lambda one: one[0])
            write_text(self.path, json.dumps(self.last, indent=1) + "\n")


def _read(path: Path) -> dict[str, Stamp]:
    try:
        return _STAMPS.validate_json(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is no list of clients' last charges; restore a copy") from error
