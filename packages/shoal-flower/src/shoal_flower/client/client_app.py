"""The ClientApp: answers to Flower's messages, and the node's part in secure sums.

The node's log explains each error, but the server receives the same text for all errors, because different texts could
reveal properties of the node's data.

Secure sums do not change a node's numbers, policy checks or ledger charges. The node stores a secure sum's state on
disk between the server's questions.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from shoal.core.atomic_files import PRIVATE, private_folder, remove_unfinished, write_text
from shoal.core.errors import require
from shoal_flower.client.client_round import histograms_reply, training_reply, vote_reply
from shoal_flower.client.node_data import keep_features, run_config
from shoal_flower.client.policy import LEDGER, Ledger, Policy
from shoal_flower.flower_config import NodeSettings
from shoal_flower.messages import LEAVES, REFUSED, NotAllowedError, Offer, Refusal
from shoal_flower.secure_sums.contributions import (
    check_summable,
    histogram_block,
    models_digest,
    offer_digest,
    update_block,
)
from shoal_flower.secure_sums.participant import Participant
from shoal_flower.secure_sums.primitives import KnownKeys, NodeKey
from shoal_flower.secure_sums.protocol_messages import (
    Card,
    Delivery,
    Members,
    Opening,
    RefusedError,
    Session,
    SumMembers,
    Transcript,
    pack_answer,
    unpack_question,
)
from shoal_flower.wire_codec import (
    pack_histograms,
    pack_identity,
    pack_kept_features,
    pack_reply,
    pack_stamp,
    pack_vote,
    unpack_features,
    unpack_offer,
)

LOG = logging.getLogger("shoal")
app = ClientApp()


@app.query("identify")
def identify(message: Message, context: Context) -> Message:
    """Send the name of this node's client, and the ledger's last charge if the client leaves for good."""

    def name(node: NodeSettings) -> RecordDict:
        identity = pack_identity(node.name, node.partition_id, node.leave)
        return _with_stamp(identity, node) if node.leave else identity

    return _reply(message, context, name, of_leavers=True)


@app.query("features")
def features(message: Message, context: Context) -> Message:
    """Store the server's feature map, or the frozen tensors of its models."""

    def keep(node: NodeSettings) -> RecordDict:
        Policy.read(node.policy).check_question("features", "to store a feature map or frozen tensors")
        return pack_kept_features(keep_features(node.folder, *unpack_features(message.content)))

    return _reply(message, context, keep)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one of the offered models, and send the trained model."""
    return _stamped(message, context, lambda offer, node: pack_reply(training_reply(offer, node)))


@app.query("histograms")
def count(message: Message, context: Context) -> Message:
    """Send histograms of losses on the offered model."""
    return _stamped(message, context, lambda offer, node: pack_histograms(histograms_reply(offer, node)))


@app.query("votes")
def vote(message: Message, context: Context) -> Message:
    """Send whether the risk of the client's model exceeds the client's limit."""
    return _stamped(message, context, lambda offer, node: pack_vote(vote_reply(offer, node)))


@app.query("secure")
def add_up(message: Message, context: Context) -> Message:
    """Answer a question of a secure sum."""
    return _reply(message, context, lambda node: _with_stamp(secure_reply(message.content, node), node))


def _stamped(message: Message, context: Context, answer: Callable[[Offer, NodeSettings], RecordDict]) -> Message:
    """Return the reply to an offer outside secure sums, with the last charge of the client's ledger."""

    def reply(node: NodeSettings) -> RecordDict:
        return _with_stamp(answer(require_plain(unpack_offer(message.content), node), node), node)

    return _reply(message, context, reply)


def _with_stamp(reply: RecordDict, node: NodeSettings) -> RecordDict:
    pack_stamp(reply, Ledger.load(node.folder / LEDGER).stamp)
    return reply


def _reply(
    message: Message, context: Context, answer: Callable[[NodeSettings], RecordDict], *, of_leavers: bool = False
) -> Message:
    """Return the reply by the node's settings, or a refusal that reveals nothing about the client.

    A client that left for good answers only if ``of_leavers`` is true.
    """
    try:
        config = dict(context.node_config)
        # The server may choose a node's folder only in Flower's simulation.
        if "num-partitions" in config and (folder := context.run_config.get("state-dir")):
            config.setdefault("state-dir", f"{folder}/partition-{config.get('partition-id')}")
        node = NodeSettings.read(config)
        if node.leave:
            Ledger.close(node.folder)
        if of_leavers or not Ledger.load(node.folder / LEDGER).closed:
            content = answer(node)
        else:
            LOG.warning("refused: the client left for good")
            content = _with_stamp(pack_reply(Refusal(LEAVES)), node)
    except NotAllowedError as refused:
        LOG.warning("refused: %s", refused)
        content = pack_reply(Refusal(refused.reason))
    except Exception:
        LOG.exception("a message of the server could not be answered")
        content = pack_reply(Refusal(REFUSED))
    return Message(content=content, reply_to=message)


_REMEMBERED = 1000
"""The number of configurations and models whose sums a node remembers; the server could repeat older sums."""

_OPEN = 20
"""The largest number of open sums at a node; beyond this number, the oldest sum is deleted."""


def secure_reply(records: RecordDict, settings: NodeSettings) -> RecordDict:
    """Return the node's answer to a question of a secure sum.

    Raises:
        RefusedError: the question is repeated, out of order, or against the protocol.
        NotAllowedError: the node's policy, budget or ledger does not allow the training.
        InputError: the node's settings do not allow the run's sums, the data are unusable, or training diverged.
    """
    question = unpack_question(records)
    node = _Node(settings, settings.folder / "secure-sums")
    with FileLock(node.folder / "lock"):
        remove_unfinished(node.folder)
        if isinstance(question, Opening):
            return pack_answer(node.open_sum(question))
        client = node.load(question.session)
        config = run_config(client.config, settings.allow_code)
        least = check_summable(config).min_clients
        match question:
            case SumMembers():
                client, answer = client.letters(question, node.known_keys, least)
            case Members():
                client, answer = client.count_shares(question, node.earlier_members(client.subjects), least)
                node.remember(client.subjects, client.members)
            case Transcript():
                client, answer = client.block_shares(question, least)
            case Delivery():
                offer = unpack_offer(records)
                train = client.session.kind == "train"
                same = offer.config == client.config and offer.round == client.session.number
                clusters = len(offer.models) * (1 if train else 2)
                require(same and clusters == len(client.seeds) - 1, "the offer belongs to another sum")
                node.require_new(client.session, client.config)
                subject = f"{client.session.kind} {models_digest(offer.models)}"
                if train:
                    update = training_reply(offer, settings, in_sum=True)
                    cluster, block = update.cluster, update_block(update, offer.models, config, len(client.cards))
                    choice = node.choose(client.session, cluster)
                else:
                    chosen, choice = node.choice(client.session)
                    block = histogram_block(histograms_reply(_of_one(offer, chosen), settings))
                    cluster = 2 * chosen + client.half(question)
                # Compare sums over the same choices too: counts would reveal the choice of a client in one sum only.
                answers = (offer_digest(offer), cluster, block, node.key, (subject, choice))
                client, answer, blocks = client.masked(question, *answers)
                node.save(client)
                node.mark_answered(client.session, client.config)
                return pack_answer(answer, blocks)
        node.save(client)
        return pack_answer(answer)


def require_plain(offer: Offer, settings: NodeSettings) -> Offer:
    """Return ``offer``, or raise `InputError` if the run or this node allows only secure sums."""
    request = "the server requests a single client's numbers"
    require(not settings.answers_sums_alone, f"{request}; 'secure-aggregation' allows only secure sums")
    secure = run_config(offer.config, settings.allow_code).secure_aggregation
    require(secure is None, f"{request}; a run with [secure_aggregation] allows only secure sums")
    return offer


class _Node:
    """The files of a node's secure sums, in their own folder."""

    def __init__(self, settings: NodeSettings, folder: Path) -> None:
        self.settings, self.folder = settings, private_folder(folder)

    @property
    def key(self) -> NodeKey:
        """The node's private signature key."""
        if self.settings.node_key is not None:
            return NodeKey.load(self.settings.node_key)
        return NodeKey.load_or_make(self.folder / "node.key")

    @property
    def known_keys(self) -> KnownKeys:
        """The public keys of the other nodes."""
        if self.settings.peer_keys is not None:
            return KnownKeys.load(self.settings.peer_keys, fixed=True)
        return KnownKeys.load(self.folder / "pinned-keys", fixed=False)

    def open_sum(self, question: Opening) -> Card:
        """Begin a new secure sum, and return the node's public keys."""
        session = question.session
        section = check_summable(run_config(question.config, self.settings.allow_code))
        least = Policy.read(self.settings.policy).sum_threshold
        require(
            section.min_clients >= self.settings.min_clients,
            f"the run's 'min_clients' must be at least {self.settings.min_clients} (got {section.min_clients})",
        )
        require(
            section.threshold >= least - 1e-9,
            f"the run's 'threshold' must be at least 'sum_threshold' = {least:g} (got {section.threshold:g})",
        )
        self.require_new(session, question.config)
        client = Participant.begin(
            session, question.config, self.settings.name, self.key, question.clusters, section.threshold
        )
        self.save(client)
        return client.card

    def require_new(self, session: Session, config: str) -> None:
        """Raise `RefusedError` if the node has answered a sum of this round or of a later round."""
        last = self._read("answered").get(_round_of(session, config), 0)
        if session.number <= last:
            raise RefusedError(f"the sum of round {last} of this configuration was answered already")

    def mark_answered(self, session: Session, config: str) -> None:
        """Record that the node has answered this round's sum."""
        self._write("answered", {_round_of(session, config): session.number})

    def earlier_members(self, subjects: Sequence[str]) -> list[list[str]]:
        """Return the members of each sum over ``subjects`` that the node has helped to reveal."""
        known = self._read("members")
        return [members for subject in subjects for members in known.get(subject, [])]

    def remember(self, subjects: Sequence[str], members: Sequence[str]) -> None:
        """Record the members of a sum, before the node helps to reveal the sum."""
        known = self._read("members")
        new = {s: [*known.get(s, []), list(members)] for s in subjects if list(members) not in known.get(s, [])}
        self._write("members", new)

    def load(self, session: Session) -> Participant:
        """Load the participant of this sum, the only unfinished sum of its run."""
        path = self._sum(session)
        if not path.exists():
            raise RefusedError("no sum is open in this run")
        client = Participant.read(path.read_text(encoding="utf-8"))
        if client.session != session:
            raise RefusedError("the question belongs to another sum than the open sum")
        return client

    def save(self, client: Participant) -> None:
        """Write a participant's state before its answer is sent, or delete the state after the last answer."""
        path = self._sum(client.session)
        if client.is_finished:
            path.unlink(missing_ok=True)
            return
        write_text(path, client.to_json(), mode=PRIVATE)
        for old in sorted(self.folder.glob("sum-*.json"), key=lambda one: one.stat().st_mtime)[:-_OPEN]:
            old.unlink()

    def choose(self, session: Session, cluster: int) -> str:
        """Record the client's cluster, and return a name for this choice."""
        choice = f"choice {session.run} {session.number}"
        self._write("choices", {session.run: [cluster, choice]})
        return choice

    def choice(self, session: Session) -> tuple[int, str]:
        """Return the cluster and the name of the client's last choice in this run."""
        choices = self._read("choices")
        if session.run not in choices:
            raise RefusedError("the client has trained no model in this run")
        cluster, choice = choices[session.run]
        return int(cluster), str(choice)

    def _sum(self, session: Session) -> Path:
        return self.folder / f"sum-{session.run}.json"

    def _read(self, name: str) -> dict[str, Any]:
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def _write(self, name: str, entries: Mapping[str, object]) -> None:
        known = {key: value for key, value in self._read(name).items() if key not in entries}
        newest = dict([*known.items(), *entries.items()][-_REMEMBERED:])
        write_text(self.folder / f"{name}.json", json.dumps(newest) + "\n", mode=PRIVATE)


def _round_of(session: Session, config: str) -> str:
    return f"{hashlib.sha256(config.encode()).hexdigest()} {session.kind}"


def _of_one(offer: Offer, cluster: int) -> Offer:
    one = torch.tensor([cluster])
    directives = {name: values[one] for name, values in offer.directives.items()}
    return replace(offer, models=offer.models[one], risks=offer.risks[one], directives=directives)
