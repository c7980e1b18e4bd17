"""The exchange of messages between the server and its nodes, which limits the size of each reply.

Flower's `Grid.pull_messages` accepts replies of any size. `pull_messages` waits two hours for an object that is never
uploaded. `pull_messages` stops at the first unreadable reply and loses all other replies of the call. This module reads
Flower's objects by the interface of flwr 1.41 and 1.42 (`HttpGrid`).
"""

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.app.error import Error
from flwr.common.constant import ErrorCode
from flwr.common.serde_utils import error_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid.http_grid import HttpGrid

from shoal_flower.messages import RejectedReplyError, plain, reject_unless

_HEADER_BYTES = 1 << 20
"""The largest number of bytes in a reply besides its arrays' numbers: names, counts, reasons, headers."""

_CHILDREN = 64
"""The largest number of objects below an object; an array may have one object per `_CHUNK` bytes."""

_CHUNK = 1 << 20


class NotUploadedError(Exception):
    """A reply that its node has announced, but not completely uploaded."""


@dataclass(frozen=True, eq=False)
class Reply:
    """An unread reply at the SuperLink.

    Args:
        answers: the id of the answered message; the SuperLink has checked that this node received the message.
        error: the reason why the content is missing.
        content: the reply's records in Flower's simulation, which runs in this process; otherwise ``None``.
    """

    id: str
    answers: str
    error: Error | None = None
    content: RecordDict | None = None


def new_replies(grid: Grid, messages: Iterable[str]) -> list[Reply]:
    """Return the new replies at the SuperLink to the ``messages`` with these ids."""
    if not isinstance(grid, HttpGrid):
        return [
            Reply(
                reply.metadata.message_id,
                reply.metadata.reply_to_message_id,
                reply.error if reply.has_error() else None,
                None if reply.has_error() else reply.content,
            )
            for reply in grid.pull_messages(messages)
        ]
    response = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=messages))
    return [
        Reply(
            proto.metadata.message_id,
            proto.metadata.reply_to_message_id,
            error_from_proto(proto.error) if proto.HasField("error") else None,
        )
        for proto in response.messages_list
    ]


def content_of(grid: Grid, reply: Reply, largest: int) -> RecordDict:
    """Read the records of a reply whose arrays have at most ``largest`` bytes.

    Raises:
        NotUploadedError: the reply is not completely uploaded to the SuperLink yet.
        RejectedReplyError: the reply has larger arrays or cannot be read.
    """
    if not isinstance(grid, HttpGrid):
        assert reply.content is not None
        return reply.content
    client, run = grid._runtime_client, grid.run.run_id

    def pull(object_id: str) -> bytes:
        response = client.PullObject(PullObjectRequest(node=grid.node, run_id=run, object_id=object_id))
        reject_unless(response.object_found, "an object of the reply is missing")
        if not response.object_available:
            raise NotUploadedError
        return response.object_content

    try:
        records, contents = _collect_objects(pull, reply.id, largest)
        content = inflate_object_from_contents(records, contents)
    except (NotUploadedError, RejectedReplyError):
        raise
    except Exception as error:  # Flower raises anything on a stranger's bytes.
        raise RejectedReplyError(f"the reply cannot be read: {type(error).__name__}: {error}") from error
    assert isinstance(content, RecordDict)
    return content


def confirm(grid: Grid, reply: Reply) -> None:
    """Allow the SuperLink to delete a reply."""
    if isinstance(grid, HttpGrid):
        grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=grid.node, run_id=grid.run.run_id, message_object_id=reply.id)
        )


def _collect_objects(pull: Callable[[str], bytes], message: str, largest: int) -> tuple[str, dict[str, bytes]]:
    """Return the id of a reply's records, and all objects below the reply.

    The message is read first, because Flower uploads the message last. A chunk counts each time an array names it,
    before the next chunk is read.
    """
    contents, beside, left = dict[str, bytes](), _HEADER_BYTES, largest

    def read(object_id: str, kinds: Collection[str], most: int = _CHILDREN) -> tuple[str, list[str]]:
        nonlocal beside
        content = contents.get(object_id) or pull(object_id)
        beside -= len(content)
        reject_unless(beside >= 0, f"the reply has more than {_HEADER_BYTES} bytes besides its arrays")
        kind, children, _ = get_object_head_values_from_object_content(content)
        reject_unless(kind in kinds, f"the reply has an object '{kind}' instead of {' or '.join(sorted(kinds))}")
        reject_unless(len(children) <= most, f"an object '{kind}' has {len(children)} parts (at most {most})")
        contents[object_id] = content
        return kind, children

    _, parts = read(message, ("Message",))
    reject_unless(len(parts) == 1, "the reply has no content")
    for record in read(parts[0], ("RecordDict",))[1]:
        kind, arrays = read(record, ("ArrayRecord", "ConfigRecord", "MetricRecord"))
        for array in arrays if kind == "ArrayRecord" else ():
            _, chunks = read(array, ("Array",), largest // _CHUNK + 2)
            order = json.loads(contents[array].partition(HEAD_BODY_DIVIDER)[2])["arraychunk_ids"]
            for index in dict.fromkeys(order):
                content = pull(chunks[index])
                left -= order.count(index) * (len(content) - content.index(HEAD_BODY_DIVIDER) - 1)
                reject_unless(left >= 0, f"the reply's arrays have more than {largest} bytes")
                reject_unless(content.startswith(b"ArrayChunk "), "an array must consist of chunks")
                contents[chunks[index]] = content
    return parts[0], contents


NodeRequest = Literal["identify", "features", "train", "histograms", "votes", "secure"]
"""The question of a message to a client."""


@dataclass(frozen=True)
class NodeReply:
    """The outcome of a message.

    Args:
        content: the reply's records, or ``None`` if there are no readable records.
        error: the reason why the content is missing.
        late: whether the reply answers a message of an earlier exchange; a late reply is not read.
        gone: whether no reply can come, because the node is gone or the message has expired.
        failed: whether the node's program failed.
    """

    node: int
    content: RecordDict | None
    error: str = ""
    late: bool = False
    gone: bool = False
    failed: bool = False

    @property
    def kind(self) -> Literal["rejected", "failed"]:
        """The kind of event for a reply without content."""
        return "failed" if self.failed else "rejected"


@dataclass(frozen=True)
class Registration:
    """The identity of a node, verified by the SuperLink.

    Args:
        key: a hash of the node's public key, or "" without a key.
        name: the node's registered name (``flwr supernode register --name``), or "" without a name.
    """

    key: str = ""
    name: str = ""

    @staticmethod
    def of(public_key: bytes, name: str) -> "Registration":
        """Return the registration of the node that has this public key, in PEM format."""
        return Registration(hashlib.sha256(public_key).hexdigest()[:32] if public_key else "", name)


_UNAVAILABLE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)

_POLL = 0.25
"""The seconds between two polls for replies. Flower's own loop waits three seconds."""

_BATCH = 256
"""The largest number of messages per poll; the SuperLink's work is proportional to this number."""

_HEADERS = 1 << 16
"""The largest number of bytes of a reply's arrays beyond the message's arrays."""


@dataclass
class Exchange:
    """The exchange of messages with nodes, with a list of unanswered messages to recognise late replies."""

    grid: Grid
    _late: dict[str, int] = field(default_factory=dict)
    _arrived: deque[Reply] = field(default_factory=deque)
    _uploading: list[Reply] = field(default_factory=list)
    _again: float = 0.0
    _looked: int = 0

    def connected(self) -> dict[int, Registration]:
        """Return the connected nodes and their registrations."""
        nodes = sorted(self.grid.get_nodes(), key=lambda node: node.node_id)
        return {node.node_id: Registration.of(node.public_key, node.name) for node in nodes}

    def ask(
        self, question: NodeRequest, messages: Mapping[int, RecordDict], awaited: set[int], seconds: float, group: str
    ) -> Iterator[NodeReply]:
        """Send each node its message, and yield the answers in order of arrival, with one answer in memory at a time.

        An answer's content is cleared when the next answer is requested. A reply's arrays may have as many bytes as the
        message's arrays, and twice as many in secure sums.

        Args:
            seconds: the longest wait; a message that is not read in this time is never delivered.
            group: the name of the round in logs.
        """
        kind = MessageType.TRAIN if question == "train" else f"{MessageType.QUERY}.{question}"
        current, ttl = dict[str, int](), max(seconds, 1.0)
        for first in range(0, len(messages), self._together):
            nodes = [*islice(messages, first, first + self._together)]
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
                        # Flower's records have reference cycles, which would keep the arrays in memory.
                        answer.content.clear()
                if left and not came:
                    time.sleep(_POLL)
        finally:
            self._late.update(current)

    def pause(self) -> None:
        """Wait a second before the next search for nodes."""
        time.sleep(1.0)

    @property
    def _together(self) -> int:
        """The number of messages per call; a call hashes and sends shared models once."""
        # Flower's simulation does not tell which of several messages it rejected.
        return 64 if isinstance(self.grid, HttpGrid) else 1

    def _answers(self, current: dict[str, int], largest: Mapping[int, int]) -> Iterator[NodeReply]:
        # Skip messages with a known reply, which the SuperLink has forgotten and would report as lost.
        known = {reply.answers for reply in (*self._arrived, *self._uploading)}
        pending = [message for message in (*current, *self._late) if message not in known]
        first = self._looked % max(len(pending), 1)
        self._looked += _BATCH
        self._arrived.extend(new_replies(self.grid, (pending[first:] + pending[:first])[:_BATCH]))
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

    def _answer(self, reply: Reply, node: int, *, late: bool, largest: int) -> NodeReply:
        if reply.error is not None:
            gone = reply.error.code in _UNAVAILABLE
            return NodeReply(node, None, plain(reply.error.reason), late, gone, failed=not gone)
        content, error = None, ""
        try:
            if not late:
                content = content_of(self.grid, reply, largest)
        except RejectedReplyError as rejected:
            error = str(rejected)
        confirm(self.grid, reply)
        return NodeReply(node, content, error, late)


def _bytes_of(content: RecordDict) -> int:
    records = (record for record in content.values() if isinstance(record, ArrayRecord))
    return sum(len(array.data) for record in records for array in record.values())
