"""Training examples paired with examples like them that nobody trains on, so that a federation can be replayed without
knowing which of the two was trained on.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data.content import ExampleHashes, comparable_hashes
from shoal.data.federation import Federation
from shoal.data.memory_format import concatenate, gather
from shoal.data.shards import GroupedExamples, Shards

Duplicates = Literal["keep", "leave-out"]
"""Whether examples that a federation has more than once are paired."""

OTHER_CLIENTS = (
    "non-members are test examples of the same group and label, whosever they are: where clients have inputs of their "
    "own kind, attacks tell clients apart and figures are too high; a test set that says whose its examples are, or "
    "hold-out examples, give each client non-members of its own"
)
"""What is said of pairs within groups where inputs may differ from client to client."""


@dataclass(frozen=True, eq=False)
class PairedRecords:
    """Q pairs of a client's training example and an example of the same label (not in a regression) that is held out.

    The second is the client's own where the federation says whose its test examples are, or, where inputs may differ
    from client to client, from the client's hold-out; else a test example of the client's group. Each of the 2 Q
    records belongs to the pair's client, which trained on the first of the two: the Q members come first in every
    tensor of 2 Q records, then the non-members in the same order.

    Args:
        federation: whose examples are paired; the inputs and labels of its clients are those of the second examples'
            set too, from row ``first_test`` on.
        entry: (Q,) int64, the member's place in ``federation.clients.indices``.
        test: (Q,) int64, the non-member's place in its set.
        first_test: see ``federation``.
        source: the set of the non-members.
        within: whether both examples of a pair are one client's.
    """

    federation: Federation
    entry: Tensor
    test: Tensor
    first_test: int
    source: Literal["test", "holdout"] = "test"
    within: Literal["client", "group"] = "group"

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

    def take(self, pairs: Tensor) -> "PairedRecords":
        """Some of the pairs, by mask (Q,)."""
        return replace(self, entry=self.entry[pairs], test=self.test[pairs])

    def found_in(self, earlier: Federation) -> tuple["PairedRecords", Tensor]:
        """The training examples of another federation that are the first of a pair by content, each with the second.

        Returns:
            The pairs (E,) of ``earlier``, and which of the Q pairs each one is (E,) int64.
        """
        clients = self.federation.clients
        mine, theirs = comparable_hashes(clients, earlier.clients)
        if np.array_equal(mine, theirs) and torch.equal(clients.sizes, earlier.clients.sizes):
            # The same examples: of copies in it the very one is exchanged.
            return replace(self, federation=replace(earlier, clients=clients)), torch.arange(len(self))
        first = mine[self.entry.numpy()]
        order = np.argsort(first, kind="stable")
        place = np.searchsorted(first[order], theirs).clip(max=max(0, len(first) - 1))
        same = first[order][place] == theirs
        pair, entry = torch.from_numpy(order[place][same]), torch.from_numpy(np.flatnonzero(same))
        second = clients.x[self.first_test :], clients.y[self.first_test :]
        x = concatenate(earlier.clients.x, second[0].to(earlier.clients.x))
        joined = replace(earlier.clients, x=x, y=torch.cat([earlier.clients.y, second[1]]), mapped=False)
        at = replace(self, federation=replace(earlier, clients=joined), entry=entry, test=self.test[pair])
        return replace(at, first_test=len(earlier.clients.x)), pair

    def trained_in(self, earlier: Federation) -> Tensor:
        """(Q,) bool, whether the second of each pair is a training example of another federation, by content."""
        clients = self.federation.clients
        second = Shards.from_indices(clients.x, clients.y, self.first_test + self.test, torch.tensor([len(self)]))
        mine, theirs = comparable_hashes(second, earlier.clients)
        return torch.from_numpy(np.isin(mine, theirs))

    def exchanged(self, exchange: Tensor) -> Federation:
        """The federation whose clients train on the second example instead, where ``exchange`` (Q,) bool says so.

        Every client keeps its number of examples, and its number of each label.
        """
        clients = self.federation.clients
        indices = clients.indices.clone()
        indices[self.entry[exchange]] = self.first_test + self.test[exchange]
        return replace(self.federation, clients=replace(clients, indices=indices))


def pair_records(federation: Federation, stream: Stream, duplicates: Duplicates = "keep") -> PairedRecords:
    """Pair training examples with examples like them that are held out, each in one pair at most, at random.

    Training examples beyond the number of such examples stay unpaired. In a regression labels need not agree.

    Args:
        federation: see `PairedRecords`.
        stream: of the pairs.
        duplicates: "leave-out": no example is paired of which the federation has a copy, in whatever set.

    Raises:
        InputError: there is no pair.
    """
    clients = federation.clients
    held, source, within = _held_out(federation)
    entry, other = _drawn_pairs(federation, stream, duplicates)
    whose = "its client" if within == "client" else "its group"
    require(
        len(entry) > 0,
        f"no training example has a {'test' if source == 'test' else 'hold-out'} example of {whose} and label; give a "
        f"larger {'test set' if source == 'test' else 'hold-out'}",
    )
    # Of mapped files both are copied into memory, where the clients' examples are and in their type.
    x, y = concatenate(clients.x, held.x.to(clients.x)), torch.cat([clients.y, held.y.to(clients.y)])
    joined = replace(clients, x=x, y=y, mapped=False)
    return PairedRecords(replace(federation, clients=joined), entry, other, len(clients.x), source, within)


def number_of_pairs(federation: Federation, duplicates: Duplicates = "keep") -> int:
    """How many pairs `pair_records` makes."""
    return len(_drawn_pairs(federation, Stream(0), duplicates)[0])


def _held_out(federation: Federation) -> tuple[GroupedExamples, Literal["test", "holdout"], Literal["client", "group"]]:
    """The examples that are the second of a pair, their set, and within what pairs are drawn."""
    holdout, test = federation.holdout, federation.test
    if test.client is not None:
        return test, "test", "client"
    if not federation.own_inputs or not len(holdout.indices):
        return test, "test", "group"
    owner, rows = holdout.owners(), holdout.indices.to(holdout.y.device)
    kept = GroupedExamples(gather(holdout.x, rows), holdout.y[rows], federation.group[owner], federation.ids[owner])
    return kept, "holdout", "client"


def _drawn_pairs(federation: Federation, stream: Stream, duplicates: Duplicates) -> tuple[Tensor, Tensor]:
    """`PairedRecords.entry` and `PairedRecords.test`."""
    clients, (held, source, within) = federation.clients, _held_out(federation)
    owners, label = clients.owners(), clients.y[clients.indices.to(clients.y.device)].cpu()
    of, held_of = federation.group[owners], held.group
    if within == "client":
        assert held.client is not None
        of, held_of = federation.ids[owners], held.client
    held_label, one = held.y.cpu(), torch.zeros(1, dtype=torch.int64)
    if federation.classes is None:
        label, held_label = one.expand(len(of)), one.expand(len(held_of))
    mine, theirs = torch.arange(len(of)), torch.arange(len(held_of))
    if duplicates == "leave-out":
        hashes = ExampleHashes.of(federation)
        repeated = hashes.repeated()
        mine = mine[torch.from_numpy(~np.isin(hashes.clients, repeated))]
        of_held = hashes.test if source == "test" else hashes.holdout
        theirs = theirs[torch.from_numpy(~np.isin(of_held, repeated))]
    entries, tests = [mine[:0]], [theirs[:0]]
    strata = _strata(theirs, held_of, held_label)
    draw = stream("pairs") if within == "group" else stream("pairs", "client")
    for (whose, c), members in _strata(mine, of, label).items():
        others = strata.get((whose, c), theirs[:0])
        count, at = min(len(members), len(others)), draw(whose, c)
        if count:
            entries.append(members[torch.randperm(len(members), generator=at("members").generator())[:count]])
            tests.append(others[torch.randperm(len(others), generator=at("test").generator())[:count]])
    entry, order = torch.cat(entries).sort()
    return entry, torch.cat(tests)[order]


def _strata(places: Tensor, of: Tensor, label: Tensor) -> dict[tuple[int, int], Tensor]:
    """The ``places`` of each client or group and each label, in order; ``of`` and ``label`` are of all places."""
    keys, stratum = torch.stack([of[places], label[places]], dim=1).unique(dim=0, return_inverse=True)
    sizes = torch.bincount(stratum, minlength=len(keys)).tolist()
    parts = places[torch.argsort(stratum, stable=True)].split(sizes)
    return {(g, c): part for (g, c), part in zip(keys.tolist(), parts, strict=True)}
