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


@dataclass
class Roster:
    """All members, in the order in which they joined, which is their position in the federation."""

    members: list[Member] = field(default_factory=list)

    def by_name(self, name: str) -> Member | None:
        """The client of that name; None: it has never joined."""
        return next((member for member in self.members if member.name == name), None)

    def by_node(self, node: int) -> Member | None:
        """The client at that node."""
        return next((member for member in self.members if member.node == node), None)

    def join(self, name: str, node: int, partition: int | None) -> None:
        """Add a client, or move one that has joined before to its new node."""
        member = self.by_name(name)
        if member is None:
            taken = {member.id for member in self.members}
            free = next(i for i in range(len(taken) + 1) if i not in taken)
            member = Member(name, free if partition is None or partition in taken else partition)
            self.members.append(member)
        member.node, member.waits = node, True

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
