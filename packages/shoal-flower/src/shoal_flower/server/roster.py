"""Clients of a run, by name: their nodes, the last charges of their ledgers, and what happened to them."""

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
    """One client, as the server knows it.

    Args:
        name: that its node gave.
        id: by which its random streams are named: of a partition its number, otherwise the next free one.
        examples: that it last said it has; 0 before its first update.
        trained: rounds in which its update was merged.
        rejected: replies that were not merged.
        missed: rounds in which it was asked and did not reply in time.
        refused: rounds that it refused.
        node: where it is now; None: nowhere.
        waits: whether a round waits for it; not since it missed a deadline, until it is heard from again.
        key: a hash of its node's public key; "": it has none.
        culprit: whether a secure sum failed by it, or it gave a wrong share; it takes part in no further one.
        last: the last round before it left for good, 0 before the first; None: it has not left.
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
        clients: all that ever joined; the rows of a run's `State`.
        members: those that have not left for good, who are the federation of a round.
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
        """Positions (n,) int64 of the members among all clients."""
        return torch.tensor([i for i, client in enumerate(self.clients) if client.last is None], dtype=torch.int64)

    def by_name(self, name: str) -> Member | None:
        """The client of that name; None: it has never joined."""
        return self._names.get(name)

    def by_key(self, key: str) -> Member | None:
        """The client of that key."""
        return self._keys.get(key)

    def by_node(self, node: int) -> Member | None:
        """The client at that node."""
        return self._nodes.get(node)

    def join(self, name: str, node: int, partition: int | None, key: str = "") -> None:
        """Add a client, or move one that has joined before to its new node."""
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
        """Note that a client is at no node."""
        if member.node is not None:
            self._nodes.pop(member.node, None)
        member.node = None

    def leave(self, member: Member, number: int) -> None:
        """Let a member leave for good before the round ``number``."""
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
        """The federation of some clients, the ``members`` unless others are given, as the server sees it.

        It has their numbers of examples, none of the examples, and the server's own shadow and test set.
        """
        members, clients = self.members if members is None else members, of_server.clients
        count = len(members)
        sizes = torch.tensor([member.examples for member in members], dtype=torch.int64)
        nobody = torch.zeros(count, dtype=torch.int64)
        x, y = clients.x[:0], clients.y[:0]
        return Federation(
            # Sizes are what clients say: nothing of their sum is allocated.
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
        """The columns of ``clients.csv``: one row per member, with its cluster."""
        renamed = {"id": "client", "trained": "rounds"}
        frame = pd.DataFrame(map(asdict, self.members)).rename(columns=renamed).assign(cluster=assignment)
        return frame[["client", "name", "cluster", "examples", "rounds", "rejected", "missed", "refused"]]

    def save(self, path: Path) -> None:
        """Write it, whole or not at all; where clients are now is not written."""
        rows = [{name: value for name, value in asdict(client).items() if name != "node"} for client in self.clients]
        write_text(path, json.dumps(rows, indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> "Roster":
        """The clients of a run that goes on; nobody where there is no file.

        Raises:
            InputError: the file is damaged.
        """
        if not path.exists():
            return Roster()
        try:
            return Roster([Member(**row) for row in json.loads(path.read_text(encoding="utf-8"))])
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: is no list of clients: {error}; choose another 'out'") from error


_STAMPS = TypeAdapter(dict[str, Stamp])


@dataclass
class LedgerStamps:
    """The last charge of each client's ledger that the server has seen, by name, in a file that outlives runs.

    A client whose disk went back to an older copy, or lost the ledger, would count too little: the offer says what the
    server has seen, and the client stops. See `shoal_flower.client.policy.Ledger`.

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

    def take(self, name: str, stamp: Stamp) -> None:
        """Keep the later one of a client's ``stamp`` and the one that was seen."""
        self.last[name] = max(self.of(name), stamp, key=lambda stamp: stamp[0])

    def save(self) -> None:
        """Write them, each the later of this and of the file's."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            for name, stamp in _read(self.path).items():
                self.take(name, stamp)
            write_text(self.path, json.dumps(self.last, indent=1) + "\n")


def _read(path: Path) -> dict[str, Stamp]:
    try:
        return _STAMPS.validate_json(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is no list of clients' last charges; restore a copy") from error


LOG = logging.getLogger("shoal")

EventKind = Literal["joined", "returned", "disconnected", "left", "missed", "rejected", "refused", "failed"]
COLUMNS = ("time", "round", "kind", "client", "node", "reason")


@dataclass
class Events:
    """The events of a run's clients: each is a line of the run's log and of ``events.csv``.

    Args:
        path: of the file; a line is written at once, so that a killed server has lost none.
        counts: how many there were, by kind, in all of the run.
    """

    path: Path
    counts: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def open(path: Path) -> "Events":
        """Go on with a run's file, or begin one; a last line that a kill cut off is dropped."""
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
        """Say that something happened in round ``number``; names and reasons may be a stranger's."""
        where, client, reason = "" if node is None else str(node), plain(client), plain(reason)
        LOG.warning(
            "round %d: client %s (node %s) %s%s", number, client, where or "none", kind, reason and f": {reason}"
        )
        self.counts[kind] += 1
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with open_to_append(self.path) as file:
            csv.writer(file, lineterminator="\n").writerow([moment, number, kind, client, where, reason])
