"""How messages travel between the server and its nodes, as the server's rounds use it."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

Question = Literal["identify", "train", "histograms", "votes"]
"""What a message asks of a client."""


@dataclass(frozen=True)
class Answer:
    """What came of a message.

    Args:
        node: that it was sent to.
        content: the reply's records; None: the node's program failed.
        error: why it did.
        late: whether it answers a message of an earlier exchange.
        gone: whether nobody will answer: the node is not there any more, or its message has expired.
    """

    node: int
    content: RecordDict | None
    error: str = ""
    late: bool = False
    gone: bool = False


class Exchange(Protocol):
    """Sends messages to nodes and brings their answers."""

    def connected(self) -> list[int]:
        """The nodes that are connected now, as far as is known."""
        ...

    def ask(
        self, question: Question, messages: Mapping[int, RecordDict], awaited: set[int], seconds: float, group: str
    ) -> Iterator[Answer]:
        """Send each node its message and hand out answers as they come.

        Args:
            question: of all messages.
            messages: by node.
            awaited: the nodes for which this waits.
            seconds: after which it does no longer.
            group: names the round in logs.
        """
        ...

    def pause(self) -> None:
        """Wait a moment before looking for nodes again."""
        ...


_KINDS: Mapping[Question, str] = {
    "identify": f"{MessageType.QUERY}.identify",
    "train": MessageType.TRAIN,
    "histograms": f"{MessageType.QUERY}.histograms",
    "votes": f"{MessageType.QUERY}.votes",
}

_GONE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)

_POLL = 0.25
"""Seconds from one look for replies to the next. Flower's own loop takes three."""


@dataclass
class FlowerExchange:
    """An `Exchange` over a grid, which remembers what is unanswered, so that late replies are known as such.

    Args:
        grid: that a ServerApp is given.
    """

    grid: Grid
    _pending: dict[str, int] = field(default_factory=dict)

    def connected(self) -> list[int]:
        """See `Exchange.connected`."""
        return sorted(self.grid.get_node_ids())

    def ask(
        self, question: Question, messages: Mapping[int, RecordDict], awaited: set[int], seconds: float, group: str
    ) -> Iterator[Answer]:
        """See `Exchange.ask`; a message that is not read within ``seconds`` is never delivered."""
        current, kind = dict[str, int](), _KINDS[question]
        for node, content in messages.items():
            # One at a time, so that no request is larger than a client's offer.
            message = Message(
                content=content, dst_node_id=node, message_type=kind, ttl=max(seconds, 1.0), group_id=group
            )
            (message_id,) = self.grid.push_messages([message])
            if message_id:
                current[message_id] = node
        end, left = time.monotonic() + seconds, set(awaited) & set(current.values())
        while left and time.monotonic() < end:
            for reply in self.grid.pull_messages([*current, *self._pending]):
                answered = reply.metadata.reply_to_message_id
                node, late = current.pop(answered, None), False
                if node is None:
                    node, late = self._pending.pop(answered, None), True
                if node is not None:
                    left -= set() if late else {node}
                    yield _answer(node, reply, late=late)
            if left:
                time.sleep(_POLL)
        self._pending.update(current)

    def pause(self) -> None:
        """See `Exchange.pause`."""
        time.sleep(1.0)


def _answer(node: int, reply: Message, *, late: bool) -> Answer:
    if reply.has_error():
        return Answer(node, None, f"{reply.error.reason}"[:500], late, gone=reply.error.code in _GONE)
    return Answer(node, reply.content, late=late)
