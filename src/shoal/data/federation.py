"""Clients with data and preferences, and the server's shadow and test sets."""

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
    """A client that trains on one set of examples in every ``period``-th round, and on a second set in other rounds."""

    @property
    def victim(self) -> int:
        """The scheduled client's id."""
        ...

    @property
    def period(self) -> int:
        """The period of the client's schedule, in rounds."""
        ...

    def present(self, number: int) -> bool:
        """Return whether round ``number``, counted from 1, is a multiple of ``period``."""
        ...

    def in_round(self, clients: Shards, ids: Tensor, number: int) -> Shards:
        """Return the shards of ``clients``, whose ids are ``ids`` (N,) int64, for training in round ``number``."""
        ...


@dataclass(frozen=True, eq=False)
class Federation:
    """N clients with data and preferences, and the server's shadow and test examples.

    Args:
        clients: the training examples, one shard per client.
        ids: the distinct client numbers, (N,) int64, which determine each client's random stream.
        group: the true group of each client, (N,) int64, hidden from algorithms; with ``row_groups`` the client's
            largest group.
        groups: the names of all groups, including groups without clients.
        preferences: the clients' thresholds and betas.
        test: the test examples of every group.
        shadow: the server's own labelled examples, for example for shadow models.
        holdout: N shards of examples that clients do not train on; shards may be empty.
        classes: the number of classes, C, or None for a regression.
        schedule: the client whose training examples depend on the round, or None.
        names: the N clients' names in results, or None if clients only have numbers.
        origins: a function per set (``clients``, ``holdout``, ``test``) that returns an example's name for its row.
        own_inputs: whether clients of the same group may have different input distributions.
        row_groups: the group of each input row, for the keys ``clients`` and ``holdout``; empty if no client has
            examples of several groups.

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
        """A plural noun for the examples, such as images, texts or rows."""
        x = self.clients.x
        if x.dim() == 2:
            return "rows" if x.is_floating_point() else "texts"
        return "images" if x.dim() == 4 else "examples"

    @property
    def group_fractions(self) -> Tensor:
        """The fraction of clients in each group, (G,) float64."""
        return self.group_shares.sum(dim=0) / max(1, len(self))

    @property
    def group_shares(self) -> Tensor:
        """The fraction of each client's training examples in each group, (N, G) float64."""
        if not self.row_groups:
            return torch.eye(len(self.groups), dtype=torch.float64)[self.group]
        counts = group_counts(self.clients.owners(), self.groups_of("clients"), (len(self), len(self.groups)))
        return counts / counts.sum(dim=1, keepdim=True).clamp(min=1)

    def groups_of(self, part: Literal["clients", "holdout"]) -> Tensor:
        """Return the group of each training or hold-out example, (T,) int64."""
        shards: Shards = getattr(self, part)
        return self.row_groups[part][shards.indices] if self.row_groups else self.group[shards.owners()]

    def with_group(self, g: int) -> Tensor:
        """Return a mask (N,) of the clients that have examples of group ``g``."""
        return self.group_shares[:, g] > 0

    @property
    def shares(self) -> dict[str, float]:
        """The fraction of clients in each group, by the group's name."""
        return dict(zip(self.groups, self.group_fractions.tolist(), strict=True))

    @property
    def groups_with_clients(self) -> list[int]:
        """The sorted indices of the groups that have clients."""
        return torch.nonzero(self.group_fractions > 0).flatten().tolist()

    def cohort_size(self, participation: float) -> int:
        """Return ``participation * N``, rounded, as the clients per round; at least 1 if ``participation`` is above 0.

        Source: McMahan et al. 2017, algorithm 1: m = max(C K, 1).
        """
        return min(len(self), max(round(participation * len(self)), int(participation > 0)))

    def clients_in_round(self, number: int) -> Shards:
        """Return the N shards of training examples in round ``number``, counted from 1."""
        return self.clients if self.schedule is None else self.schedule.in_round(self.clients, self.ids, number)

    def positions(self, clients: Sequence[str | int]) -> Tensor:
        """Return the positions (n,) int64 of clients, given by name or number; a string is first looked up as a name.

        Raises:
            InputError: a client is unknown, or an integer is one client's number and another client's name.
        """
        by_name = {name: i for i, name in enumerate(self.names or ())}
        by_number = {str(client): i for i, client in enumerate(self.ids.tolist())}
        places = list[int]()
        for client in clients:
            key = str(client)
            hint = suggest(key, self.names or by_number)
            require(key in by_name or key in by_number, f"client '{client}' is not in the federation; {hint}")
            place = by_name.get(key, by_number.get(key, 0))
            clear = isinstance(client, str) or by_number.get(key, place) == place
            require(
                clear,
                f"client {key} is ambiguous, because client {self.ids[place]} is named '{key}'; give names as strings",
            )
            places.append(place)
        return torch.tensor(places, dtype=torch.int64)

    def take(self, clients: Tensor) -> "Federation":
        """Select the clients at positions (n,) int64, in the given order, without copying examples."""
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
        """Remove the test examples of all clients except those at positions (n,) int64.

        Test examples without a client stay. A group that would lose all its test examples keeps them.
        """
        test = self.test
        if test.client is None:
            return self
        counted = (test.client < 0) | torch.isin(test.client, self.ids[clients])
        counted |= ~torch.isin(test.group, test.group[counted])
        return replace(self, test=test.take(torch.nonzero(counted).flatten().to(test.y.device)))

    def map_inputs(self, function: Callable[[Tensor], Tensor]) -> "Federation":
        """Apply ``function`` once to each tensor of inputs (M, ...)."""
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
        """Create a federation from your own tensors, numpy arrays, lists or PyTorch data sets.

        Args:
            clients: the training examples: per client a pair (x, y), a PyTorch data set of pairs or a `DataLoader`; or
                `ClientArrays` for all clients. Inputs x are numbers (m, ...); integers are word numbers. Labels y are
                integers (m,) from 0, or one-hot rows. Regression targets are (m,) or (m, d), stored as (m, d) float32.
            test: the test examples, as `Examples(x, y, groups)` if there are several groups.
            shadow: the server's own labelled examples, required for shadow models.
            groups: the name of each client's group, or None for one group.
            holdout: examples that each client does not train on, in the form of ``clients``.
            threshold: the accepted membership-inference accuracy in [0.5, 1], one number or (N,).
            beta: the weight of risk in [0, 1], one number or (N,).
            classes: the number of classes, or None for the largest label + 1; must be None in a regression.
            task: "classification" or "regression".

        Raises:
            InputError: an example cannot be used, a client has no examples, or a group has no test examples.
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
        """Create a federation from a pandas frame or a Hugging Face `datasets.Dataset`, with one example per row.

        Clients are numbered by first appearance, and classes in sorted order. Inputs are standardised by the training
        rows. Possible mistakes in the table are logged as warnings.

        Args:
            table: the clients' examples, or a flwr-datasets partitioner or `FederatedDataset`. Each partition becomes a
                client; its number is stored in the new column ``columns.client``.
            columns: the roles of the columns.
            test: the test examples, a table with the same columns as ``table``. A test row that names a client of
                ``table`` belongs to this client.
            shadow: the server's examples, a table with the same columns as ``table``.
            threshold, beta, classes, task: as in `from_tensors`.
            test_fraction: the fraction of each client's rows to hold out as test examples, instead of ``test``. With
                equal seeds, `data.test_fraction` in a configuration holds out the same rows.
            seed: the random seed for the held-out rows.

        Raises:
            InputError: a column is missing, a row has no client, a test label occurs in no training row, or an example
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
