"""A federation: the clients with their data and preferences, and the server's shadow and test sets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor
from torch.utils.data import Dataset

from shoal.core.errors import InputError, described, nearest, quoted, require
from shoal.core.representation import one_line, shortened
from shoal.data.memory_format import gather
from shoal.data.own_data import (
    Arrays,
    Columns,
    Examples,
    Table,
    Task,
    group_names,
    require_finite,
    rows_of,
    tensors_of,
    tensors_of_rows,
)
from shoal.data.property_schedule import PropertySchedule
from shoal.data.shards import Shards


@dataclass(frozen=True, eq=False)
class GroupedExamples:
    """M labelled examples, and the index of the group whose distribution each one follows.

    Shapes: x (M, ...), y (M,) int64 (of a regression (M, d) float32), group (M,) int64.
    """

    x: Tensor
    y: Tensor
    group: Tensor
    __repr__ = one_line

    def __len__(self) -> int:
        return len(self.y)

    def of_group(self, group: int) -> "GroupedExamples":
        """The examples of one group, in order."""
        return self.take(torch.nonzero(self.group == group).squeeze(1))

    def take(self, indices: Tensor) -> "GroupedExamples":
        """The examples at ``indices`` (m,) int64."""
        return GroupedExamples(gather(self.x, indices), self.y[indices], self.group[indices.cpu()])


@dataclass(frozen=True, eq=False)
class Preferences:
    """How N clients weigh privacy against accuracy.

    Args:
        threshold: (N,), the membership-inference accuracy that each client tolerates.
        beta: (N,) in [0, 1], the weight of risk in its choice of a model.
    """

    threshold: Tensor
    beta: Tensor
    __repr__ = one_line

    @property
    def alpha(self) -> Tensor:
        """(N,), the weight of loss, 1 - beta."""
        return 1 - self.beta


@dataclass(frozen=True, eq=False)
class Federation:
    """N clients with their data and preferences, and the server's shadow and test examples.

    Args:
        clients: training examples, one shard per client.
        ids: (N,) int64, distinct names of the clients, by which their random streams are named.
        group: (N,) int64, each client's true group, which no algorithm sees.
        groups: names of the groups, also of those without clients.
        preferences: thresholds and betas.
        test: held-out examples of every group, for measuring.
        shadow: the server's own examples, for its red team.
        holdout: N shards that clients keep out of training (empty shards where there are none).
        classes: C, the number of classes; None: labels are the targets of a regression, not classes.
        property_schedule: which examples have a property and when the victim trains on them; None without a property.
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
    property_schedule: PropertySchedule | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def group_fractions(self) -> Tensor:
        """(G,) float64, each group's fraction of the clients."""
        return torch.bincount(self.group, minlength=len(self.groups)).double() / max(1, len(self))

    @property
    def groups_with_clients(self) -> list[int]:
        """Indices of the groups that have clients, in order; the others have test examples only."""
        return self.group.unique().tolist()

    def clients_in_round(self, number: int) -> Shards:
        """The N shards that the clients train on in round ``number``, counted from 1: all their examples, except for
        the victim of a property attack.
        """
        if self.property_schedule is None:
            return self.clients
        return self.property_schedule.in_round(self.clients, self.ids, number)

    def permuted(self, order: Tensor) -> "Federation":
        """The same federation with its clients in another order; order (N,) int64 is a permutation."""
        return replace(
            self,
            clients=self.clients.take(order),
            holdout=self.holdout.take(order),
            ids=self.ids[order],
            group=self.group[order],
            preferences=Preferences(self.preferences.threshold[order], self.preferences.beta[order]),
        )

    def __repr__(self) -> str:
        sizes = torch.bincount(self.group, minlength=len(self.groups)).tolist()
        groups = ", ".join(f"{name} {size}" for name, size in zip(self.groups, sizes, strict=True))
        shape = tuple(self.clients.x.shape[1:])
        own, held = int(self.clients.sizes.sum()), int(self.holdout.sizes.sum())
        labels = f"{self.classes} classes"
        if self.classes is None:
            labels = f"regression of {self.clients.y.shape[1]} number{'s' if self.clients.y.shape[1] > 1 else ''}"
        return shortened(
            f"Federation({len(self)} clients ({shortened(groups, 60)}), {own} training examples of shape {shape}, "
            f"{labels}; {len(self.test)} test, {len(self.shadow)} shadow, {held} held-out examples)"
        )

    @staticmethod
    def from_tensors(
        clients: Sequence[Arrays | Dataset],
        *,
        test: Arrays | Examples | Dataset,
        shadow: Arrays | Examples | Dataset | None = None,
        groups: Sequence[str] | None = None,
        holdout: Sequence[Arrays | Dataset] | None = None,
        threshold: Tensor | Sequence[float] | float = 0.65,
        beta: Tensor | Sequence[float] | float = 0.5,
        classes: int | None = None,
        task: Task = "classification",
    ) -> "Federation":
        """A federation of your own examples: tensors, numpy arrays, lists, or data sets of PyTorch.

        Args:
            clients: (x, y) of each client, or a `torch.utils.data.Dataset` of such pairs. x: numbers (m, ...), words of
                texts as whole numbers. y: (m,) whole numbers from 0, of any type; one-hot rows too. In a regression y:
                (m,) or (m, d) numbers, kept as (m, d) float32, so that losses and metrics get labels (B, d).
            test: held-out examples; with several groups `Examples(x, y, groups)`, which name the group of each.
            shadow: the server's examples for its red team; None: no red team that needs shadow models.
            groups: name of each client's group; None: one group.
            holdout: (x, y) of each client, kept out of its training.
            threshold: membership-inference accuracy tolerated, in [0.5, 1]; one number or (N,).
            beta: weight of risk in [0, 1]; one number or (N,).
            classes: number of classes; None: the largest label + 1. A regression has none.
            task: "classification" or "regression". Labels alone do not say which: prices may be whole numbers.

        Raises:
            InputError: examples that cannot be used, a client without examples, or a group without test examples.

        >>> Federation.from_tensors([([[0.1], [0.2]], [0, 1])] * 3, test=([[0.3]], [1]))
        Federation(3 clients (all 3), 6 training examples of shape (1,), 2 classes; 1 test, 0 shadow, 0 held-out \
examples)
        """
        require(task in get_args(Task), f"'task' must be 'classification' or 'regression'; got {task!r}")
        regression = task == "regression"
        require(classes is None or not regression, f"a regression has no classes; got classes={classes!r}")
        sequence = isinstance(clients, Sequence) and not isinstance(clients, str)
        require(sequence, f"'clients' must be a list of pairs (x, y), one per client; got {described(clients)}")
        require(len(clients) > 0, "a federation needs at least one client")
        own = [tensors_of(f"client {i}", each, task) for i, each in enumerate(clients)]
        first, labels = own[0]
        for i, (x, y) in enumerate(own):
            require(len(y) > 0, f"client {i} has no examples")
            _require_shape(f"client {i}", x, first)
            _require_shape(f"client {i}", y, labels, "labels")
        if not regression:
            classes = max(int(y.max()) for _, y in own) + 1 if classes is None else classes
            whole = isinstance(classes, int) and classes >= 1
            require(whole, f"'classes' must be a whole number, at least 1; got {classes!r}")
        held = [tensors_of(f"the holdout of client {i}", each, task) for i, each in enumerate(holdout or ())]
        require(
            holdout is None or len(held) == len(own),
            f"'holdout' must have one (x, y) for each of {len(own)} clients; got {len(held)}",
        )
        held = held or [(first[:0], labels[:0])] * len(own)
        for i, (x, y) in enumerate(held):
            _require_shape(f"the holdout of client {i}", x, first)
            _require_shape(f"the holdout of client {i}", y, labels, "labels")
        group_of = ["all"] * len(own) if groups is None else group_names("'groups'", groups, len(own))
        names = tuple(dict.fromkeys(group_of))
        require(
            isinstance(test, Examples) or len(names) == 1,
            f"with {len(names)} groups, 'test' must be Examples(x, y, groups), which name the group of each example",
        )
        tested = _grouped("the test set", test, names, own[0], task)
        require(len(tested) > 0, "the test set has no examples; accuracy and non-members come from it")
        without = [name for g, name in enumerate(names) if not bool((tested.group == g).any())]
        require(not without, f"the test set has no examples of the group {quoted(without)}; each group needs some")
        nothing = GroupedExamples(first[:0], labels[:0], torch.empty(0, dtype=torch.int64))
        shards, kept = Shards.from_pairs(own), Shards.from_pairs(held)
        federation = Federation(
            clients=shards,
            ids=torch.arange(len(own)),
            group=torch.tensor([names.index(name) for name in group_of]),
            groups=names,
            preferences=Preferences(
                _per_client(threshold, len(own), "threshold", 0.5), _per_client(beta, len(own), "beta", 0.0)
            ),
            test=tested,
            shadow=nothing if shadow is None else _grouped("the shadow set", shadow, names, own[0], task),
            holdout=kept,
            classes=classes,
        )
        _check(federation)
        return federation

    @staticmethod
    def from_table(
        table: Table,
        columns: Columns,
        *,
        test: Table,
        shadow: Table | None = None,
        threshold: Tensor | Sequence[float] | float = 0.65,
        beta: Tensor | Sequence[float] | float = 0.5,
        classes: int | None = None,
        task: Task = "classification",
    ) -> "Federation":
        """A federation of tables: pandas frames, or Hugging Face `datasets.Dataset`, one row per example.

        Args:
            table: the clients' examples; clients are numbered in the order of first appearance.
            columns: which column names the client, the label, the group, and which are inputs.
            test: held-out examples, a table with the same columns (that of the clients may hold anything).
            shadow: the server's examples, such a table; None: none.
            threshold, beta, classes, task: as in `from_tensors`.

        Raises:
            InputError: a column that is missing, a client in several groups, or examples that cannot be used.

        >>> import pandas as pd
        >>> table = pd.DataFrame({"who": ["a", "a", "b"], "age": [30, 40, 50], "ill": [0, 1, 1]})
        >>> federation = Federation.from_table(table, Columns(client="who", label="ill"), test=table)
        >>> federation.clients.sizes
        tensor([2, 1])
        """
        rows = rows_of("the table", table, columns)
        clients, groups = [], []
        for name, own in rows.groupby(columns.client, sort=False):
            clients.append(tensors_of_rows(f"client {name}", own, columns, task))
            if columns.group is not None:
                (group, *more) = own[columns.group].drop_duplicates().tolist()
                require(not more, f"client {name} is in several groups: {quoted(map(str, (group, *more)))}")
                groups.append(group)

        def others(name: str, given: Table) -> Examples | Arrays:
            given = rows_of(name, given, columns)
            x, y = tensors_of_rows(name, given, columns, task)
            return (x, y) if columns.group is None else Examples(x, y, given[columns.group].tolist())

        return Federation.from_tensors(
            clients,
            test=others("the test table", test),
            shadow=None if shadow is None else others("the shadow table", shadow),
            groups=groups if columns.group is not None else None,
            threshold=threshold,
            beta=beta,
            classes=classes,
            task=task,
        )


def _require_shape(name: str, given: Tensor, like: Tensor, kind: str = "examples") -> None:
    shape, expected = tuple(given.shape[1:]), tuple(like.shape[1:])
    same = shape == expected or len(given) == 0
    require(same, f"{name} has {kind} of shape {shape}; client 0's have shape {expected}")


def _grouped(
    name: str, given: Arrays | Examples | Dataset, names: Sequence[str], like: tuple[Tensor, Tensor], task: Task
) -> GroupedExamples:
    """A test or shadow set with the groups by index; without names, all of the first group."""
    x, y = tensors_of(name, (given.x, given.y) if isinstance(given, Examples) else given, task)
    _require_shape(name, x, like[0])
    _require_shape(name, y, like[1], "labels")
    if not isinstance(given, Examples):
        return GroupedExamples(x, y, torch.zeros(len(y), dtype=torch.int64))
    of_each = group_names(f"the groups of {name}", given.groups, len(y))
    for each in dict.fromkeys(of_each):
        require(
            each in names, f"{name} has examples of the group '{each}', which no client is of; {nearest(each, names)}"
        )
    index = {each: g for g, each in enumerate(names)}
    return GroupedExamples(x, y, torch.tensor([index[each] for each in of_each], dtype=torch.int64))


def _check(federation: Federation) -> None:
    """Raise unless all inputs are finite, and all labels in ``range(classes)`` or, in a regression, finite."""
    sets = [("client", federation.clients), ("the holdout of client", federation.holdout)]
    for name, shards in sets:
        outside = _outside(shards.y, federation.classes)
        finite = not shards.x.is_floating_point() or bool(torch.isfinite(shards.x.sum()))
        if finite and not bool(outside.any()):
            continue
        for i in range(len(shards)):
            own = shards.owned(i)
            require_finite(f"{name} {i}", shards.x[own])
            _require_labels(f"{name} {i}", shards.y[own], federation.classes)
    for name, examples in (("the test set", federation.test), ("the shadow set", federation.shadow)):
        require_finite(name, examples.x)
        _require_labels(name, examples.y, federation.classes)


def _outside(y: Tensor, classes: int | None) -> Tensor:
    """Whether labels (m,) or (m, d) are none, elementwise."""
    return ~torch.isfinite(y) if classes is None else (y < 0) | (y >= classes)


def _require_labels(name: str, y: Tensor, classes: int | None) -> None:
    if classes is None:
        require_finite(name, y, "labels")
        return
    wrong = y[_outside(y, classes)]
    require(
        len(wrong) == 0,
        f"{name} has the label {wrong[:1].sum()}; labels must be in 0..{classes - 1} (classes)",
    )


def _per_client(value: Tensor | Sequence[float] | float, count: int, name: str, low: float) -> Tensor:
    """One number, or one per client, as (count,) float64 in [low, 1]."""
    try:
        given = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"'{name}' must be one number or one for each of {count} clients; got {value!r}") from error
    require(
        given.dim() == 0 or given.shape == (count,),
        f"'{name}' must be one number or one for each of {count} clients; got shape {tuple(given.shape)}",
    )
    values = given.expand(count).clone()
    within = bool(((values >= low) & (values <= 1)).all())
    require(within, f"'{name}' must be in [{low}, 1]; got {values.min():g} to {values.max():g}")
    return values
