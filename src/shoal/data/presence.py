"""The rounds in which clients take part: clients can leave for good or join during the run."""

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
    """Clients that leave or join before a round; each such event is a separate table ``[[events]]``.

    Args:
        round: the round before which the clients leave or join. With ``round = 5``, the last round of a leaving client
            is 4, and the first round of a joining client is 5.
        leave: the names or numbers of the clients that leave for good. A client that leaves before round 1 never takes
            part.
        join: the names or numbers of the clients that join; these clients do not take part earlier. The ``round``
            of joining clients must be at least 2.
    """

    round: Positive
    leave: tuple[str | int, ...] = ()
    join: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        require(bool(self.leave or self.join), f"the event of round {self.round} must have 'leave' or 'join'")


@dataclass(frozen=True, eq=False)
class Presence:
    """The rounds in which each of N clients takes part.

    Args:
        first: the first round of each client, (N,) int64.
        last: the last round of each client, (N,) int64; `LAST` for a client that never leaves, and less than ``first``
            for a client that never takes part.

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
        """Create the presence of a federation's clients in a run of ``rounds`` rounds.

        Raises:
            InputError: a client is unknown, leaves or joins twice, or joins after leaving; a round has no clients; or
                an event is outside the run.
        """
        first = torch.ones(len(federation), dtype=torch.int64)
        last = torch.full_like(first, LAST)
        with locate_errors("events"):
            for event in sorted(events, key=lambda event: event.round):
                number, least = event.round, 2 if event.join else 1
                require(
                    least <= number <= rounds,
                    f"'round' of an event with '{'join' if event.join else 'leave'}' must be in [{least}, {rounds}] "
                    f"(got {number})",
                )
                for name in (*event.leave, *event.join):
                    (client,) = federation.positions([name]).tolist()
                    require(
                        int(last[client]) == LAST,
                        f"client '{name}' left for good in round {last[client] + 1}, and cannot leave or join again",
                    )
                    if name in event.leave:
                        last[client] = number - 1
                        continue
                    require(
                        int(first[client]) == 1,
                        f"client '{name}' already joined in round {first[client]}, and cannot join again",
                    )
                    first[client] = number
            presence = Presence(first, last)
            for number in sorted({1, *(event.round for event in events)}):
                require(
                    len(presence.present(number)) > 0,
                    f"round {number} has no clients; at least one client must take part",
                )
        return presence

    def present(self, number: int) -> Tensor:
        """Return the positions (n,) int64 of the clients that take part in round ``number``, counted from 1."""
        return torch.nonzero((self.first <= number) & (number <= self.last)).flatten()

    def leavers(self, number: int) -> Tensor:
        """Return the positions (m,) of the clients whose last round is the round before ``number``."""
        return torch.nonzero((self.last == number - 1) & (self.first <= self.last)).flatten()

    def without(self, clients: Tensor) -> "Presence":
        """Return a presence in which the clients at positions ``clients`` (m,) never take part."""
        last = self.last.clone()
        last[clients] = 0
        return replace(self, last=last)
