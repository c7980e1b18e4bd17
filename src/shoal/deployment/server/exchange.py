"""How messages travel between the server and its nodes, as the server's rounds use it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from flwr.app import RecordDict

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
