"""The way of messages between the server and its nodes."""

import hashlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

from shoal_flower.messages import RejectedReplyError, plain
from shoal_flower.server.replies import NotUploadedError, Reply, arrived, confirm, content_of

Question = Literal["identify", "features", "train", "histograms", "votes", "secure"]
"""The question of a message to a client."""


@dataclass(frozen=True)
class Answer:
    """The outcome of a message.

    Args:
        node: that it was sent to.
        content: the reply's records; None: there are none that can be read.
        error: why not.
        late: whether it answers a message of an earlier exchange; such a reply is not read.
        gone: whether nobody will answer: the node is not there any more, or its message has expired.
        failed: whether the node's program failed; otherwise what it sent was refused unread.
    """

    node: int
    content: RecordDict | None
    error: str = ""
    late: bool = False
    gone: bool = False
    failed: bool = False


@dataclass(frozen=True)
class Registration:
    """What the SuperLink has checked of a node.

    Args:
        key: a hash of its public key; "": it has none.
        name: that it was registered by (``flwr supernode register --name``); "": none.
    """

    key: str = ""
    name: str = ""

    @staticmethod
    def of(public_key: bytes, name: str) -> "Registration":
        """The registration of a node with this key, in PEM."""
        return Registration(hashlib.sha256(public_key).hexdigest()[:32] if public_key else "", name)


_UNAVAILABLE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)

_POLL = 0.25
"""Seconds from one look for replies to the next. Flower's own loop takes three."""

_BATCH = 256
"""Messages whose replies are asked for at once: the SuperLink's work for each look is in proportion."""

_HEADERS = 1 << 16
"""Bytes that the arrays of a reply may have more than those of its message."""


@dataclass
class Exchange:
    """Sends messages to nodes and brings their answers; it remembers what is unanswered, to know late replies."""

    grid: Grid
    _late: dict[str, int] = field(default_factory=dict)
    _arrived: deque[Reply] = field(default_factory=deque)
    _uploading: list[Reply] = field(default_factory=list)
    _again: float = 0.0
    _looked: int = 0

    def connected(self) -> dict[int, Registration]:
        """The nodes that are connected now, as far as is known, and what the SuperLink knows of each."""
        nodes = sorted(self.grid.get_nodes(), key=lambda node: node.node_id)
        return {node.node_id: Registration.of(node.public_key, node.name) for node in nodes}

    def ask(
        self, question: Question, messages: Mapping[int, RecordDict], awaited: set[int], seconds: float, group: str
    ) -> Iterator[Answer]:
        """Send each node its message and hand out answers as they come, one in memory at a time.

        An answer's content is emptied when the next one is asked for.

        Args:
            question: of all messages.
            messages: by node. A reply's arrays may be as large as its message's, and twice that in secure sums, whose
                integers may have 64 bits.
            awaited: the nodes for which this waits.
            seconds: after which it waits no longer; a message that is not read by then is never delivered.
            group: names the round in logs.
        """
        kind = MessageType.TRAIN if question == "train" else f"{MessageType.QUERY}.{question}"
        current, ttl = dict[str, int](), max(seconds, 1.0)
        for nodes in _in_batches(messages, self._together):
            sent = [
                Message(content=messages[node], dst_node_id=node, message_type=kind, ttl=ttl, group_id=group)
                for node in nodes
            ]
            ids = self.grid.push_messages(sent)
            current.update({message_id: node for message_id, node in zip(ids, nodes, strict=False) if message_id})
        wide = 2 if question == "secure" else 1
        largest = {node: wide * _bytes_of(content) + _HEADERS for node, content in messages.items()}
        end, left = time.monotonic() + seconds, set(awaited) & set(current.values())
        try:
            while left and time.monotonic() < end:
                came = False
                for answer in self._answers(current, largest):
                    came = True
                    if not answer.late:
                        left.discard(answer.node)
                    yield answer
                    if answer.content is not None:
                        # Flower's records refer to themselves: their arrays would wait for the garbage collector.
                        answer.content.clear()
                if left and not came:
                    time.sleep(_POLL)
        finally:
            self._late.update(current)

    def pause(self) -> None:
        """Wait a moment before looking for nodes again."""
        time.sleep(1.0)

    @property
    def _together(self) -> int:
        """How many messages go at once: models that they share are then hashed and sent once."""
        # Flower's own simulation does not say which of several it could not take.
        return 64 if isinstance(self.grid, HttpGrid) else 1

    def _answers(self, current: dict[str, int], largest: Mapping[int, int]) -> Iterator[Answer]:
        """The answers that have come to some of the messages that are unanswered, and will not come again."""
        # Whose reply is known is asked for no more: the SuperLink has forgotten the message, and would call it lost.
        known = {reply.answers for reply in (*self._arrived, *self._uploading)}
        pending = [message for message in (*current, *self._late) if message not in known]
        first = self._looked % max(len(pending), 1)
        self._looked += _BATCH
        self._arrived.extend(arrived(self.grid, (pending[first:] + pending[:first])[:_BATCH]))
        if time.monotonic() >= self._again:
            self._arrived.extend(self._uploading)
            self._uploading, self._again = [], time.monotonic() + 2 * _POLL
        for _ in range(len(self._arrived)):
            reply = self._arrived.popleft()
            messages = current if reply.answers in current else self._late
            if (node := messages.get(reply.answers)) is None:
                continue
            try:
                answer = self._answer(reply, node, late=messages is self._late, largest=largest.get(node, 0))
            except NotUploadedError:
                self._uploading.append(reply)
                continue
            del messages[reply.answers]
            yield answer

    def _answer(self, reply: Reply, node: int, *, late: bool, largest: int) -> Answer:
        """What a reply says.

        Raises:
            NotUploadedError: it is not there as a whole.
        """
        if reply.error is not None:
            gone = reply.error.code in _UNAVAILABLE
            return Answer(node, None, plain(reply.error.reason), late, gone, failed=not gone)
        content, error = None, ""
        try:
            if not late:
                content = content_of(self.grid, reply, largest)
        except RejectedReplyError as rejected:
            error = str(rejected)
        confirm(self.grid, reply)
        return Answer(node, content, error, late)


def _in_batches(nodes: Iterable[int], size: int) -> Iterator[list[int]]:
    ordered = list(nodes)
    for first in range(0, len(ordered), size):
        yield ordered[first : first + size]


def _bytes_of(content: RecordDict) -> int:
    """The bytes of all arrays in some records."""
    records = (record for record in content.values() if isinstance(record, ArrayRecord))
    return sum(len(array.data) for record in records for array in record.values())
