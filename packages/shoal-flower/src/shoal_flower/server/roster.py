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
    """A client, as the server knows it.

    Args:
        name: the client's name, as its node sent it.
        id: names its random streams: the number of its partition, otherwise the next free one.
        examples: number of examples that it last stated; 0 before its first update.
        trained: rounds in which its update was merged.
        rejected: replies that were not merged.
        missed: rounds in which it did not reply in time.
        refused: rounds that it refused.
        node: its current node; None: it is disconnected.
        waits: whether a round waits for it: not after a missed deadline, until it replies again.
        key: a hash of its node's public key; "": none.
        culprit: whether it broke a secure sum or gave a wrong share; it takes part in no further one.
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
        clients: all that ever joined, as the rows of a `State`.
        members: those that have not left for good: the federation of a round.
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
        """The client of this name; None: it never joined."""
        return self._names.get(name)

    def by_key(self, key: str) -> Member | None:
        """The client of this key; None: it never joined."""
        return self._keys.get(key)

    def by_node(self, node: int) -> Member | None:
        """The client at this node; None: nobody."""
        return self._nodes.get(node)

    def join(self, name: str, node: int, partition: int | None, key: str = "") -> None:
        """Add a client, or move a known one to its new node."""
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
        """Take a client off its node."""
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
        """The federation of ``members`` (None: of this roster) as the server sees it.

        It has their numbers of examples without the examples, and the server's own shadow and test set.
        """
        members, clients = self.members if members is None else members, of_server.clients
        count, x, y = len(members), clients.x[:0], clients.y[:0]
        sizes = torch.tensor([member.examples for member in members], dtype=torch.int64)
        nobody = torch.zeros(count, dtype=torch.int64)
        return Federation(
            # Clients state the sizes, so no memory is in proportion to them.
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
        """Write all clients without their current nodes."""
        rows = [{name: value for name, value in asdict(client).items() if name != "node"} for client in self.clients]
        write_text(path, json.dumps(rows, indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> "Roster":
        """The roster in a file; an empty one without a file.

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
    """The last charge of each client's ledger that the server has seen, by name, in a file that outlives runs.

    An older copy of a ledger, or a new one, would count too little. Each offer has the client's stamp, and the client
    stops where its ledger lacks that charge (`shoal_flower.client.policy.Ledger`).

    Args:
        path: the file; several runs may share it.
        last: the stamps; none without a file.

    Raises:
        InputError: the file is damaged.
    """

    path: Path
    last: dict[str, Stamp] = field(init=False)

    def __post_init__(self) -> None:
        self.last = _read(self.path)

    def of(self, name: str) -> Stamp:
        """The stamp of a client; ``(0, "")``: none yet."""
        return self.last.get(name, (0, ""))

    def take(self, name: str, stamp: Stamp) -> None:
        """Keep a client's ``stamp`` if it is newer."""
        self.last[name] = max(self.of(name), stamp, key=lambda stamp: stamp[0])

    def save(self) -> None:
        """Write the newer one of each stamp and that of the file."""
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
    """The events of a run's clients, each a line of the run's log and of ``events.csv``.

    Args:
        path: the file; each line is written at once, so that a killed server loses none.
        counts: number of events by kind.
    """

    path: Path
    counts: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def open(path: Path) -> "Events":
        """Open or begin a run's file; a last line that a kill cut off is dropped."""
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
        """Add an event of round ``number``; names and reasons may come from strangers."""
        where, client, reason = "" if node is None else str(node), plain(client), plain(reason)
        LOG.warning(
            "round %d: client %s (node %s) %s%s", number, client, where or "none", kind, reason and f": {reason}"
        )
        self.counts[kind] += 1
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with open_to_append(self.path) as file:
            csv.writer(file, lineterminator="\n").writerow([moment, number, kind, client, where, reason])
