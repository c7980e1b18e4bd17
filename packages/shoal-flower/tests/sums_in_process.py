"""Clients of secure sums in this process, which answer a server directly."""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ed25519
from flwr.app import RecordDict

from shoal.config.schema import parse_config
from shoal.core.errors import InputError
from shoal_flower.client.client_app import secure_reply
from shoal_flower.flower_config import NodeSettings, RunSettings
from shoal_flower.messages import Refusal
from shoal_flower.secure_sums.contributions import FixedPoint
from shoal_flower.secure_sums.coordinated_sum import CoordinatedSum
from shoal_flower.secure_sums.participant import Participant
from shoal_flower.secure_sums.primitives import KnownKeys, NodeKey
from shoal_flower.secure_sums.protocol_messages import (
    Answer,
    Delivery,
    Members,
    Opening,
    Question,
    RefusedError,
    Session,
    SumMembers,
    Transcript,
    read_question,
    to_json,
    unpack_question,
)
from shoal_flower.server.exchange import NodeReply as NodeAnswer, Registration
from shoal_flower.server.server_app import serve
from shoal_flower.wire_codec import pack_identity, pack_reply
from wire_federation import state_in

CONFIG, LEAST, BOUND = "seed = 0", 3, 10.0
OFFER = hashlib.sha256(b"models").digest()


def a_session(number: int = 1, run: str | None = None) -> Session:
    return Session(run or secrets.token_hex(16), number, "train")


@dataclass
class Person:
    """A client with a cluster and an update, and all that it has answered."""

    name: str
    cluster: int
    update: np.ndarray
    known: KnownKeys
    key: NodeKey = field(default_factory=lambda: NodeKey(ed25519.Ed25519PrivateKey.generate()))
    clusters: int = 2
    least: int = LEAST
    state: Participant | None = None
    answers: list[tuple[Question, Answer]] = field(default_factory=list)
    offer: bytes = OFFER

    def numbers(self) -> FixedPoint:
        assert self.state is not None
        return FixedPoint.of_sums(len(self.state.cards), BOUND)

    def answer(self, question: Question) -> tuple[Answer, bytes]:
        """What the client says, after its state went to its disk and back."""
        question, blocks = read_question(to_json(question)), b""
        if self.state is not None:
            self.state = Participant.read(self.state.to_json())
        match question:
            case Opening():
                after = Participant.begin(
                    question.session, question.config, self.name, self.key, question.clusters, 2 / 3
                )
                reply = after.card
            case SumMembers():
                known = KnownKeys.load(self.known.path, fixed=self.known.fixed)
                after, reply = self._state().letters(question, known, self.least)
            case Delivery():
                block = self.numbers().encode(self.update)
                after, reply, rows = self._state().masked(question, self.offer, self.cluster, block, self.key)
                blocks = rows.tobytes()
            case Members():
                after, reply = self._state().count_shares(question)
            case Transcript():
                after, reply = self._state().block_shares(question, self.least)
        self.state = after
        self.answers.append((question, reply))
        return reply, blocks

    def _state(self) -> Participant:
        if self.state is None:
            raise RefusedError("nothing was opened")
        return self.state


@dataclass
class People:
    """The clients of a sum.

    Args:
        persons: by name.
        dropped: those who fall silent, by the stage of the question that they do not answer.
        spoil: what becomes of an answer; None: silence.
        errors: why clients refused.
    """

    persons: dict[str, Person]
    dropped: Mapping[str, str] = field(default_factory=dict)
    spoil: Callable[[str, Question, Answer, bytes], tuple[Answer, bytes] | None] = lambda n, q, a, b: (a, b)
    errors: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    rejected: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(folder: Path, clusters: list[int], length: int = 50, seed: int = 0) -> "People":
        random = np.random.default_rng(seed)
        persons = {}
        for i, cluster in enumerate(clusters):
            known = KnownKeys.load(folder / f"known-{i}", fixed=False)
            name = f"client-{i:02}"
            persons[name] = Person(name, cluster, random.normal(size=length), known, clusters=max(2, max(clusters) + 1))
        return People(persons)

    def ask(self, questions: Mapping[str, Question]) -> Iterator[tuple[str, Answer, bytes]]:
        for name, question in questions.items():
            if self.dropped.get(name) == question.stage:
                self.silent.add(name)
            if name in self.silent:
                continue
            try:
                answer = self.spoil(name, question, *self.persons[name].answer(question))
            except RefusedError as error:
                self.errors.setdefault(name, str(error))
                continue
            if answer is not None:
                yield name, *answer

    def coordinated(self, session: Session | None = None, offer: bytes = OFFER) -> CoordinatedSum:
        some = next(iter(self.persons.values()))
        length = len(some.update)
        form = lambda n: (length, FixedPoint.of_sums(n, BOUND).dtype)  # noqa: E731
        return CoordinatedSum(
            session or a_session(), CONFIG, some.clusters, form, 2 / 3, offer, self.ask, self.rejected.__setitem__
        )

    def summed(self, folder: Path, least: int = LEAST, session: Session | None = None):
        known = KnownKeys.load(folder / "known-server", fixed=False)
        return self.coordinated(session).run(list(self.persons), known, least)

    def plain(self, members, cluster: int) -> np.ndarray:
        return sum(self.persons[name].update for name in members if self.persons[name].cluster == cluster)

    def decode(self, block: np.ndarray, clients: int | None = None) -> np.ndarray:
        return FixedPoint.of_sums(clients or len(self.persons), BOUND).decode(block)


TABLE = {
    "seed": 2,
    "data": {
        "source": "digits", "clients": 6, "examples_per_client": 20, "holdout_examples": 10, "shadow_examples": 40,
        "test_examples": 20,
        "groups": {"upright": {"share": 0.5}, "turned": {"share": 0.5, "rotation": [180, 180]}},
    },
    "model": {"name": "logistic"},
    "algorithm": {"name": "ifca-mir", "clusters": 2, "rounds": 3},
    "local": {"epochs": 2, "batch_size": 10},
    "red_team": {"every": 2, "shadow_models": 2},
    "engine": {"backend": "loop"},
    "secure_aggregation": {"min_clients": 2},
}  # fmt: skip


@dataclass
class Nodes:
    """An exchange whose nodes are in this process, by Shoal's own messages."""

    folder: Path
    numbers: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    silent: Mapping[int, str] = field(default_factory=dict)
    keys: Mapping[str, object] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    seen: list[RecordDict] = field(default_factory=list)

    def connected(self) -> dict[int, Registration]:
        return {100 + number: Registration(f"key-{number}") for number in self.numbers}

    def pause(self) -> None:
        raise AssertionError("nobody else will come")

    def settings_of(self, partition: int) -> NodeSettings:
        state = {"state-dir": str(self.folder / str(partition)), "noise": "seed"}
        return NodeSettings.read({"partition-id": partition, **state, **self.keys})

    def ask(self, question, messages: Mapping[int, RecordDict], awaited, seconds, group) -> Iterator[NodeAnswer]:
        for node, content in messages.items():
            settings = self.settings_of(node - 100)
            if question == "identify":
                yield NodeAnswer(node, pack_identity(settings.name, node - 100))
                continue
            assert question == "secure"
            if self.silent.get(node - 100) == f"{group} {unpack_question(content).stage}":
                continue
            try:
                reply = secure_reply(content, settings)
            except (InputError, RefusedError) as error:
                self.refusals.append(str(error))
                reply = pack_reply(Refusal("its own log says why"))
            self.seen.append(reply)
            yield NodeAnswer(node, reply)


def served(folder: Path, nodes: Nodes, table: Mapping[str, object] = TABLE):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.toml"
    path.write_text(parse_config(table, "test").toml())
    out = {"config": str(path), "out": str(folder / "run"), "min-nodes": len(nodes.numbers) or 1, "wait-timeout": 0.0}
    serve(nodes, RunSettings.read(out))
    return state_in(folder / "run")
