"""Replies at the SuperLink, read object by object, so that nothing of a reply is larger than what was asked for.

Flower's own `Grid.pull_messages` takes whatever a node has pushed, and joins a chunk as often as its array names it. It
waits two hours for an object that is never uploaded. It ends at the first reply that it cannot read, and all others of
the call are lost. So this reads the same objects by the same interface (flwr 1.41 and 1.42, `HttpGrid`) with a bound on
each.
"""

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from flwr.app import RecordDict
from flwr.app.error import Error
from flwr.common.serde_utils import error_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid.http_grid import HttpGrid

from shoal_flower.messages import RejectedReplyError, reject_unless

_HEADER_BYTES = 1 << 20
"""Bytes that a reply may have beside its arrays' numbers: names, counts, reasons, headers."""

_CHILDREN = 64
"""Objects that an object may have below it, but an array, whose chunks are at least `_CHUNK` bytes."""

_CHUNK = 1 << 20


class NotUploadedError(Exception):
    """A node has announced its reply, and has not uploaded all of it."""


@dataclass(frozen=True, eq=False)
class Reply:
    """A reply of which the SuperLink has the sender, and of which nothing is read yet.

    Args:
        id: its own.
        answers: the id of the message that it answers, which the SuperLink has checked was sent to this node.
        error: why there is no content; None: there is some.
        content: where it is in this process already, as in Flower's own simulation.
    """

    id: str
    answers: str
    error: Error | None = None
    content: RecordDict | None = None


def arrived(grid: Grid, messages: Iterable[str]) -> list[Reply]:
    """The replies to these ``messages``, by id, that are at the SuperLink and were not handed out before."""
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
    """The records of a reply whose arrays have at most ``largest`` bytes.

    Raises:
        NotUploadedError: some of it is not at the SuperLink yet.
        RejectedReplyError: it is larger, or is no records.
    """
    if not isinstance(grid, HttpGrid):
        assert reply.content is not None
        return reply.content
    client, run = grid._runtime_client, grid.run.run_id

    def pull(object_id: str) -> bytes:
        response = client.PullObject(PullObjectRequest(node=grid.node, run_id=run, object_id=object_id))
        reject_unless(response.object_found, "a reply of which an object is missing")
        if not response.object_available:
            raise NotUploadedError
        return response.object_content

    try:
        records, contents = _collected(pull, reply.id, largest)
        content = inflate_object_from_contents(records, contents)
    except (NotUploadedError, RejectedReplyError):
        raise
    except Exception as error:  # Whatever Flower finds wrong with the bytes of a stranger.
        raise RejectedReplyError(f"a reply that cannot be read: {type(error).__name__}: {error}") from error
    assert isinstance(content, RecordDict)
    return content


def confirm(grid: Grid, reply: Reply) -> None:
    """Let the SuperLink forget a reply."""
    if isinstance(grid, HttpGrid):
        grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=grid.node, run_id=grid.run.run_id, message_object_id=reply.id)
        )


def _collected(pull: Callable[[str], bytes], message: str, largest: int) -> tuple[str, dict[str, bytes]]:
    """The id of a reply's records, and all objects below it.

    The message comes first, which Flower uploads last: where it is there, so is the rest. Numbers are counted as often
    as an array names their chunk, before the next chunk is taken.
    """
    contents, beside, left = dict[str, bytes](), _HEADER_BYTES, largest

    def read(object_id: str, kinds: Collection[str], most: int = _CHILDREN) -> tuple[str, list[str]]:
        nonlocal beside
        content = contents.get(object_id) or pull(object_id)
        beside -= len(content)
        reject_unless(beside >= 0, f"a reply with more than {_HEADER_BYTES} bytes beside its arrays")
        kind, children, _ = get_object_head_values_from_object_content(content)
        reject_unless(kind in kinds, f"an object '{kind}' in the place of {' or '.join(sorted(kinds))}")
        reject_unless(len(children) <= most, f"an object '{kind}' of {len(children)} parts, above {most}")
        contents[object_id] = content
        return kind, children

    _, parts = read(message, ("Message",))
    reject_unless(len(parts) == 1, "a reply without content")
    for record in read(parts[0], ("RecordDict",))[1]:
        kind, arrays = read(record, ("ArrayRecord", "ConfigRecord", "MetricRecord"))
        for array in arrays if kind == "ArrayRecord" else ():
            _, chunks = read(array, ("Array",), largest // _CHUNK + 2)
            order = json.loads(contents[array].partition(HEAD_BODY_DIVIDER)[2])["arraychunk_ids"]
            for index in dict.fromkeys(order):
                content = pull(chunks[index])
                left -= order.count(index) * (len(content) - content.index(HEAD_BODY_DIVIDER) - 1)
                reject_unless(left >= 0, f"a reply whose arrays have more than {largest} bytes")
                reject_unless(content.startswith(b"ArrayChunk "), "an array of other objects than chunks")
                contents[chunks[index]] = content
    return parts[0], contents
