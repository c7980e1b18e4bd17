"""A federation: the clients with their data and preferences, and the server's shadow and test sets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from shoal.core.errors import require, suggest
from shoal.core.formats import shorten
from shoal.data.names import Origins, group_counts
from shoal.data.preferences import Preferences
from shoal.data.shards import GroupedExamples, Shards
from shoal.data.user.arrays import Arrays, ArrayTable, Columns, Examples, Task
from shoal.data.user.from_tensors import ClientArrays, Limits, fields_from_tensors
from shoal.data.user.tables import fields_from_table


class Schedule(Protocol):
    """A client that trains on some examples in every ``period``-th round, and on its other examples in all other
    rounds.

    `shoal.PropertySchedule` is one.
    """

    @property
    def victim(self) -> int:
        """The client's id."""
        ...

    @property
    def period(self) -> int:
        """Rounds from one such round to the next."""
        ...

    def present(self, number: int) -> bool:
        """Whether round ``number``, counted from 1, is a multiple of ``period``."""
        ...

    def in_round(self, clients: Shards, ids: Tensor, number: int) -> Shards:
        """Select the training examples of a round from ``clients``, all their examples; ids (N,) int64."""
        ...


@dataclass(frozen=True, eq=False)
class Federation:
    """N clients with their data and preferences, and the server's shadow and test examples.

    Args:
        clients: training examples, one shard per client.
        ids: (N,) int64, distinct numbers of the clients, which name their random streams.
        group: (N,) int64, each client's true group, hidden from algorithms; with ``row_groups`` its largest group.
        groups: names of the groups, also of those without clients.
        preferences: thresholds and betas.
        test: held-out examples of every group, for measuring.
        shadow: the server's own examples, for its red team.
        holdout: N shards that clients keep out of training, perhaps empty.
        classes: C, the number of classes; None: a regression.
        schedule: a client that trains on some examples per round; None: every client trains on all its examples.
        names: the user's names of the N clients, for results; None: only numbers.
        origins: the user's names of examples, by their row in the inputs of ``clients``, ``holdout`` and ``test``.
        own_inputs: whether inputs may differ between clients of a group, because they are not partitioned at random.
        row_groups: groups of examples instead of clients, such as patients of one sex: the group of each row in the
            inputs of ``clients`` and ``holdout``, by these names; empty: examples have their client's group.

    Example:
        >>> import shoal
        >>> north, south = ([[0.0], [1.0]], [0, 1]), ([[2.0]], [1])
        >>> test = shoal.Examples([[0.5], [2.5]], [0, 1], ["north", "south"])
        >>> groups = ["north", "north", "south"]
        >>> federation = shoal.Federation.from_tensors([north, north, south], groups=groups, test=test)
        >>> len(federation), federation.clients.sizes.tolist(), federation.group_fractions.round(decimals=2).tolist()
        (3, [2, 2, 1], [0.67, 0.33])
    """

    clients: Shards
    ids: Tensor
    group: Tensor
    groups: tuple[str, ...]
    preferences: Preferences
    test: GroupedExamples
    shadow: GroupedExamples
    holdout: Shards
    classes: int | None
    schedule: Schedule | None = None
    names: tuple[str, ...] | None = None
    # Where examples come from is not part of their content, which a fingerprint compares.
    origins: Origins = field(default_factory=dict, compare=False)
    own_inputs: bool = field(default=False, compare=False)
    row_groups: Mapping[str, Tensor] = field(default_factory=dict, compare=False)  # changes no model either

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def kind(self) -> str:
        """The kind of its examples by their shape (images, texts, rows of a table, or just examples)."""
        x = self.clients.x
        if x.dim() == 2:
            return "rows" if x.is_floating_point() else "texts"
        return "images" if x.dim() == 4 else "examples"

    @property
    def group_fractions(self) -> Tensor:
        """(G,) float64, each group's fraction of the clients."""
        return self.group_shares.sum(dim=0) / max(1, len(self))

    @property
    def group_shares(self) -> Tensor:
        """The fraction of each client in each group, (N, G) float64; with row groups by its training examples."""
        if not self.row_groups:
            return torch.eye(len(self.groups), dtype=torch.float64)[self.group]
        counts = group_counts(self.clients.owners(), self.groups_of("clients"), (len(self), len(self.groups)))
        return counts / counts.sum(dim=1, keepdim=True).clamp(min=1)

    def groups_of(self, part: Literal["clients", "holdout"]) -> Tensor:
        """Return the group (T,) int64 of each training or hold-out example."""
        shards: Shards = getattr(self, part)
        return self.row_groups[part][shards.indices] if self.row_groups else self.group[shards.owners()]

    def with_group(self, g: int) -> Tensor:
        """Return a mask (N,) of the clients of group ``g``, or with examples of it."""
        return self.group_shares[:, g] > 0

    @property
    def shares(self) -> dict[str, float]:
        """Each group's fraction of the clients, by name."""
        return dict(zip(self.groups, self.group_fractions.tolist(), strict=True))

    @property
    def groups_with_clients(self) -> list[int]:
        """Indices of the groups that have clients, in order; the others have test examples only."""
        return torch.nonzero(self.group_fractions > 0).flatten().tolist()

    def cohort_size(self, participation: float) -> int:
        """Return the number of clients per round: ``participation`` of N, rounded, and at least 1 unless it is 0.

        Source: McMahan et al. 2017, algorithm 1: m = max(C K, 1).
        """
        return min(len(self), max(round(participation * len(self)), int(participation > 0)))

    def clients_in_round(self, number: int) -> Shards:
        """Return the N shards of training examples in round ``number``, counted from 1."""
        return self.clients if self.schedule is None else self.schedule.in_round(self.clients, self.ids, number)

    def positions(self, clients: Sequence[str | int]) -> Tensor:
        """Return the positions (n,) int64 of clients by their names or numbers; a text is a name before a number.

        Raises:
            InputError: an unknown client, or an integer that is the number of one client and the name of another.
        """
        by_name = {name: i for i, name in enumerate(self.names or ())}
        by_number = {str(client): i for i, client in enumerate(self.ids.tolist())}
        places = list[int]()
        for client in clients:
            key = str(client)
            hint = suggest(key, self.names or by_number)
            require(key in by_name or key in by_number, f"client '{client}' is not in the federation; {hint}")
            place = by_name.get(key, by_number.get(key, 0))
            unclear = f"{key} is the name of client {self.ids[place]} and the number of another"
            clear = isinstance(client, str) or by_number.get(key, place) == place
            require(clear, f"{unclear}; write names in quotes, such as '{key}'")
            places.append(place)
        return torch.tensor(places, dtype=torch.int64)

    def take(self, clients: Tensor) -> "Federation":
        """Select the clients at positions (n,) int64, in that order; examples are shared."""
        return replace(
            self,
            clients=self.clients.take(clients),
            holdout=self.holdout.take(clients),
            ids=self.ids[clients],
            group=self.group[clients],
            preferences=self.preferences.take(clients),
            names=None if self.names is None else tuple(self.names[i] for i in clients.tolist()),
        )

    def restrict_test(self, clients: Tensor) -> "Federation":
        """Leave out the test examples of clients that are not at the positions (n,) int64.

        Examples without a client stay, and the examples of a group that would have none left.
        """
        test = self.test
        if test.client is None:
            return self
        counted = (test.client < 0) | torch.isin(test.client, self.ids[clients])
        counted |= ~torch.isin(test.group, test.group[counted])
        return replace(self, test=test.take(torch.nonzero(counted).flatten().to(test.y.device)))

    def map_inputs(self, function: Callable[[Tensor], Tensor]) -> "Federation":
        """Replace all inputs (M, ...) by ``function`` of them, with one call per tensor."""
        sets = {name: getattr(self, name) for name in ("clients", "holdout", "test", "shadow")}
        inputs = {id(examples.x): examples.x for examples in sets.values()}
        mapped = {key: function(x) for key, x in inputs.items()}
        moved = {name: replace(examples, x=mapped[id(examples.x)]) for name, examples in sets.items()}
        return replace(
            self, **moved | {name: replace(moved[name], memory_mapped=False) for name in ("clients", "holdout")}
        )

    def __repr__(self) -> str:
        sizes = torch.bincount(self.group, minlength=len(self.groups)).tolist()
        groups = ", ".join(f"{name} {size}" for name, size in zip(self.groups, sizes, strict=True))
        shape = tuple(self.clients.x.shape[1:])
        trained, held_out = int(self.clients.sizes.sum()), int(self.holdout.sizes.sum())
        labels = f"{self.classes} classes"
        if self.classes is None:
            labels = f"regression of {self.clients.y.shape[1]} number{'s' if self.clients.y.shape[1] > 1 else ''}"
        return shorten(
            f"Federation({len(self)} clients ({shorten(groups, 60)}), {trained} training examples of shape {shape}, "
            f"{labels}; {len(self.test)} test, {len(self.shadow)} shadow, {held_out} held-out examples)"
        )

    @staticmethod
    def from_tensors(
        clients: Sequence[Arrays | Dataset] | ClientArrays,
        *,
        test: Arrays | Examples | Dataset,
        shadow: Arrays | Examples | Dataset | None = None,
        groups: Sequence[str] | None = None,
        holdout: Sequence[Arrays | Dataset] | ClientArrays | None = None,
        threshold: Limits = 0.65,
        beta: Limits = 0.5,
        classes: int | None = None,
        task: Task = "classification",
    ) -> "Federation":
        """A federation of your own examples: tensors, numpy arrays, lists, or data sets of PyTorch.

        Args:
            clients: (x, y) of each client, a `torch.utils.data.Dataset` of such pairs, or a `DataLoader` whose batches
                are pairs or dictionaries with ``label``. x: numbers (m, ...), words of texts as integers. y: (m,)
                integers from 0, of any type; one-hot rows too. In a regression y: (m,) or (m, d) numbers, kept as
                (m, d) float32, so that losses and metrics get labels (B, d). Or `ClientArrays`: all clients' examples
                in two arrays, which may be memory-mapped.
            test: held-out examples; with several groups `Examples(x, y, groups)`, which name the group of each, and
                perhaps the client.
            shadow: the server's examples for its red team; None: no red team that needs shadow models.
            groups: name of each client's group; None: one group.
            holdout: (x, y) of each client, kept out of its training, or `ClientArrays`.
            threshold: membership-inference accuracy tolerated, in [0.5, 1]; one number or (N,).
            beta: weight of risk in [0, 1]; one number or (N,).
            classes: number of classes; None: the largest label + 1. A regression has none.
            task: "classification" or "regression".

        Raises:
            InputError: examples that cannot be used, a client without examples, or a group without test examples.
        """
        sets = {"test": test, "shadow": shadow, "groups": groups, "holdout": holdout}
        return Federation(**fields_from_tensors(clients, **sets, limits=(threshold, beta), classes=classes, task=task))

    @staticmethod
    def from_table(
        table: ArrayTable,
        columns: Columns,
        *,
        test: ArrayTable | None = None,
        shadow: ArrayTable | None = None,
        threshold: Limits = 0.65,
        beta: Limits = 0.5,
        classes: int | None = None,
        task: Task = "classification",
        test_fraction: float | None = None,
        seed: int = 0,
    ) -> "Federation":
        """A federation of tables: pandas frames, or Hugging Face `datasets.Dataset`, one row per example.

        Args:
            table: the clients' examples; or a partitioner of flwr-datasets, or its `FederatedDataset`, whose partitions
                are the clients, by their numbers; ``columns.client`` then names a column that it has not. Clients are
                numbered in the order of first appearance and keep their names. As in the source ``table`` of a
                configuration, classes are numbered in sorted order, inputs standardised by these rows alone, and
                possible mistakes are warnings in the log.
            columns: the columns of the client, the label, the group and the inputs.
            test: held-out examples, a table with the same columns. A row belongs to its client where ``table`` has
                rows of that client.
            shadow: the server's examples, a table with the same columns; None: none.
            threshold, beta, classes, task: the arguments of `from_tensors`.
            test_fraction: the fraction of each client's rows to hold out instead of ``test``, drawn by ``seed``
                as `data.test_fraction` of a configuration with that seed does.
            seed: the seed that draws the rows to hold out.

        Raises:
            InputError: a column that is missing, a row without a client, a label that no client has, or examples that
                cannot be used.

        >>> import pandas as pd
        >>> table = pd.DataFrame({"who": ["a", "a", "b"], "age": [30, 40, 50], "ill": [0, 1, 1]})
        >>> federation = Federation.from_table(table, Columns(client="who", label="ill"), test=table)
        >>> federation.names, federation.clients.sizes
        (('a', 'b'), tensor([2, 1]))
        """
        sets = {"test": test, "shadow": shadow, "split": None if test_fraction is None else (test_fraction, seed)}
        return Federation(
            **fields_from_table(table, columns, **sets, limits=(threshold, beta), classes=classes, task=task)
        )
