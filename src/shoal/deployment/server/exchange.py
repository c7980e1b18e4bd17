"""The way of messages between the server and its nodes."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

Question = Literal["identify", "train", "histograms", "votes"]
"""The question of a message to a client."""


@dataclass(frozen=True)
class Answer:
    """The outcome of a message.

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


_GONE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)

_POLL = 0.25
"""Seconds from one look for replies to the next. Flower's own loop takes three."""


@dataclass
class Exchange:
    """Sends messages to nodes and brings their answers; it remembers what is unanswered, to know late replies."""

    grid: Grid
    _pending: dict[str, int] = field(default_factory=dict)

    def connected(self) -> list[int]:
        """The nodes that are connected now, as far as is known."""
        return sorted(self.grid.get_node_ids())

    def ask(
        self, question: Question, messages: Mapping[int, RecordDict], awaited: set[int], seconds: float, group: str
    ) -> Iterator[Answer]:
        """Send each node its message and hand out answers as they come.

        Args:
            question: of all messages.
            messages: by node.
            awaited: the nodes for which this waits.
            seconds: after which it waits no longer; a message that is not read by then is never delivered.
            group: names the round in logs.
        """
        kind = MessageType.TRAIN if question == "train" else f"{MessageType.QUERY}.{question}"
        current = dict[str, int]()
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
                message_id = reply.metadata.reply_to_message_id
                late = message_id not in current
                node = (self._pending if late else current).pop(message_id, None)
                if node is None:
                    continue
                if not late:
                    left.discard(node)
                if reply.has_error():
                    gone = reply.error.code in _GONE
                    yield Answer(node, None, f"{reply.error.reason}"[:500], late, gone)
                else:
                    yield Answer(node, reply.content, late=late)
            if left:
                time.sleep(_POLL)
        self._pending.update(current)

    def pause(self) -> None:
        """Wait a moment before looking for nodes again."""
        time.sleep(1.0)
