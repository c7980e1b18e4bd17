"""What a secure sum costs a client and the server: processor time and bytes, with clients that fall silent.

    python benchmarks/secure_aggregation.py --clients 20 --parameters 50000 --clusters 4 --silent 0 3

Clients and server are in this process; every message is written, read and counted as on the wire, and a client's state
goes to its disk and back before each answer, as on a node. Training is not in it. A silent client gives its shares of
secrets and then sends nothing, which costs the server most. The sum is compared with the plain one.
"""

import argparse
import json
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.core.atomic_files import write_text
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
    Session,
    SumMembers,
    Transcript,
    pack_answer,
    read_question,
    to_json,
    unpack_answer,
)

LEAST, BOUND, SHARE, CONFIG, OFFER = 3, 10.0, 2 / 3, "seed = 0", bytes(32)


@dataclass
class Client:
    """A client with an update of one cluster, its files, and what it has cost."""

    folder: Path
    cluster: int
    update: np.ndarray
    key: NodeKey = field(default_factory=lambda: NodeKey(ec.generate_private_key(ec.SECP384R1())))
    seconds: float = 0.0
    sent: int = 0
    received: int = 0

    def answer(self, question: Question) -> tuple[Answer, bytes]:
        """The answer, as the server reads it."""
        text, began = to_json(question), time.process_time()
        self.received += len(text)
        question, path, rows = read_question(text), self.folder / "sum.json", None
        state = None if isinstance(question, Opening) else Participant.read(path.read_text())
        known = KnownKeys.load(self.folder / "pinned-keys", fixed=False)
        match question, state:
            case Opening(), _:
                name = self.folder.name
                state = Participant.begin(question.session, question.config, name, self.key, question.clusters, SHARE)
                reply = state.card
            case SumMembers(), Participant():
                state, reply = state.letters(question, known, LEAST)
            case Delivery(), Participant():
                block = FixedPoint.of_sums(len(state.cards), BOUND).encoded(self.update)
                state, reply, rows = state.masked(question, OFFER, self.cluster, block, self.key)
            case Members(), Participant():
                state, reply = state.count_shares(question)
            case Transcript(), Participant():
                state, reply = state.block_shares(question, LEAST)
            case _:
                raise AssertionError
        write_text(path, state.to_json())
        records = pack_answer(reply, rows)
        self.seconds += time.process_time() - began
        self.sent += len(to_json(reply)) + (0 if rows is None else rows.nbytes)
        return unpack_answer(records, question)


def measured(clients: int, parameters: int, clusters: int, silent: int, folder: Path) -> dict[str, object]:
    """What one sum costs, in seconds of a processor and in megabytes."""
    random = np.random.default_rng(0)
    people = {}
    for i in range(clients):
        name = f"client-{i:04}"
        (folder / name).mkdir(parents=True)
        people[name] = Client(folder / name, int(random.integers(clusters)), random.normal(0, 0.05, parameters))
    lost = set(list(people)[:silent])

    def ask(questions: Mapping[str, Question]) -> Iterator[tuple[str, Answer, bytes]]:
        for name, question in questions.items():
            if not (name in lost and isinstance(question, Delivery)):
                yield name, *people[name].answer(question)

    def form(number: int) -> tuple[int, np.dtype]:
        return parameters, FixedPoint.of_sums(number, BOUND).dtype

    session, rejected = Session(secrets.token_hex(16), 1, "train"), dict[str, str]()
    summing = CoordinatedSum(session, CONFIG, clusters, form, SHARE, OFFER, ask, rejected.__setitem__)
    wall, began = time.perf_counter(), time.process_time()
    sums = summing.carried_out(list(people), KnownKeys.load(folder / "known", fixed=False), LEAST)
    spent = time.process_time() - began - sum(client.seconds for client in people.values())
    there = [client for name, client in people.items() if name in sums.members]
    numbers, error = FixedPoint.of_sums(clients, BOUND), 0.0
    for k, block in sums.blocks.items():
        plain = sum(client.update for client in there if client.cluster == k)
        error = max(error, float(np.abs(numbers.decoded(block) - plain).max()))
    return {
        "clients": clients, "parameters": parameters, "clusters": clusters, "silent": silent,
        "members": len(sums.members), "opened": len(sums.blocks), "bits": numbers.bits, "error": error,
        "client_seconds": max(client.seconds for client in there), "server_seconds": spent,
        "client_sent_mb": max(client.sent for client in there) / 1e6,
        "client_received_mb": max(client.received for client in there) / 1e6,
        "update_mb": 4 * parameters / 1e6, "wall_seconds": time.perf_counter() - wall, "rejected": len(rejected),
    }  # fmt: skip


def main() -> None:
    """Measure, and print a line of JSON for each number of silent clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--parameters", type=int, default=50_000)
    parser.add_argument("--clusters", type=int, default=4)
    parser.add_argument("--silent", type=int, nargs="+", default=[0, 3])
    given = parser.parse_args()
    for silent in given.silent:
        with tempfile.TemporaryDirectory() as folder:
            row = measured(given.clients, given.parameters, given.clusters, silent, Path(folder))
            print(json.dumps({k: round(v, 9) if isinstance(v, float) else v for k, v in row.items()}))


if __name__ == "__main__":
    main()
