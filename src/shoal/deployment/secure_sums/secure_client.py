"""A node's answers to the questions of secure sums, with what it must remember in between on its own disk.

The numbers that it adds are those that it would send otherwise, after the same checks by its policy and the same
charges to its ledger.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch
from filelock import FileLock
from flwr.app import RecordDict

from shoal.core.atomic_files import write_text
from shoal.core.errors import require
from shoal.deployment.client.client_round import histograms_reply, training_reply
from shoal.deployment.client.node_data import run_config
from shoal.deployment.flower_config import NodeSettings
from shoal.deployment.flower_records import unpack_offer
from shoal.deployment.messages import Offer
from shoal.deployment.secure_sums.contributions import check_summable, histogram_block, offer_digest, update_block
from shoal.deployment.secure_sums.node_keys import KnownKeys, NodeKey
from shoal.deployment.secure_sums.participant import Participant
from shoal.deployment.secure_sums.protocol_messages import (
    Card,
    Delivery,
    Members,
    Opening,
    RefusedError,
    Roster,
    Session,
    Transcript,
)
from shoal.deployment.secure_sums.secure_records import pack_answer, unpack_question

_RUNS = 1000
"""Runs of servers that a node remembers; one that was forgotten could be repeated to it."""


def secure_reply(records: RecordDict, settings: NodeSettings) -> RecordDict:
    """The node's answer to a question of a secure sum.

    Raises:
        RefusedError: a question that is repeated, out of order, or not what honest servers and clients send.
        NotAllowedError: as `training_reply`.
        InputError: a run whose sums would be less than the node asks for, or as `training_reply`.
    """
    question = unpack_question(records)
    node = _Node(settings, settings.folder / "secure-sums")
    with FileLock(node.folder / "lock"):
        if isinstance(question, Opening):
            return pack_answer(node.opened(question))
        client = node.load(question.session)
        config = run_config(client.config, settings.allow_code)
        least = check_summable(config).min_clients
        match question:
            case Roster():
                client, answer = client.letters(question, node.known, least)
            case Members():
                client, answer = client.count_shares(question)
            case Transcript():
                client, answer = client.block_shares(question, least)
            case Delivery():
                offer = unpack_offer(records)
                same = offer.config == client.config and offer.round == client.session.number
                require(same and len(offer.models) == len(client.seeds) - 1, "an offer of another sum")
                if client.session.kind == "train":
                    update = training_reply(offer, settings, in_sum=True)
                    cluster, block = update.cluster, update_block(update, offer.models, config, len(client.cards))
                    node.choose(client.session, cluster)
                else:
                    cluster = node.choice(client.session)
                    counts = histograms_reply(_of_one(offer, cluster), settings)
                    block = histogram_block(counts, offer.client % 2)
                client, answer, blocks = client.masked(question, offer_digest(offer), cluster, block, node.key)
                node.save(client)
                return pack_answer(answer, blocks)
        node.save(client)
        return pack_answer(answer)


def require_plain(offer: Offer, settings: NodeSettings) -> Offer:
    """The ``offer``, which a single update, histogram or vote may answer.

    Raises:
        InputError: the run's answers, or all of this node's, are secure sums.
    """
    require(
        not settings.answers_sums_alone,
        "the server asks for this client's own numbers, and the node answers secure sums alone ('secure-aggregation')",
    )
    secure = run_config(offer.config, settings.allow_code).secure_aggregation
    require(secure is None, "the server asks for this client's own numbers in a run with [secure_aggregation]")
    return offer


class _Node:
    """The files of a node's secure sums, in a folder of its own."""

    def __init__(self, settings: NodeSettings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def key(self) -> NodeKey:
        """By which the node signs."""
        if self.settings.node_key is not None:
            return NodeKey.load(self.settings.node_key)
        return NodeKey.load_or_make(self.folder / "node.key")

    @property
    def known(self) -> KnownKeys:
        """The keys of the other nodes."""
        if self.settings.peer_keys is not None:
            return KnownKeys.load(self.settings.peer_keys, fixed=True)
        return KnownKeys.load(self.folder / "pinned-keys", fixed=False)

    def opened(self, question: Opening) -> Card:
        """The card of a new sum, whose number is above that of each earlier one of the server's run."""
        session = question.session
        section = check_summable(run_config(question.config, self.settings.allow_code))
        require(
            section.min_clients >= self.settings.min_clients,
            f"the run opens sums of {section.min_clients} clients, and this node's 'min-clients' is "
            f"{self.settings.min_clients}",
        )
        path, name = self.folder / "sums.json", f"{session.run} {session.kind}"
        numbers: dict[str, int] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if session.number <= numbers.get(name, 0):
            raise RefusedError(f"sum {session.number} of a run was opened already")
        last = dict(list(numbers.items())[-_RUNS:])
        last.pop(name, None)
        write_text(path, json.dumps(last | {name: session.number}) + "\n")
        client = Participant.begin(
            session, question.config, self.settings.name, self.key, question.clusters, section.threshold
        )
        self.save(client)
        return client.card

    def load(self, session: Session) -> Participant:
        """The client in the sum that was opened last, which must be this one."""
        path = self.folder / "sum.json"
        if not path.exists():
            raise RefusedError("no sum is open")
        client = Participant.read(path.read_text(encoding="utf-8"))
        if client.session != session:
            raise RefusedError("a question of another sum than the one that is open")
        return client

    def save(self, client: Participant) -> None:
        """Write what the client must remember, before its answer leaves; nothing after its last answer."""
        path = self.folder / "sum.json"
        if client.finished:
            path.unlink(missing_ok=True)
            return
        write_text(path, client.written())

    def choose(self, session: Session, cluster: int) -> None:
        """Remember the cluster that the client is in."""
        write_text(self.folder / "cluster.json", json.dumps({"run": session.run, "cluster": cluster}) + "\n")

    def choice(self, session: Session) -> int:
        """The cluster that the client was in last, in this run."""
        path = self.folder / "cluster.json"
        last = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if last.get("run") != session.run:
            raise RefusedError("the client has trained no model in this run")
        return int(last["cluster"])


def _of_one(offer: Offer, cluster: int) -> Offer:
    """The offer of one of its models alone."""
    one = torch.tensor([cluster])
    directives = {name: values[one] for name, values in offer.directives.items()}
    return replace(offer, models=offer.models[one], risks=offer.risks[one], directives=directives)
