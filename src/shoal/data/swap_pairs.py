"""Records for audits: pairs of training and held-out examples, and mislabelled examples (canaries).

A federation can be retrained with either example of a pair. Each canary is left out of training with probability 1/2.

Source of the canaries: Aerni, Zhang, Tramer 2024, CCS, arXiv:2404.17399, section 4. Canaries here replace examples of
the client; the paper adds canaries to the training set.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.formats import one_line
from shoal.core.randomness import Stream
from shoal.core.settings import Count, Positive, settings
from shoal.data.content import ExampleHashes, comparable_hashes
from shoal.data.federation import Federation
from shoal.data.shards import GroupedExamples, Shards, concatenate, gather

Duplicates = Literal["keep", "leave-out"]
"""Whether to pair examples that a federation has more than once."""

OTHER_CLIENTS = (
    "non-members are test examples of any client in the member's group; if clients' inputs differ, attack accuracy is "
    "too high, so no record is reported as exposed; give each test example's client, or give hold-out examples"
)
"""The warning about pairs within groups if inputs may differ between clients."""


@dataclass(frozen=True, eq=False)
class PairedRecords:
    """Q pairs of a training example and a held-out example with the same label and group.

    In a regression, the targets of a pair may differ. If test examples have clients, the held-out example is a test
    example of the same client. Otherwise, if inputs may differ between clients and hold-outs are not empty, the
    held-out example comes from the same client's hold-out. If neither applies, the held-out example is a test example
    of the same group. Tensors of 2 Q records have the Q members first, then the Q non-members.

    Args:
        federation: the federation, with the held-out examples appended to the inputs and labels of its clients.
        entry: the member's position in ``federation.clients.indices``, (Q,) int64.
        test: the non-member's position in the data set ``source``, (Q,) int64.
        first_test: the first row of the appended held-out examples.
        source: the data set of the non-members.
        within: whether the examples of a pair share the client, or only the group.
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
        """The position of each record's client, (2 Q,) int64."""
        return self.federation.clients.owners()[self.entry].repeat(2)

    @property
    def group(self) -> Tensor:
        """The group of each record, (2 Q,) int64."""
        return self.federation.groups_of("clients")[self.entry].repeat(2)

    @property
    def rows(self) -> Tensor:
        """The row of each record in ``federation.clients.x``, (2 Q,) int64."""
        return torch.cat([self.federation.clients.indices[self.entry], self.first_test + self.test])

    def rows_on_device(self, records: Tensor) -> Tensor:
        """Return the `rows` of ``records`` (m,) on the labels' device."""
        return self.rows[records].to(self.federation.clients.y.device)

    @property
    def labels(self) -> Tensor:
        """The label of each record, (2 Q,), or (2 Q, d) in a regression."""
        return self.federation.clients.y[self.rows.to(self.federation.clients.y.device)].cpu()

    def members_with_copies(self) -> int:
        """Count the members that occur more than once in the federation, by inputs and label."""
        hashes = ExampleHashes.from_federation(self.federation)
        return int(np.isin(hashes.clients[self.entry.numpy()], hashes.repeated()).sum())

    def take(self, pairs: Tensor) -> "PairedRecords":
        """Select the pairs in the mask ``pairs`` (Q,)."""
        return replace(self, entry=self.entry[pairs], test=self.test[pairs])

    def locate_in(self, earlier: Federation) -> tuple["PairedRecords", Tensor]:
        """Find the pairs whose training example is also a training example of ``earlier``, compared by content.

        Returns:
            The E pairs in ``earlier``, and their positions among the Q pairs, (E,) int64.
        """
        clients = self.federation.clients
        hashes, earlier_hashes = comparable_hashes(clients, earlier.clients)
        if np.array_equal(hashes, earlier_hashes) and torch.equal(clients.sizes, earlier.clients.sizes):
            # With the same examples, the right one of several copies is swapped.
            same = replace(earlier, clients=clients, row_groups=self.federation.row_groups)
            return replace(self, federation=same), torch.arange(len(self))
        first = hashes[self.entry.numpy()]
        order = np.argsort(first, kind="stable")
        place = np.searchsorted(first[order], earlier_hashes).clip(max=max(0, len(first) - 1))
        same = first[order][place] == earlier_hashes
        pair, entry = torch.from_numpy(order[place][same]), torch.from_numpy(np.flatnonzero(same))
        x, y = clients.x[self.first_test :], clients.y[self.first_test :]
        whole = _append_rows(earlier, x, y, self.federation.row_groups.get("clients", y)[self.first_test :])
        first_test = len(earlier.clients.x)
        return replace(self, federation=whole, entry=entry, test=self.test[pair], first_test=first_test), pair

    def second_members(self, earlier: Federation) -> Tensor:
        """Return whether each pair's held-out example is also a training example of ``earlier``, (Q,) bool."""
        clients = self.federation.clients
        second = Shards.from_indices(clients.x, clients.y, self.first_test + self.test, torch.tensor([len(self)]))
        own, others = comparable_hashes(second, earlier.clients)
        return torch.from_numpy(np.isin(own, others))

    def swap_records(self, swap: Tensor) -> Federation:
        """Return the federation that trains on the held-out example of each pair in the mask ``swap`` (Q,).

        Each client's number of examples stays unchanged.
        """
        clients = self.federation.clients
        indices = clients.indices.clone()
        indices[self.entry[swap]] = self.first_test + self.test[swap]
        return replace(self.federation, clients=replace(clients, indices=indices))


def _append_rows(federation: Federation, x: Tensor, y: Tensor, group: Tensor) -> Federation:
    """Append x and y to the clients' inputs and labels; memory-mapped files are copied into memory."""
    clients, of_rows = federation.clients, federation.row_groups
    of_rows = of_rows and {**of_rows, "clients": torch.cat([of_rows["clients"], group])}
    x, y = concatenate(clients.x, x.to(clients.x)), torch.cat([clients.y, y.to(clients.y)])
    return replace(federation, clients=replace(clients, x=x, y=y, memory_mapped=False), row_groups=of_rows)


def pair_records(federation: Federation, stream: Stream, duplicates: Duplicates = "keep") -> PairedRecords:
    """Pair training examples with similar held-out examples at random; each example is in at most one pair.

    Args:
        federation: the federation.
        stream: the random stream of the pairs.
        duplicates: "keep", or "leave-out" to exclude examples that occur more than once in the federation.

    Raises:
        InputError: no pair is possible.
    """
    held_out, source, within = held_out_examples(federation)
    entry, other = _draw_pairs(federation, stream, duplicates)
    owner = "its client" if within == "client" else "its group"
    one, larger = ("test", "test set") if source == "test" else ("hold-out", "hold-out")
    require(
        len(entry) > 0,
        f"no training example has a {one} example of {owner} with the same label; give a larger {larger}",
    )
    whole = _append_rows(federation, held_out.x, held_out.y, held_out.group)
    return PairedRecords(whole, entry, other, len(federation.clients.x), source, within)


def decoys(records: PairedRecords, federation: Federation, stream: Stream, *, shared: bool) -> tuple[Tensor, Tensor]:
    """Draw unpaired held-out examples as additional non-members for an attack.

    Args:
        shared: whether a held-out example may be drawn for several clients.

    Returns:
        The position of each drawn example's client, (F,) int64, and the example's position in the held-out set, (F,)
        int64.
    """
    clients, (held_out, _, within) = federation.clients, held_out_examples(federation)
    of_client = torch.arange(len(federation)) if within == "client" else federation.group
    key = held_out.group
    if within == "client":
        assert held_out.client is not None
        key = torch.searchsorted(federation.ids, held_out.client)
    owners, places = clients.owners(), [records.test[:0]]
    kind = owners if within == "client" else federation.groups_of("clients")
    chosen = [owners[:0]]
    unpaired = torch.nonzero(~torch.isin(torch.arange(len(owners)), records.entry)).flatten()
    if not shared:
        free = torch.nonzero(~torch.isin(torch.arange(len(key)), records.test)).flatten()
        for value in key[free].unique().tolist():
            examples, clients_of = free[key[free] == value], owners[unpaired][kind[unpaired] == value]
            order = torch.randperm(len(examples), generator=stream(value).generator())[: len(clients_of)]
            places.append(examples[order])
            chosen.append(clients_of[: len(order)])
        return torch.cat(chosen), torch.cat(places)
    label = clients.y[clients.indices.to(clients.y.device)].cpu()
    other_label = held_out.y.cpu()
    if federation.classes is None:
        label, other_label = torch.zeros(len(owners), dtype=torch.int64), torch.zeros(len(key), dtype=torch.int64)
    strata = _strata(torch.arange(len(key)), key, other_label)
    for (position, c), members in _strata(unpaired, owners, label).items():
        others = strata.get((int(of_client[position]), c), records.test[:0])
        others = others[~torch.isin(others, records.test[owners[records.entry] == position])]
        order = torch.randperm(len(others), generator=stream(position, c).generator())[: len(members)]
        places.append(others[order])
        chosen.append(torch.full((len(order),), position))
    return torch.cat(chosen), torch.cat(places)


def number_of_pairs(federation: Federation, duplicates: Duplicates = "keep") -> int:
    """Return the number of pairs that `pair_records` draws."""
    return len(_draw_pairs(federation, Stream(0), duplicates)[0])


def held_out_examples(
    federation: Federation,
) -> tuple[GroupedExamples, Literal["test", "holdout"], Literal["client", "group"]]:
    """Return the held-out examples for pairs, the name of their data set, and whether pairs are within clients or
    groups.
    """
    holdout, test = federation.holdout, federation.test
    if test.client is not None:
        return test, "test", "client"
    if not federation.own_inputs or not len(holdout.indices):
        return test, "test", "group"
    owner, rows = holdout.owners(), holdout.indices.to(holdout.y.device)
    group = federation.groups_of("holdout")
    return GroupedExamples(gather(holdout.x, rows), holdout.y[rows], group, federation.ids[owner]), "holdout", "client"


def _draw_pairs(federation: Federation, stream: Stream, duplicates: Duplicates) -> tuple[Tensor, Tensor]:
    """Draw `PairedRecords.entry` and `PairedRecords.test`."""
    clients, (held_out, source, within) = federation.clients, held_out_examples(federation)
    owners, label = clients.owners(), clients.y[clients.indices.to(clients.y.device)].cpu()
    group = key = federation.groups_of("clients")
    other_key = held_out.group
    if within == "client":
        assert held_out.client is not None
        key, other_key = federation.ids[owners], held_out.client
        if federation.row_groups:
            count = len(federation.groups)
            key, other_key = key * count + group, other_key * count + held_out.group
    other_label, zero = held_out.y.cpu(), torch.zeros(1, dtype=torch.int64)
    if federation.classes is None:
        label, other_label = zero.expand(len(key)), zero.expand(len(other_key))
    first, second = torch.arange(len(key)), torch.arange(len(other_key))
    if duplicates == "leave-out":
        hashes = ExampleHashes.from_federation(federation)
        repeated = hashes.repeated()
        first = first[torch.from_numpy(~np.isin(hashes.clients, repeated))]
        others = hashes.test if source == "test" else hashes.holdout
        second = second[torch.from_numpy(~np.isin(others, repeated))]
    entries, tests = [first[:0]], [second[:0]]
    strata = _strata(second, other_key, other_label)
    draw = stream("pairs") if within == "group" else stream("pairs", "client")
    for (k, c), members in _strata(first, key, label).items():
        others = strata.get((k, c), second[:0])
        count, at = min(len(members), len(others)), draw(k, c)
        if count:
            entries.append(members[torch.randperm(len(members), generator=at("members").generator())[:count]])
            tests.append(others[torch.randperm(len(others), generator=at("test").generator())[:count]])
    entry, order = torch.cat(entries).sort()
    return entry, torch.cat(tests)[order]


def _strata(places: Tensor, key: Tensor, label: Tensor) -> dict[tuple[int, int], Tensor]:
    """Split ``places`` by ``key`` (a client or group) and ``label``, in order."""
    keys, stratum = torch.stack([key[places], label[places]], dim=1).unique(dim=0, return_inverse=True)
    sizes = torch.bincount(stratum, minlength=len(keys)).tolist()
    parts = places[torch.argsort(stratum, stable=True)].split(sizes)
    return {(k, c): part for (k, c), part in zip(keys.tolist(), parts, strict=True)}


@dataclass(frozen=True, eq=False)
class Canaries:
    """M mislabelled examples, about half of them in training.

    Args:
        x: the inputs, (M, ...).
        y: the wrong labels, (M,) int64.
        true_label: the correct labels, (M,) int64.
        client: the id of each canary's client, (M,) int64.
        record: the position of each canary among the client's original examples, (M,) int64.
        member: whether the canary is in training, with the wrong label, (M,) bool.
    """

    x: Tensor
    y: Tensor
    true_label: Tensor
    client: Tensor
    record: Tensor
    member: Tensor
    __repr__ = one_line

    def __len__(self) -> int:
        return len(self.y)


@settings
class MislabelledCanaries:
    """Canaries: training examples with a wrong label, each left out of training with probability 1/2.

    A canary replaces one of the client's examples, so a client trains on about ``per_client`` / 2 fewer examples. The
    example with the correct label is not in training. Metrics of other attacks count the trained canaries as members.

    Args:
        per_client: the number of canaries per client, drawn from the client's examples; 0 inserts no canaries.
        clients: the number of clients with canaries, or ``all``. Only clients with more than ``per_client`` examples
            get canaries.

    Example:
        >>> import shoal
        >>> digits = ([[float(i)] for i in range(10)], [0, 1] * 5)
        >>> federation = shoal.Federation.from_tensors([digits] * 3, test=digits)
        >>> watched, canaries = shoal.MislabelledCanaries(per_client=4).insert(federation, shoal.Stream(0))
        >>> len(canaries.member), bool((canaries.y != canaries.true_label).all()), watched.clients.sizes.tolist()
        (12, True, [10, 9, 7])
    """

    per_client: Count = 0
    clients: Positive | Literal["all"] = "all"

    def check(self, sizes: Tensor) -> None:
        """Raise `InputError` if too few clients have more than ``per_client`` examples.

        ``sizes`` (N,) int64 are the clients' numbers of examples.
        """
        enough, least = int((sizes > self.per_client).sum()), 1 if self.clients == "all" else self.clients
        require(
            self.per_client == 0 or enough >= least,
            f"at least {least} of {len(sizes)} clients must have more than 'per_client' = {self.per_client} examples "
            f"(got {enough} clients)",
        )

    def insert(self, federation: Federation, stream: Stream) -> tuple[Federation, Canaries]:
        """Insert canaries; return the federation that trains on the member canaries, and all canaries.

        Wrong labels are drawn uniformly. A client's canaries depend only on the stream, the client's id and the
        client's number of examples.

        Raises:
            InputError: too few clients have more than ``per_client`` examples, there is only one class, clients share
                examples, or a client has a schedule.
        """
        shards = federation.clients
        self.check(shards.sizes)
        chosen = self._clients(federation, stream)
        if len(chosen):
            classes = federation.classes or 0
            require(classes >= 2, f"canaries require at least 2 classes (got {classes})")
            require(
                federation.schedule is None,
                "canaries and a property attack are not allowed together; remove one of the two",
            )
            shared = len(shards.indices) - len(shards.indices.unique())
            require(shared == 0, f"canaries require that clients share no examples (got {shared} shared examples)")
        none = torch.empty(0, dtype=torch.int64)
        draws = [(none, none, none, none, none.bool()), *(self._draw(federation, i, stream) for i in chosen)]
        row, y, client, record, member = (torch.cat(parts) for parts in zip(*draws, strict=True))
        canaries = Canaries(gather(shards.x, row), y, shards.y[row], client, record, member)
        if not len(canaries):
            return federation, canaries
        labels = shards.y.clone()
        labels[row] = y
        left_out = torch.isin(shards.indices, row[~member])
        sizes = torch.bincount(shards.owners()[~left_out], minlength=len(shards))
        training = Shards.from_indices(
            shards.x, labels, shards.indices[~left_out], sizes, memory_mapped=shards.memory_mapped
        )
        return replace(federation, clients=training), canaries

    def _clients(self, federation: Federation, stream: Stream) -> list[int]:
        """Draw the positions of the clients with canaries, in order."""
        if self.per_client == 0:
            return []
        able = torch.nonzero(federation.clients.sizes > self.per_client).flatten()
        if self.clients == "all":
            return able.tolist()
        order = stream("clients").seeds(federation.ids[able]).argsort()
        return sorted(able[order[: self.clients]].tolist())

    def _draw(self, federation: Federation, position: int, stream: Stream) -> tuple[Tensor, ...]:
        """Draw a client's canaries (m,): input rows, wrong labels, client id, positions and membership."""
        client, rows = int(federation.ids[position]), federation.clients.indices_of(position)
        order = torch.randperm(len(rows), generator=stream("records", client).generator())
        record = order[: self.per_client].sort().values
        wrong, member, others = [], [], (federation.classes or 0) - 1
        for number, label in zip(record.tolist(), federation.clients.y[rows[record]].tolist(), strict=True):
            draw = stream("canary", client, number).generator()
            member.append(bool(torch.randint(0, 2, (), generator=draw)))
            other = int(torch.randint(0, others, (), generator=draw))
            wrong.append(other + (other >= label))
        return rows[record], torch.tensor(wrong), torch.full_like(record, client), record, torch.tensor(member)
