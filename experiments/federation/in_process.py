# ruff: noqa: N802 - the methods of Flower's HTTP client
"""A SuperLink in this process, below Flower's own grid, whose nodes are functions: for tests and benchmarks.

What crosses it are the objects of the wire format, as bytes, so that a node may send what no honest program would.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from flwr.app import Message, RecordDict
from flwr.app.error import Error
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import error_to_proto, message_to_proto, metadata_from_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    Message as ProtoMessage,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    GetNodesRequest,
    GetNodesResponse,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

Node = Callable[[str, Callable[[], RecordDict]], RecordDict | dict[str, bytes] | None]
"""A function that answers a message of a type and may ask for its content. The answer is records, objects by id (the
last one is the reply or its records), or None."""


@dataclass(eq=False)
class InProcessSuperLink:
    """Messages and objects of one run.

    Args:
        nodes: by id.
        keys: public keys of nodes, in PEM.
        names: that nodes are registered by.
        uploading: ids of objects that are announced and not there.
    """

    nodes: Mapping[int, Node]
    keys: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    uploading: set[str] = field(default_factory=set)
    objects: dict[str, bytes] = field(default_factory=dict)
    pushed: list[str] = field(default_factory=list)
    _unanswered: dict[str, int] = field(default_factory=dict)

    def grid(self) -> HttpGrid:
        """Flower's grid with this instead of its HTTP client."""
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
        grid = HttpGrid(insecure=True, token="in process")
        grid._client = self  # pyright: ignore[reportAttributeAccessIssue]
        grid.set_run(Run.create_empty(1))
        return grid

    def GetNodes(self, request: GetNodesRequest) -> GetNodesResponse:
        """All nodes, with their keys and names."""
        del request
        return GetNodesResponse(
            nodes=[
                NodeInfo(node_id=node, public_key=self.keys.get(node, b""), name=self.names.get(node))
                for node in self.nodes
            ]
        )

    def PushMessages(self, request: PushAppMessagesRequest) -> PushAppMessagesResponse:
        """Take the server's messages."""
        ids = [proto.metadata.message_id for proto in request.messages_list]
        self._unanswered.update(
            {proto.metadata.message_id: proto.metadata.dst_node_id for proto in request.messages_list}
        )
        wanted = {each for tree in request.message_object_trees for each in _ids(tree)} - self.objects.keys()
        return PushAppMessagesResponse(message_ids=ids, objects_to_push=wanted, session_id="1")

    def PushObject(self, request: PushObjectRequest) -> PushObjectResponse:
        """Take an object of a message."""
        self.objects[request.object_id] = request.object_content
        self.pushed.append(request.object_id)
        return PushObjectResponse(stored=True)

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        """The replies to messages, which nodes make now."""
        protos, trees = [], []
        for message_id in request.message_ids:
            if (node := self._unanswered.get(message_id)) is None:
                # As a SuperLink answers for a message whose reply it has handed out.
                lost = Error(ErrorCode.MESSAGE_UNAVAILABLE, "unknown message")
                protos.append(ProtoMessage(error=error_to_proto(lost)))
                protos[-1].metadata.reply_to_message_id = message_id
                trees.append(ObjectTree())
                continue
            about = ProtoMessage.FromString(self.objects[message_id].partition(HEAD_BODY_DIVIDER)[2]).metadata
            about.message_id = message_id
            asked = make_message(metadata_from_proto(about), RecordDict())
            content = self.nodes[node](about.message_type, partial(self._content, message_id))
            if content is None:
                continue
            del self._unanswered[message_id]
            if isinstance(content, RecordDict):
                reply = Message(content, reply_to=asked)
                content = {key: value.deflate() for key, value in get_all_nested_objects(reply).items()}
            elif content[[*content][-1]].startswith(b"RecordDict "):
                content |= _message_of([*content][-1], asked)
            self.objects.update(content)
            *parts, reply_id = content
            proto = message_to_proto(Message(RecordDict(), reply_to=asked))
            proto.metadata.message_id = reply_id
            protos.append(proto)
            trees.append(ObjectTree(object_id=reply_id, children=[ObjectTree(object_id=part) for part in parts]))
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=trees)

    def _content(self, message_id: str) -> RecordDict:
        asked = inflate_object_from_contents(message_id, self.objects, keep_object_contents=True)
        assert isinstance(asked, Message)
        return asked.content

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        """An object of a reply."""
        known, there = request.object_id in self.objects, request.object_id not in self.uploading
        content = self.objects[request.object_id] if known and there else b""
        return PullObjectResponse(object_found=known, object_available=there, object_content=content)

    def ConfirmMessageReceived(self, request: ConfirmMessageReceivedRequest) -> ConfirmMessageReceivedResponse:
        """Forget a reply, but for what others have too."""
        self.objects.pop(request.message_object_id, None)
        return ConfirmMessageReceivedResponse()


def _ids(tree: ObjectTree) -> list[str]:
    return [tree.object_id, *(each for child in tree.children for each in _ids(child))]


def _message_of(records: str, asked: Message) -> dict[str, bytes]:
    """The object of a reply whose records have this id."""
    body = message_to_proto(Message(RecordDict(), reply_to=asked)).SerializeToString()
    content = f"Message {records} {len(body)}".encode() + HEAD_BODY_DIVIDER + body
    return {get_object_id(content): content}
