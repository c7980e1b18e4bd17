"""Who takes part in a run when: clients that leave for good, and clients that join later."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.errors import locate_errors, require
from shoal.core.formats import one_line
from shoal.core.settings import Positive, settings
from shoal.data.federation import Federation

LAST = 2**31
"""The last round of a client that never leaves."""


@settings
class Event:
    """Clients that leave or join before a round: one table ``[[events]]``.

    Args:
        round: it takes effect before this round is trained: a leaver's last round is the one before, a newcomer's first
            is this one.
        leave: clients that leave for good, by name or number; before round 1, they are never there.
        join: clients that are not there before, by name or number; from round 2 on.
    """

    round: Positive
    leave: tuple[str | int, ...] = ()
    join: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        require(bool(self.leave or self.join), f"the event of round {self.round} has neither 'leave' nor 'join'")


@dataclass(frozen=True, eq=False)
class Presence:
    """The rounds in which each of N clients is there.

    Args:
        first: (N,) int64, the first round of each client.
        last: (N,) int64, its last round; `LAST` to the end; below ``first`` for a client that is never there.

    Example:
        >>> import shoal.toy
        >>> federation, _, _ = shoal.toy.one_group()
        >>> events = [shoal.Event(round=3, leave=(0,)), shoal.Event(round=2, join=(2,))]
        >>> presence = shoal.Presence.from_events(events, federation, rounds=4)
        >>> [presence.present(number).tolist() for number in (1, 2, 3)], presence.leavers(3).tolist()
        ([[0, 1], [0, 1, 2], [1, 2]], [0])
    """

    first: Tensor
    last: Tensor
    __repr__ = one_line

    @staticmethod
    def from_events(events: Sequence[Event], federation: Federation, rounds: int) -> "Presence":
        """The presence of a federation's clients in a run of ``rounds`` rounds.

        Raises:
            InputError: a client that is unknown, leaves or joins twice, or joins after it left; or a round without
                clients, or outside the run.
        """
        first = torch.ones(len(federation), dtype=torch.int64)
        last = torch.full_like(first, LAST)
        with locate_errors("events"):
            for event in sorted(events, key=lambda event: event.round):
                number, least = event.round, 2 if event.join else 1
                within = f"the round of a {'join' if event.join else 'leave'} must be in [{least}, {rounds}]"
                require(least <= number <= rounds, f"{within}; got {number}")
                for name in (*event.leave, *event.join):
                    (client,) = federation.positions([name]).tolist()
                    left = f"client '{name}' left for good in round {last[client] + 1}"
                    require(int(last[client]) == LAST, f"{left}; it can neither leave nor join again")
                    if name in event.leave:
                        last[client] = number - 1
                        continue
                    require(int(first[client]) == 1, f"client '{name}' joins twice; it joined in round {first[client]}")
                    first[client] = number
            presence = Presence(first, last)
            for number in sorted({1, *(event.round for event in events)}):
                require(len(presence.present(number)) > 0, f"nobody is left in round {number}")
        return presence

    def present(self, number: int) -> Tensor:
        """Positions (n,) int64 of the clients that are there in round ``number``, counted from 1."""
        return torch.nonzero((self.first <= number) & (number <= self.last)).flatten()

    def leavers(self, number: int) -> Tensor:
        """Positions (m,) of the clients that leave before round ``number`` and were there."""
        return torch.nonzero((self.last == number - 1) & (self.first <= self.last)).flatten()

    def without(self, clients: Tensor) -> "Presence":
        """The presence in which the clients at ``clients`` (m,) were never there."""
        last = self.last.clone()
        last[clients] = 0
        return replace(self, last=last)
