"""A deployment in this process, on the wire format: the real server and the real clients, with a SuperLink between."""

import csv
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from flwr.app import RecordDict
from in_process import InProcessSuperLink

from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.engine import Engine, State
from shoal.runs.checkpoint import load_checkpoint
from shoal.simulation.play import initial_state, move_to_engine, run_rounds
from shoal_flower.client.client_round import histograms_reply, training_reply
from shoal_flower.flower_config import NodeSettings, RunSettings
from shoal_flower.server.exchange import Exchange
from shoal_flower.server.server_app import serve
from shoal_flower.wire_codec import pack_histograms, pack_identity, pack_reply, unpack_offer

TABLE = {
    "seed": 2,
    "data": {
        "source": "digits", "clients": 3, "examples_per_client": 20, "holdout_examples": 10, "shadow_examples": 40,
        "test_examples": 20,
    },
    "model": {"name": "logistic"},
    "algorithm": {"name": "fedavg", "rounds": 2},
    "local": {"epochs": 1, "batch_size": 10},
    "red_team": {"every": 0, "attack": "gap"},
    "engine": {"backend": "loop"},
}  # fmt: skip

Objects = dict[str, bytes]


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    return list(csv.DictReader(path.read_text().splitlines()))


def state_in(out: Path) -> State:
    """The state in the checkpoint of a run directory."""
    progress = load_checkpoint(out / "checkpoint")
    assert progress is not None
    return progress.state


def simulated(table: Mapping[str, object]) -> State:
    """The state after the same run in the simulator."""
    _, simulation = build(parse_config(table, "test"))
    with Engine(simulation.setup.model, threads=1, backend="loop") as engine:
        simulation = move_to_engine(simulation, engine)
        (*_, (now, _)) = run_rounds(simulation, engine, initial_state(simulation, engine))
    return now.state


def made(objects: Objects, kind: str, body: bytes, children: tuple[str, ...] = ()) -> str:
    """Add an object of the wire format to ``objects``; returns its id."""
    content = f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body
    name = hashlib.sha256(content).hexdigest()
    objects[name] = content
    return name


@dataclass(eq=False)
class Federation:
    """Three nodes; the second one may spoil its answers to a question."""

    folder: Path
    spoil: Callable[[RecordDict], RecordDict | Objects | None] = lambda reply: reply
    question: str = "train"
    changes: dict[str, object] = field(default_factory=dict)

    def serve(self, **settings: object) -> None:
        self.run(self.link(), **settings)

    def link(self) -> InProcessSuperLink:
        return InProcessSuperLink({100 + i: self.node(i) for i in range(3)})

    def run(self, link: InProcessSuperLink, **settings: object) -> None:
        self.folder.mkdir(exist_ok=True)
        path = self.folder / "run.toml"
        path.write_text(parse_config({**TABLE, **self.changes}, "test").toml())
        run = {"config": str(path), "out": str(self.out), "min-nodes": 2, "wait-timeout": 0.0, **settings}
        serve(Exchange(link.grid()), RunSettings.read(run))

    def node(self, partition: int):
        def answer(kind: str, content: Callable[[], RecordDict]) -> RecordDict | Objects | None:
            settings = NodeSettings.read(
                {"partition-id": partition, "state-dir": str(self.folder / str(partition)), "noise": "seed"}
            )
            if kind.endswith("identify"):
                reply = pack_identity(settings.name, partition)
            elif kind.endswith("histograms"):
                reply = pack_histograms(histograms_reply(unpack_offer(content()), settings))
            else:
                reply = pack_reply(training_reply(unpack_offer(content()), settings))
            return self.spoil(reply) if partition == 1 and kind.endswith(self.question) else reply

        return answer

    @property
    def out(self) -> Path:
        return self.folder / "run"

    @property
    def models(self) -> torch.Tensor:
        return state_in(self.out).models

    def events(self, kind: str) -> list[dict[str, str]]:
        return [row for row in rows_of(self.out / "events.csv") if row["kind"] == kind]
