"""The clients, what each holds, and what the server holds."""

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
    """M labelled examples, and the group whose distribution each was drawn from.

    Shapes: x (M, ...), y (M,) int64, group (M,) int64.
    """

    x: Tensor
    y: Tensor
    group: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def of_group(self, group: int) -> "Examples":
        """The examples of one group, in order."""
        mine = self.group == group
        return self.take(torch.nonzero(mine).squeeze(1))

    def take(self, rows: Tensor) -> "Examples":
        """The examples at ``rows`` (m,) int64."""
        return Examples(gather(self.x, rows), self.y[rows], self.group[rows.cpu()])


@dataclass(frozen=True, eq=False)
class Preferences:
    """What each of N clients asks for: ``threshold`` (N,), the membership-inference accuracy it tolerates, and
    ``beta`` (N,) in [0, 1], the weight of risk in its choice of a model; alpha = 1 - beta weighs loss.
    """

    threshold: Tensor
    beta: Tensor

    @property
    def alpha(self) -> Tensor:
        """(N,), the weight of loss."""
        return 1 - self.beta


@dataclass(frozen=True, eq=False)
class Federation:
    """N clients with their data and preferences, and the server's shadow and test examples.

    Args:
        clients: training examples, one shard a client.
        ids: (N,) int64, names that random streams know the clients by; distinct.
        group: (N,) int64, each client's true group, which no algorithm sees.
        groups: the groups' names, also of those without clients.
        preferences: thresholds and betas.
        test: held-out examples of every group, for measuring.
        shadow: the server's own examples, for its red team.
        holdout: N shards that clients keep out of training (empty shards where there are none).
        classes: C, the number of classes.
        holding: who holds a property; None: there is none to speak of.
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
        """(G,) float64, each group's share of the clients."""
        return torch.bincount(self.group, minlength=len(self.groups)).double() / max(1, len(self))

    @property
    def groups_with_clients(self) -> list[int]:
        """The groups that have clients, in order; of the others there are only test examples."""
        return self.group.unique().tolist()

    def clients_in_round(self, number: int) -> Shards:
        """The N shards that the clients train on in a round, counted from 1: all they have, unless a property's
        holder takes turns.
        """
        return (
            self.clients
            if self.property_schedule is None
            else self.property_schedule.in_round(self.clients, self.ids, number)
        )

    def permuted(self, order: Tensor) -> "Federation":
        """The same federation with its clients in another order; order (N,) int64 is a permutation."""
        preferences = Preferences(self.preferences.threshold[order], self.preferences.beta[order])
        return replace(
            self,
            clients=self.clients.take(order),
            holdout=self.holdout.take(order),
            ids=self.ids[order],
            group=self.group[order],
            preferences=preferences,
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
            shadow: the server's examples for its red team; none, no red team.
            groups: each client's group name; one group when left out.
            holdout: (x, y) of each client, kept out of its training.
            threshold: membership-inference accuracy tolerated, in [0.5, 1]; one number or (N,).
            beta: weight of risk in [0, 1]; one number or (N,).
            classes: number of classes; the largest label + 1 when left out.

        Raises:
            InputError: no client, a client without examples, or tensors of different shapes or lengths.

        >>> x, y = torch.rand(4, 2), torch.tensor([0, 1, 0, 1])
        >>> len(Federation.of([(x, y), (x, y)], test=(x, y)))
        2
        """
        require(len(clients) > 0, "a federation needs at least one client")
        largest = max((int(y.max()) for _, y in clients if len(y)), default=0)
        count = classes if classes is not None else largest + 1
        like = clients[0][0]
        for i, (x, y) in enumerate(clients):
            require(len(y) > 0, f"client {i} has no examples")
            _check(f"client {i}", x, y, like, count)
        kept = list(holdout) if holdout is not None else [(like[:0], clients[0][1][:0])] * len(clients)
        require(len(kept) == len(clients), f"holdout must be of each of {len(clients)} clients; got {len(kept)}")
        for i, (x, y) in enumerate(kept):
            _check(f"the holdout of client {i}", x, y, like, count)
        names = list(groups) if groups is not None else ["all"] * len(clients)
        require(
            len(names) == len(clients),
            f"groups must name the group of each of {len(clients)} clients; got {len(names)}",
        )
        kinds = tuple(dict.fromkeys(names))
        require(
            isinstance(test, Examples) or len(kinds) == 1,
            f"with {len(kinds)} groups, test must be Examples(x, y, group) that say which group each is of",
        )
        held_out = _examples(test)
        server = _examples(shadow if shadow is not None else (like[:0], clients[0][1][:0]))
        for name, each in (("test", held_out), ("shadow", server)):
            _check(f"the {name} set", each.x, each.y, like, count)
            largest = int(each.group.max()) if len(each) else 0
            require(
                largest < len(kinds), f"the {name} set has examples of group {largest}; there are {len(kinds)} groups"
            )
        return Federation(
            clients=Shards.of(clients),
            ids=torch.arange(len(clients)),
            group=torch.tensor([kinds.index(name) for name in names]),
            groups=kinds,
            preferences=Preferences(
                _for_each(threshold, len(clients), "threshold", 0.5), _for_each(beta, len(clients), "beta", 0.0)
            ),
            test=held_out,
            shadow=server,
            holdout=Shards.of(kept),
            classes=count,
        )


def _check(name: str, x: Tensor, y: Tensor, like: Tensor, classes: int) -> None:
    """Raise unless (x, y) are examples of the shape of ``like`` with labels below ``classes``."""
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


def _examples(given: tuple[Tensor, Tensor] | Examples) -> Examples:
    if isinstance(given, Examples):
        return given
    x, y = given
    return Examples(x, y, torch.zeros(len(y), dtype=torch.int64))


def _for_each(value: Tensor | float, count: int, name: str, least: float) -> Tensor:
    given = torch.as_tensor(value, dtype=torch.float64)
    require(
        given.dim() == 0 or given.shape == (count,),
        f"{name} must be one number or one for each of {count} clients; got shape {tuple(given.shape)}",
    )
    values = given.expand(count).clone()
    within = bool(((values >= least) & (values <= 1)).all())
    require(within, f"{name} must be in [{least}, 1]; got {values.min():g} to {values.max():g}")
    return values
