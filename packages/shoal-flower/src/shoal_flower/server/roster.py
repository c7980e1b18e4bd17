"""The clients that have ever joined a run, by name, and the nodes that they are at now."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pandas as pd
import torch

from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError
from shoal.data import Federation, Preferences, Shards


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


@dataclass
class Roster:
    """All members, in the order in which they joined, which is their position in the federation."""

    members: list[Member] = field(default_factory=list)
    _names: dict[str, Member] = field(default_factory=dict, repr=False)
    _keys: dict[str, Member] = field(default_factory=dict, repr=False)
    _nodes: dict[int, Member] = field(default_factory=dict, repr=False)
    _ids: set[int] = field(default_factory=set, repr=False)
    _free: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        for member in self.members:
            self._index(member)

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
            self.members.append(member)
        self.leave(member)
        self._keys.pop(member.key, None)
        member.node, member.waits, member.key = node, True, key
        self._index(member)

    def leave(self, member: Member) -> None:
        """Note that a client is nowhere."""
        if member.node is not None:
            self._nodes.pop(member.node, None)
        member.node = None

    def _index(self, member: Member) -> None:
        self._names[member.name] = member
        self._ids.add(member.id)
        if member.key:
            self._keys[member.key] = member
        if member.node is not None:
            self._nodes[member.node] = member

    def federation(self, of_server: Federation) -> Federation:
        """The federation as the server sees it: numbers of examples, none of them, and its own shadow and test set."""
        count, clients = len(self.members), of_server.clients
        sizes = torch.tensor([member.examples for member in self.members], dtype=torch.int64)
        nobody = torch.zeros(count, dtype=torch.int64)
        x, y = clients.x[:0], clients.y[:0]
        return Federation(
            # Sizes are what clients say: nothing of their sum is allocated.
            clients=Shards.from_indices(x, y, torch.zeros(1, dtype=torch.int64).expand(int(sizes.sum())), sizes),
            holdout=Shards.from_indices(x, y, torch.zeros(0, dtype=torch.int64), nobody),
            ids=torch.tensor([member.id for member in self.members], dtype=torch.int64),
            group=nobody,
            groups=of_server.groups,
            preferences=Preferences(torch.ones(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)),
            test=of_server.test,
            shadow=of_server.shadow,
            classes=of_server.classes,
            names=tuple(member.name for member in self.members),
        )

    def frame(self, assignment: Sequence[int]) -> pd.DataFrame:
        """The columns of ``clients.csv``: one row per client that ever joined, with its cluster."""
        renamed = {"id": "client", "trained": "rounds"}
        frame = pd.DataFrame(map(asdict, self.members)).rename(columns=renamed).assign(cluster=assignment)
        return frame[["client", "name", "cluster", "examples", "rounds", "rejected", "missed", "refused"]]

    def save(self, path: Path) -> None:
        """Write it, whole or not at all; where clients are now is not written."""
        rows = [{name: value for name, value in asdict(member).items() if name != "node"} for member in self.members]
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
