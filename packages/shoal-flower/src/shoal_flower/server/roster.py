"""The clients of a run, the last charges of their ledgers, and the events of the run."""

import csv
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import pandas as pd
import torch
from filelock import FileLock
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from shoal.core.atomic_files import open_to_append, write_text
from shoal.core.errors import InputError
from shoal.data import Federation, Preferences, Shards
from shoal_flower.messages import Stamp, plain


@dataclass
class Member:
    """A client in the server's view.

    Args:
        name: the client's name, as its node sent it.
        id: the number that names the client's random streams: the client's partition, or else the next free number.
        examples: the number of examples in the client's last update; 0 before its first update.
        trained: the number of rounds in which the client's update was merged.
        rejected: the number of replies that were not merged.
        missed: the number of rounds without a reply in time.
        refused: the number of rounds that the client refused.
        node: the client's present node, or ``None`` if disconnected.
        waits: whether a round waits for the client; false from a missed deadline to the next reply.
        key: a hash of the node's public key, or "" without a key.
        culprit: whether the client broke the protocol of a secure sum, which excludes it from further sums.
        last: the last round before the client left for good (0 before the first round), or ``None`` for a present
            client.
    """

    name: str
    id: int
    examples: int = 0
    trained: int = 0
    rejected: int = 0
    missed: int = 0
    refused: int = 0
    node: int | None = None
    waits: bool = True
    key: str = ""
    culprit: bool = False
    last: int | None = None


@dataclass
class Roster:
    """The clients of a run, in the order in which they joined.

    Args:
        clients: all clients that ever joined, in the order of the rows of a `State`.
        members: the clients that have not left for good, which are the federation of a round.
    """

    clients: list[Member] = field(default_factory=list)
    members: list[Member] = field(init=False)
    _names: dict[str, Member] = field(default_factory=dict, repr=False)
    _keys: dict[str, Member] = field(default_factory=dict, repr=False)
    _nodes: dict[int, Member] = field(default_factory=dict, repr=False)
    _ids: set[int] = field(default_factory=set, repr=False)
    _free: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        self.members = [member for member in self.clients if member.last is None]
        for member in self.clients:
            self._index(member)

    @property
    def present(self) -> Tensor:
        """The positions of the members among all clients, (n,) int64."""
        return torch.tensor([i for i, client in enumerate(self.clients) if client.last is None], dtype=torch.int64)

    def by_name(self, name: str) -> Member | None:
        """Return the client with this name, or None for an unknown name."""
        return self._names.get(name)

    def by_key(self, key: str) -> Member | None:
        """Return the client with this key, or None for an unknown key."""
        return self._keys.get(key)

    def by_node(self, node: int) -> Member | None:
        """Return the client at this node, or None."""
        return self._nodes.get(node)

    def join(self, name: str, node: int, partition: int | None, key: str = "") -> None:
        """Add a client, or move a known client to its new node."""
        member = self.by_name(name)
        if member is None:
            while self._free in self._ids:
                self._free += 1
            member = Member(name, self._free if partition is None or partition in self._ids else partition)
            self.clients.append(member)
            self.members.append(member)
        self.disconnect(member)
        self._keys.pop(member.key, None)
        member.node, member.waits, member.key = node, True, key
        self._index(member)

    def disconnect(self, member: Member) -> None:
        """Remove a client from its node."""
        if member.node is not None:
            self._nodes.pop(member.node, None)
        member.node = None

    def leave(self, member: Member, number: int) -> None:
        """Remove a member for good before the round ``number``."""
        self.disconnect(member)
        member.last = number - 1
        self.members.remove(member)

    def _index(self, member: Member) -> None:
        self._names[member.name] = member
        self._ids.add(member.id)
        if member.key:
            self._keys[member.key] = member
        if member.node is not None:
            self._nodes[member.node] = member

    def federation(self, of_server: Federation, members: Sequence[Member] | None = None) -> Federation:
        """Return the federation in the server's view: the clients' numbers of examples, without their examples.

        The federation has the server's shadow set and test set. ``None`` for ``members`` means all members.
        """
        members, clients = self.members if members is None else members, of_server.clients
        count, x, y = len(members), clients.x[:0], clients.y[:0]
        sizes = torch.tensor([member.examples for member in members], dtype=torch.int64)
        nobody = torch.zeros(count, dtype=torch.int64)
        return Federation(
            # Clients report the sizes, so the server must not allocate memory for them.
            clients=Shards.from_indices(x, y, torch.zeros(1, dtype=torch.int64).expand(int(sizes.sum())), sizes),
            holdout=Shards.from_indices(x, y, torch.zeros(0, dtype=torch.int64), nobody),
            ids=torch.tensor([member.id for member in members], dtype=torch.int64),
            group=nobody,
            groups=of_server.groups,
            preferences=Preferences(torch.ones(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)),
            test=of_server.test,
            shadow=of_server.shadow,
            classes=of_server.classes,
            names=tuple(member.name for member in members),
        )

    def frame(self, assignment: Sequence[int]) -> pd.DataFrame:
        """Return the columns of ``clients.csv``, one row per member with its cluster."""
        renamed = {"id": "client", "trained": "rounds"}
        frame = pd.DataFrame(map(asdict, self.members)).rename(columns=renamed).assign(cluster=assignment)
        return frame[["client", "name", "cluster", "examples", "rounds", "rejected", "missed", "refused"]]

    def save(self, path: Path) -> None:
        """Write all clients without their present nodes."""
        rows = [{name: value for name, value in asdict(client).items() if name != "node"} for client in self.clients]
        write_text(path, json.dumps(rows, indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> "Roster":
        """Read the roster in a file; a missing file gives an empty roster.

        Raises:
            InputError: the file is damaged.
        """
        if not path.exists():
            return Roster()
        try:
            return Roster([Member(**row) for row in json.loads(path.read_text(encoding="utf-8"))])
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: is not a list of clients: {error}; choose another 'out'") from error


_STAMPS = TypeAdapter(dict[str, Stamp])


@dataclass
class LedgerStamps:
    """The last charge of each client's ledger that the server has seen, in a file that several runs share.

    Each offer has the client's last charge, and a client refuses an offer whose charge is missing in the client's
    ledger, for example in an older copy (`shoal_flower.client.policy.Ledger`).

    Args:
        last: the last charge of each client, by name; empty without a file.

    Raises:
        InputError: the file is damaged.
    """

    path: Path
    last: dict[str, Stamp] = field(init=False)

    def __post_init__(self) -> None:
        self.last = _read(self.path)

    def of(self, name: str) -> Stamp:
        """Return the last charge of a client, or ``(0, "")`` without a charge."""
        return self.last.get(name, (0, ""))

    def take(self, name: str, stamp: Stamp) -> None:
        """Store a client's last charge, ``stamp``, if the stored charge is older."""
        self.last[name] = max(self.of(name), stamp, key=lambda stamp: stamp[0])

    def save(self) -> None:
        """Write the file, keeping each client's newest charge from memory and file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            for name, stamp in _read(self.path).items():
                self.take(name, stamp)
            write_text(self.path, json.dumps(self.last, indent=1) + "\n")


def _read(path: Path) -> dict[str, Stamp]:
    try:
        return _STAMPS.validate_json(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not a list of clients' last charges; restore a copy") from error


LOG = logging.getLogger("shoal")

LossKind = Literal["missed", "rejected", "refused", "failed"]
EventKind = Literal["joined", "returned", "disconnected", "left"] | LossKind
COLUMNS = ("time", "round", "kind", "client", "node", "reason")


@dataclass
class Events:
    """The events of a run's clients, one line each in the run's log and in ``events.csv``.

    Args:
        path: the file, which is written after each event.
        counts: the number of events by kind.
    """

    path: Path
    counts: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def open(path: Path) -> "Events":
        """Open or create a run's ``events.csv``, dropping an incomplete last line."""
        counts: Counter[str] = Counter()
        if path.exists():
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            if whole != text:
                write_text(path, whole)
            counts.update(row["kind"] for row in csv.DictReader(whole.splitlines()))
        else:
            write_text(path, ",".join(COLUMNS) + "\n")
        return Events(path, counts)

    def add(self, number: int, kind: EventKind, client: str, node: int | None, reason: str = "") -> None:
        """Add an event of round ``number``; names and reasons may be untrusted text."""
        where, client, reason = "" if node is None else str(node), plain(client), plain(reason)
        LOG.warning(
            "round %d: client %s (node %s) %s%s", number, client, where or "none", kind, reason and f": {reason}"
        )
        self.counts[kind] += 1
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with open_to_append(self.path) as file:
            csv.writer(file, lineterminator="\n").writerow([moment, number, kind, client, where, reason])
