"""The map of inputs to features, as the server sends it: once to each client, before its first round."""

import hashlib
from dataclasses import dataclass, field

from shoal.deployment.flower_records import pack_features, unpack_kept_features
from shoal.deployment.messages import RejectedReplyError
from shoal.deployment.server.attendance import Attendance
from shoal.deployment.server.roster import Member
from shoal.models import FeatureMap


@dataclass
class SentFeatures:
    """A map in the format of its file, and who has it.

    Args:
        content: the file.
        has: name and node of each client that said that it has it.
    """

    content: bytes
    has: set[tuple[str, int | None]] = field(default_factory=set)

    @staticmethod
    def of(features: FeatureMap) -> "SentFeatures":
        """Of a fitted map; nobody has it."""
        return SentFeatures(features.serialized())

    @property
    def digest(self) -> str:
        """The SHA-256 of the file, which every offer names."""
        return hashlib.sha256(self.content).hexdigest()

    def send(self, attendance: Attendance, number: int) -> None:
        """Send it, before the round ``number``, to those who are there and have not said that they have it."""
        members = attendance.roster.members
        lacking = [
            i
            for i, member in enumerate(members)
            if member.node is not None and member.waits and (member.name, member.node) not in self.has
        ]
        if not lacking:
            return
        # One object, which is hashed and sent once.
        message = pack_features(self.digest, self.content)
        for i, answer in attendance.ask("features", dict.fromkeys(lacking, message), number):
            try:
                if answer.content is None:
                    raise RejectedReplyError(answer.error)
                unpack_kept_features(answer.content, self.digest)
                self.has.add((members[i].name, members[i].node))
            except RejectedReplyError as error:
                attendance.reject(number, members[i], str(error), kind="failed" if answer.failed else "rejected")

    def forget(self, member: Member) -> None:
        """Send it to this client again before the next round."""
        self.has.discard((member.name, member.node))
