"""The attendance of a run: the server asks each node for its client, and waits for enough clients."""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from flwr.app import RecordDict
from safetensors.torch import save as serialize

from shoal.core.errors import InputError, require
from shoal.models import FeatureMap, Model
from shoal_flower.flower_config import RunSettings
from shoal_flower.messages import FROZEN, LEAVES, RejectedReplyError, Stamp
from shoal_flower.server.exchange import Exchange, NodeReply, NodeRequest, Registration
from shoal_flower.server.roster import LOG, Events, LedgerStamps, LossKind, Member, Roster
from shoal_flower.wire_codec import pack_features, unpack_identity, unpack_kept_features, unpack_stamp

_MAX_IDLE_ROUNDS = 3
"""The number of consecutive rounds without an update that ends a run; one round may ask only clients that refuse."""

_FIRST_WORD = 5.0
"""The seconds of waiting for clients before the first log line; the wait doubles before each later line."""

_NAMED = 10
"""The largest number of absent clients that a message names."""

_SAYS_SO = "its node says so"
"""The reason if a client's node has ``leave = true``."""

_LATE_REPLIES = 2
"""The number of consecutive late replies after which an event advises to restart the node's SuperNode."""


@dataclass
class Attendance:
    """The attendance of a run: the client of each node, and the clients that a round waits for.

    Args:
        idle: the number of consecutive rounds that sent offers and merged no update.
    """

    exchange: Exchange
    settings: RunSettings
    roster: Roster
    events: Events
    stamps: LedgerStamps
    idle: int = 0
    _strangers: dict[int, str] = field(default_factory=dict)
    _behind: Counter[int] = field(default_factory=Counter)
    _silent: set[int] = field(default_factory=set)
    _leavers: list[Member] = field(default_factory=list)

    def gather(self, number: int, watch: Callable[[int, tuple[str, ...]], object] = lambda *_: None) -> None:
        """Wait for enough clients for the round ``number``, and let new clients join.

        ``watch`` is called while clients are missing, with the number of missing clients and the names of absent known
        clients.

        Raises:
            InputError: too few clients connected in time.
        """
        began, settings, members, word = time.monotonic(), self.settings, self.roster.members, _FIRST_WORD
        while True:
            self._look(number)
            absent = tuple(member.name for member in members if member.node is None)
            there = len(members) - len(absent)
            if there >= settings.min_nodes:
                return
            watch(settings.min_nodes - there, absent)
            waited, named = time.monotonic() - began, ", ".join(absent[:_NAMED])
            named += f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
            if waited > settings.wait_timeout:
                raise InputError(
                    f"round {number}: 'min-nodes' = {settings.min_nodes} clients must connect within "
                    f"'wait-timeout' = {settings.wait_timeout:g} seconds (got {there}){named and '; absent: '}{named}"
                )
            if waited >= word:
                word = 2 * waited
                LOG.warning(
                    "round %d: waiting for %s: %d of 'min-nodes' = %d clients are connected; 'wait-timeout' is %g s",
                    *(number, named or "clients", there, settings.min_nodes, settings.wait_timeout),
                )
            self._silent.clear()
            self.exchange.pause()

    def ask(
        self, question: NodeRequest, messages: Mapping[int, RecordDict], number: int
    ) -> Iterator[tuple[int, NodeReply]]:
        """Yield each answer to ``messages`` that arrives in time, with the client's position."""
        members = self.roster.members
        positions = {node: i for i in messages if (node := members[i].node) is not None}
        awaited = {node for node, i in positions.items() if members[i].waits}
        contents = {node: messages[i] for node, i in positions.items()}
        for answer in self._answers(question, contents, awaited, self.settings.round_timeout, number):
            try:
                if answer.content is not None:
                    self.stamps.take(members[positions[answer.node]].name, unpack_stamp(answer.content))
            except RejectedReplyError as error:
                answer = replace(answer, content=None, error=str(error))  # noqa: PLW2901
            yield positions[answer.node], answer

    def discard(self, number: int, member: Member, kind: LossKind, reason: str) -> None:
        """Record a reply of round ``number`` that is missing or not merged.

        After a missed deadline, rounds do not wait for the client until it replies again. A client that refuses because
        it leaves for good is removed before the next round.
        """
        member.rejected += kind in ("rejected", "failed")
        member.refused += kind == "refused"
        member.missed += kind == "missed"
        member.waits = member.waits and kind != "missed"
        if kind == "refused" and reason.endswith(LEAVES) and member not in self._leavers:
            self._leavers.append(member)
        self.events.add(number, kind, member.name, member.node, reason)

    def wait_for_some(self, positions: Collection[int]) -> None:
        """Wait for all clients at ``positions`` if all of them missed their last deadline."""
        asked = [self.roster.members[i] for i in positions]
        if not any(member.waits for member in asked):
            for member in asked:
                member.waits = True

    def end_round(self, number: int, *, merged: bool, otherwise: str) -> None:
        """Record a round that sent messages to clients.

        Args:
            merged: whether an update was merged.
            otherwise: the reason if no update was merged.

        Raises:
            InputError: no update was merged in several consecutive rounds.
        """
        self.idle = 0 if merged else self.idle + 1
        require(
            self.idle < _MAX_IDLE_ROUNDS,
            f"round {number}: in {_MAX_IDLE_ROUNDS} consecutive rounds {otherwise} (see events.csv); run the same "
            "command to resume",
        )

    def leave(self, number: int, member: Member, reason: str) -> None:
        """Remove a client for good before the round ``number``."""
        if member.node is not None:
            self._strangers[member.node] = ""
        self.events.add(number, "left", member.name, member.node, reason)
        self.roster.leave(member, number)
        self.roster.save(self.settings.out / "nodes.json")

    def _answers(
        self, question: NodeRequest, messages: Mapping[int, RecordDict], awaited: set[int], seconds: float, number: int
    ) -> Iterator[NodeReply]:
        """Yield the answers in time; rounds wait again for a node that answers, even late."""
        for answer in self.exchange.ask(question, messages, awaited, seconds, str(number)):
            if answer.gone:
                continue
            self._silent.discard(answer.node)
            member = self.roster.by_node(answer.node)
            if member is not None:
                member.waits = True
            self._behind[answer.node] = self._behind[answer.node] + 1 if answer.late else 0
            if self._behind[answer.node] == _LATE_REPLIES:
                name = "unknown" if member is None else member.name
                reason = "each of its replies is one message late, as after an outage; restart its SuperNode"
                self.events.add(number, "missed", name, answer.node, reason)
            if not answer.late:
                yield answer

    def _look(self, number: int) -> None:
        """Ask new nodes for their clients, and record clients that disconnect or leave."""
        nodes = self.exchange.connected()
        while self._leavers:
            self.leave(number, self._leavers.pop(), _SAYS_SO)
        self._silent &= nodes.keys()
        for member in self.roster.members:
            if member.node is not None and member.node not in nodes:
                self.events.add(number, "disconnected", member.name, member.node)
                self.roster.disconnect(member)
        # A rejected node may reconnect with correct settings, or after the other node of its client is gone.
        away = {node: name for node, name in self._strangers.items() if node in nodes}
        self._strangers = {node: name for node, name in away.items() if not name or self._is_taken(name)}
        unknown = [node for node in nodes if self.roster.by_node(node) is None and node not in self._strangers]
        new = [node for node in unknown if not self._has_left(number, node, nodes[node])]
        if not new:
            return
        # Wait only once for a silent node.
        awaited = set(new) - self._silent
        self._silent.update(new)
        identities = list[tuple[int, str, int, bool, Stamp]]()
        messages, seconds = {node: RecordDict() for node in new}, min(60.0, self.settings.round_timeout)
        for answer in self._answers("identify", messages, awaited, seconds, number):
            try:
                if answer.content is None:
                    raise RejectedReplyError(answer.error)
                stamp = unpack_stamp(answer.content)
                name, partition, leaves = unpack_identity(answer.content)
                identities.append((-1 if partition is None else partition, name, answer.node, leaves, stamp))
            except RejectedReplyError as error:
                self._turn_away(number, answer.node, str(error))
        for node in sorted(awaited & self._silent):
            reason = f"is connected, but did not name its client in {seconds:g} seconds: is its task worker running?"
            self.events.add(number, "missed", "unknown", node, reason)
        named = {registered.name: node for node, registered in nodes.items() if registered.name}
        # The order does not depend on arrival, so a repeated run has the same order of clients.
        for partition, name, node, leaves, stamp in sorted(identities):
            self._join(number, name, node, None if partition < 0 else partition, nodes[node], named.get(name))
            member = self.roster.by_node(node)
            if leaves and member is not None:
                self.stamps.take(name, stamp)
                self.leave(number, member, _SAYS_SO)
        # Names keep their keys even if the server is killed in this round.
        self.roster.save(self.settings.out / "nodes.json")

    def _join(
        self, number: int, name: str, node: int, partition: int | None, registered: Registration, named: int | None
    ) -> None:
        """Let the client ``name`` take part at ``node``, unless the name or the key belongs to another client.

        ``named`` is the node that is registered under this name.
        """
        if self._has_left(number, node, registered, name):
            return None
        known, of_key = self.roster.by_name(name), self.roster.by_key(registered.key)
        if registered.name and registered.name != name:
            return self._turn_away(number, node, f"its key is registered for '{registered.name}', not for '{name}'")
        if named is not None and not registered.name:
            return self._turn_away(number, node, f"the name '{name}' is registered for node {named}")
        if of_key is not None and of_key.name != name:
            return self._turn_away(number, node, f"its key is that of the client '{of_key.name}', not of '{name}'")
        if known is not None and not self._may_move(known, registered):
            there = known.node is not None and (self.settings.names == "nodes" or known.key in ("", registered.key))
            reason = f"is at node {known.node} already" if there else "belongs to another key"
            return self._turn_away(number, node, f"the client '{name}' {reason}", name if there else "")
        if known is None and len(self.roster.clients) >= self.settings.max_members:
            return self._turn_away(number, node, f"there are 'max-members' = {self.settings.max_members} clients")
        self.roster.join(name, node, partition, registered.key)
        self.events.add(number, "joined" if known is None else "returned", name, node)
        return None

    def _has_left(self, number: int, node: int, registered: Registration, name: str = "") -> bool:
        """Turn away a node with the key or name of a client that left for good; return whether it had one."""
        for member in (self.roster.by_key(registered.key), self.roster.by_name(name or registered.name)):
            if member is not None and member.last is not None:
                self._turn_away(number, node, f"the client '{member.name}' left for good after round {member.last}")
                return True
        return False

    def _may_move(self, member: Member, registered: Registration) -> bool:
        if self.settings.names == "nodes":
            return member.node is None or not member.waits
        # The operator may register a name for a second key when the first is lost.
        same = member.key in ("", registered.key) or registered.name == member.name
        return member.node is None and same

    def _is_taken(self, name: str) -> bool:
        """Return whether the client ``name`` still has a node, so that its other node stays turned away."""
        member = self.roster.by_name(name)
        return member is not None and member.node is not None and (self.settings.names == "keys" or member.waits)

    def _turn_away(self, number: int, node: int, reason: str, name: str = "") -> None:
        """Ignore a node; with ``name``, only until this client disconnects from its other node."""
        self._strangers[node] = name
        self.events.add(number, "rejected", "unknown", node, reason)


@dataclass
class SentFile:
    """A file that clients need before a round: the feature map, or the models' frozen tensors.

    Args:
        digest: the file's hash, which every offer includes.
        content: a function that makes the file.
        built: whether clients build the content themselves; only clients with different content receive the file.
        mark: the prefix of the hash in messages.
        has: whether a client has the file, by the client's name and node.
    """

    digest: str
    content: Callable[[], bytes]
    built: bool = False
    mark: str = ""
    has: dict[tuple[str, int | None], bool] = field(default_factory=dict)

    @staticmethod
    def of_features(features: FeatureMap) -> "SentFile":
        """Return the file of a fitted feature map."""
        content = features.to_bytes()
        return SentFile(hashlib.sha256(content).hexdigest(), lambda: content)

    @staticmethod
    def of_frozen(model: Model) -> "SentFile":
        """Return the file of a model's frozen tensors, which clients usually build themselves."""

        def content() -> bytes:
            return serialize({name: tensor.contiguous() for name, tensor in model.frozen.items()})

        return SentFile(model.frozen_hash, content, built=True, mark=FROZEN)

    def send(self, attendance: Attendance, number: int) -> None:
        """Send the file to connected clients that do not have it yet."""
        members = attendance.roster.members
        there = {i: (one.name, one.node) for i, one in enumerate(members) if one.node is not None and one.waits}
        lacking = {i: client for i, client in there.items() if not self.has.get(client, self.built)}
        if not lacking:
            return
        # All clients share one object, which is hashed and sent once.
        message = pack_features(self.mark + self.digest, self.content())
        for i, answer in attendance.ask("features", dict.fromkeys(lacking, message), number):
            try:
                if answer.content is None:
                    attendance.discard(number, members[i], answer.kind, answer.error)
                    continue
                unpack_kept_features(answer.content, self.mark + self.digest)
                self.has[lacking[i]] = True
            except RejectedReplyError as error:
                attendance.discard(number, members[i], "rejected", str(error))

    def forget(self, member: Member) -> None:
        """Mark the file as missing at this client, so that the server sends the file again before the next round."""
        self.has[member.name, member.node] = False
