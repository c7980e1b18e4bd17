"""What sybils were sent by a server that walks newcomers down a tree of models, as a tree of the attacker's own.

The attacker sees models alone. One that is sent in two rounds with the same bits no longer trains, so a split comes
after it; a cluster's model is another one in every round. A reply to a model leads to the next model that the sybil is
sent, and to the same one again where the server refused it.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from shoal.core.representation import one_line


@dataclass(frozen=True, eq=False)
class Received:
    """A model that a sybil was sent, and its reply.

    Args:
        round: its number.
        sybil: id of the client.
        model: (P,) what it was sent.
        reply: which of the attacker's replies it sent, from 0.
        update: (P,) that reply.

    Example:
        >>> import torch
        >>> from shoal.attacks import Received
        >>> model, update = torch.zeros(3), torch.ones(3)
        >>> first, again = Received(1, 7, model, 0, update), Received(4, 8, model.clone(), 1, -update)
        >>> first.key == again.key, first.key == Received(5, 7, model + 1, 0, update).key
        (True, False)
    """

    round: int
    sybil: int
    model: Tensor
    reply: int
    update: Tensor
    __repr__ = one_line

    @cached_property
    def key(self) -> bytes:
        """Equal for models with the same bits."""
        return key_of(self.model)


def key_of(model: Tensor) -> bytes:
    """A hash of a model (P,), equal for those with the same bits."""
    return hashlib.blake2b(model.detach().cpu().contiguous().numpy().tobytes(), digest_size=16).digest()


class SybilPaths:
    """The tree of all that sybils were sent.

    Args:
        received: in the order in which it was sent.
        replies: how many replies there are to each model.
    """

    def __init__(self, received: Sequence[Received], replies: int) -> None:
        self._replies = range(replies)
        self._rounds = defaultdict[bytes, set[int]](set)
        self._sent = dict[tuple[bytes, int], Tensor]()
        self._next = defaultdict[tuple[bytes, int], dict[bytes, Tensor]](dict)
        self._first = dict[int, bytes]()
        last = dict[int, Received]()
        for each in received:
            self._rounds[each.key].add(each.round)
            self._sent[each.key, each.reply] = each.update
            self._first.setdefault(each.sybil, each.key)
            before = last.get(each.sybil)
            if before is not None and before.key != each.key:
                self._next[before.key, before.reply].setdefault(each.key, each.model)
            last[each.sybil] = each

    def choice(self, model: Tensor, number: int) -> int:
        """The reply of a sybil that is sent a model (P,) in round ``number``.

        The first to a model that was never sent before; to a known one the first that no sybil has tried, or else the
        one that leads the soonest to something unknown.
        """
        key = key_of(model)
        if not any(each < number for each in self._rounds[key]):
            return 0
        untried = [reply for reply in self._replies if (key, reply) not in self._sent]
        return untried[0] if untried else min(self._replies, key=lambda reply: self._behind(key, reply, {key}))

    def sent(self, model: Tensor, reply: int) -> Tensor | None:
        """The update (P,) that a sybil has sent as this reply to this model; None: nobody has."""
        return self._sent.get((key_of(model), reply))

    def found(self, model: Tensor) -> list[Tensor]:
        """The model (P,) to which each of the replies to ``model`` first led, where it led anywhere."""
        key = key_of(model)
        return [next(iter(self._next[key, reply].values())) for reply in self._replies if self._next.get((key, reply))]

    @property
    def finished(self) -> bool:
        """Whether nothing is unknown: every way leads to models that were tried in all ways, or to a cluster's."""
        firsts = set(self._first.values())
        if len(firsts) != 1:
            # Two newcomers were sent two models, so nothing comes before a cluster's.
            return len(firsts) > 1
        return math.isinf(self._steps(next(iter(firsts)), set()))

    def _steps(self, key: bytes, above: set[bytes]) -> float:
        """Replies from a model to something unknown: 0 where it is unknown whether a split comes after it."""
        if len(self._rounds[key]) < 2:
            return 0
        if any((key, reply) not in self._sent for reply in self._replies):
            return 1
        return min(self._behind(key, reply, above | {key}) for reply in self._replies)

    def _behind(self, key: bytes, reply: int, above: set[bytes]) -> float:
        """`_steps` by way of a reply; infinite where it leads to a cluster's model, to one above it, or nowhere."""
        reached = self._next.get((key, reply), {})
        # Sent the same, two sybils are at the same place; if their models differ, it is that of a cluster.
        if len(reached) != 1 or (after := next(iter(reached))) in above:
            return math.inf
        return 1 + self._steps(after, above)
