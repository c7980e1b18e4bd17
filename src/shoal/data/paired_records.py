"""Training examples paired with test examples like them, so that a federation can be replayed without knowing which of
the two was trained on.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.data.memory_format import concatenate


@dataclass(frozen=True, eq=False)
class PairedRecords:
    """Q pairs of a client's training example and a test example of the same group and label (of a regression: group).

    Each of the 2 Q records belongs to the pair's client, which trained on the first of the two: the Q members come
    first in every tensor of 2 Q records, then the non-members in the same order.

    Args:
        federation: whose examples are paired; the inputs and labels of its clients are those of its test set too, from
            row ``first_test`` on.
        entry: (Q,) int64, the member's place in ``federation.clients.indices``.
        test: (Q,) int64, the non-member's place in the test set.
        first_test: see ``federation``.
    """

    federation: Federation
    entry: Tensor
    test: Tensor
    first_test: int

    def __len__(self) -> int:
        return len(self.entry)

    @property
    def client(self) -> Tensor:
        """(2 Q,) int64, the position of each record's client."""
        return self.federation.clients.owners()[self.entry].repeat(2)

    @property
    def rows(self) -> Tensor:
        """(2 Q,) int64, where each record is in ``federation.clients.x``."""
        return torch.cat([self.federation.clients.indices[self.entry], self.first_test + self.test])

    def rows_on_device(self, which: Tensor) -> Tensor:
        """`rows` of some records (m,), where the labels are."""
        return self.rows[which].to(self.federation.clients.y.device)

    @property
    def labels(self) -> Tensor:
        """(2 Q,), of each record; of a regression (2 Q, d)."""
        return self.federation.clients.y[self.rows.to(self.federation.clients.y.device)].cpu()

    def exchanged(self, exchange: Tensor) -> Federation:
        """The federation in which the clients train on the test example instead, where ``exchange`` (Q,) bool says so.

        Every client keeps its number of examples, and its number of each label.
        """
        clients = self.federation.clients
        indices = clients.indices.clone()
        indices[self.entry[exchange]] = self.first_test + self.test[exchange]
        return replace(self.federation, clients=replace(clients, indices=indices))


def pair_records(federation: Federation, stream: Stream) -> PairedRecords:
    """Pair training examples with test examples of the same group and label, each in one pair at most, at random.

    Training examples beyond the number of such test examples stay unpaired. In a regression groups alone must agree.

    Raises:
        InputError: there is no pair.
    """
    clients, test = federation.clients, federation.test
    entry, other = _drawn_pairs(federation, stream)
    require(len(entry) > 0, "no training example has a test example of its group and label; give a larger test set")
    # Of mapped files both are copied into memory, where the clients' examples are and in their type.
    x, y = concatenate(clients.x, test.x.to(clients.x)), torch.cat([clients.y, test.y.to(clients.y)])
    joined = replace(clients, x=x, y=y, mapped=False)
    return PairedRecords(replace(federation, clients=joined), entry, other, len(clients.x))


def number_of_pairs(federation: Federation) -> int:
    """How many pairs `pair_records` makes; no example is copied."""
    return len(_drawn_pairs(federation, Stream(0))[0])


def _drawn_pairs(federation: Federation, stream: Stream) -> tuple[Tensor, Tensor]:
    """`PairedRecords.entry` and `PairedRecords.test`."""
    clients, test = federation.clients, federation.test
    group = federation.group[clients.owners()]
    label, test_label = clients.y[clients.indices.to(clients.y.device)].cpu(), test.y.cpu()
    if federation.classes is None:
        label, test_label = torch.zeros_like(group), torch.zeros_like(test.group)
    entries, tests = [], []
    for g in federation.groups_with_clients:
        for c in range(federation.classes or 1):
            members = torch.nonzero((group == g) & (label == c)).flatten()
            others = torch.nonzero((test.group == g) & (test_label == c)).flatten()
            count, draw = min(len(members), len(others)), stream("pairs", g, c)
            entries.append(members[torch.randperm(len(members), generator=draw("members").generator())[:count]])
            tests.append(others[torch.randperm(len(others), generator=draw("test").generator())[:count]])
    entry, order = torch.cat(entries).sort()
    return entry, torch.cat(tests)[order]
