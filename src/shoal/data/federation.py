"""A federation: the clients with their data and preferences, and the server's shadow and test sets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.data.memory_format import gather
from shoal.data.property_schedule import PropertySchedule
from shoal.data.shards import Shards


@dataclass(frozen=True, eq=False)
class Examples:
    """M labelled examples, and the group whose distribution each one follows.

    Shapes: x (M, ...), y (M,) int64, group (M,) int64.
    """

    x: Tensor
    y: Tensor
    group: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def of_group(self, group: int) -> "Examples":
        """The examples of one group, in order."""
        return self.take(torch.nonzero(self.group == group).squeeze(1))

    def take(self, indices: Tensor) -> "Examples":
        """The examples at ``indices`` (m,) int64."""
        return Examples(gather(self.x, indices), self.y[indices], self.group[indices.cpu()])


@dataclass(frozen=True, eq=False)
class Preferences:
    """How N clients weigh privacy against accuracy.

    Args:
        threshold: (N,), the membership-inference accuracy that each client tolerates.
        beta: (N,) in [0, 1], the weight of risk in its choice of a model.
    """

    threshold: Tensor
    beta: Tensor

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
        classes: C, the number of classes.
        property_schedule: which examples have a property and when the victim trains on them; None without a property.
    """

    clients: Shards
    ids: Tensor
    group: Tensor
    groups: tuple[str, ...]
    preferences: Preferences
    test: Examples
    shadow: Examples
    holdout: Shards
    classes: int
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

    @staticmethod
    def from_tensors(
        clients: Sequence[tuple[Tensor, Tensor]],
        *,
        test: tuple[Tensor, Tensor] | Examples,
        shadow: tuple[Tensor, Tensor] | Examples | None = None,
        groups: Sequence[str] | None = None,
        holdout: Sequence[tuple[Tensor, Tensor]] | None = None,
        threshold: Tensor | float = 0.65,
        beta: Tensor | float = 0.5,
        classes: int | None = None,
    ) -> "Federation":
        """A federation of your own tensors.

        Args:
            clients: (x, y) of each client: x (m, ...) float, y (m,) int64.
            test: held-out examples; a plain (x, y) is taken to be of the first group.
            shadow: the server's examples for its red team; None: no red team that needs shadow models.
            groups: name of each client's group; None: one group.
            holdout: (x, y) of each client, kept out of its training.
            threshold: membership-inference accuracy tolerated, in [0.5, 1]; one number or (N,).
            beta: weight of risk in [0, 1]; one number or (N,).
            classes: number of classes; None: the largest label + 1.

        Raises:
            InputError: no client, a client without examples, or tensors of different shapes or lengths.

        >>> x, y = torch.rand(4, 2), torch.tensor([0, 1, 0, 1])
        >>> len(Federation.from_tensors([(x, y), (x, y)], test=(x, y)))
        2
        """
        require(len(clients) > 0, "a federation needs at least one client")
        if classes is None:
            classes = max((int(y.max()) for _, y in clients if len(y)), default=0) + 1
        first = clients[0][0]
        nothing = first[:0], clients[0][1][:0]
        for i, (x, y) in enumerate(clients):
            require(len(y) > 0, f"client {i} has no examples")
            _check_examples(f"client {i}", x, y, first, classes)
        holdout = list(holdout) if holdout is not None else [nothing] * len(clients)
        require(
            len(holdout) == len(clients),
            f"'holdout' must have one (x, y) for each of {len(clients)} clients; got {len(holdout)}",
        )
        for i, (x, y) in enumerate(holdout):
            _check_examples(f"the holdout of client {i}", x, y, first, classes)
        group_of = list(groups) if groups is not None else ["all"] * len(clients)
        require(
            len(group_of) == len(clients),
            f"'groups' must name the group of each of {len(clients)} clients; got {len(group_of)}",
        )
        names = tuple(dict.fromkeys(group_of))
        require(
            isinstance(test, Examples) or len(names) == 1,
            f"with {len(names)} groups, 'test' must be Examples(x, y, group), which say which group each is of",
        )
        test, shadow = _as_examples(test), _as_examples(nothing if shadow is None else shadow)
        for name, each in (("test", test), ("shadow", shadow)):
            _check_examples(f"the {name} set", each.x, each.y, first, classes)
            last = int(each.group.max()) if len(each) else 0
            require(last < len(names), f"the {name} set has examples of group {last}; there are {len(names)} groups")
        return Federation(
            clients=Shards.from_pairs(clients),
            ids=torch.arange(len(clients)),
            group=torch.tensor([names.index(name) for name in group_of]),
            groups=names,
            preferences=Preferences(
                _per_client(threshold, len(clients), "threshold", 0.5), _per_client(beta, len(clients), "beta", 0.0)
            ),
            test=test,
            shadow=shadow,
            holdout=Shards.from_pairs(holdout),
            classes=classes,
        )


def _check_examples(name: str, x: Tensor, y: Tensor, like: Tensor, classes: int) -> None:
    """Raise unless (x, y) are examples of the same shape as ``like`` with labels in ``range(classes)``."""
    require(len(x) == len(y), f"{name} has {len(x)} examples but {len(y)} labels")
    require(y.dtype == torch.int64, f"{name} has labels of type {y.dtype}; they must be torch.int64")
    shape, expected = tuple(x.shape[1:]), tuple(like.shape[1:])
    require(shape == expected, f"{name} has examples of shape {shape}; client 0's have shape {expected}")
    if len(y):
        low, high = int(y.min()), int(y.max())
        wrong = low if low < 0 else high
        require(
            low >= 0 and high < classes, f"{name} has the label {wrong}; labels must be in 0..{classes - 1} (classes)"
        )


def _as_examples(examples: tuple[Tensor, Tensor] | Examples) -> Examples:
    if isinstance(examples, Examples):
        return examples
    x, y = examples
    return Examples(x, y, torch.zeros(len(y), dtype=torch.int64))


def _per_client(value: Tensor | float, count: int, name: str, low: float) -> Tensor:
    """One number, or one per client, as (count,) float64 in [low, 1]."""
    given = torch.as_tensor(value, dtype=torch.float64)
    require(
        given.dim() == 0 or given.shape == (count,),
        f"'{name}' must be one number or one for each of {count} clients; got shape {tuple(given.shape)}",
    )
    values = given.expand(count).clone()
    within = bool(((values >= low) & (values <= 1)).all())
    require(within, f"'{name}' must be in [{low}, 1]; got {values.min():g} to {values.max():g}")
    return values
