"""Rounds by secure sums: the server's and the nodes' programs, in one process, against the simulation."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="messages are Flower's, which needs the extra: pip install 'shoal[flower]'")

import torch
from flwr.app import RecordDict

from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.core.errors import InputError
from shoal.deployment.flower_config import NodeSettings, RunSettings
from shoal.deployment.flower_records import pack_identity, pack_reply
from shoal.deployment.messages import Refusal
from shoal.deployment.secure_sums.protocol_messages import RefusedError
from shoal.deployment.secure_sums.secure_client import secure_reply
from shoal.deployment.secure_sums.secure_records import unpack_question
from shoal.deployment.server.exchange import Answer
from shoal.deployment.server.server_app import serve
from shoal.engine import Engine
from shoal.runs.checkpoint import load_checkpoint
from shoal.simulation.simulation import initial_state, move_to_engine, run_rounds

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

    def connected(self) -> list[int]:
        return [100 + number for number in self.numbers]

    def pause(self) -> None:
        raise AssertionError("nobody else will come")

    def settings_of(self, partition: int) -> NodeSettings:
        state = {"state-dir": str(self.folder / str(partition)), "noise": "seed"}
        return NodeSettings.read({"partition-id": partition, **state, **self.keys})

    def ask(self, question, messages: Mapping[int, RecordDict], awaited, seconds, group) -> Iterator[Answer]:
        for node, content in messages.items():
            settings = self.settings_of(node - 100)
            if question == "identify":
                yield Answer(node, pack_identity(settings.name, node - 100))
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
            yield Answer(node, reply)


def served(folder: Path, nodes: Nodes, table: Mapping[str, object] = TABLE):
    path = folder / "run.toml"
    path.write_text(parse_config(table, "test").toml())
    out = {"config": str(path), "out": str(folder / "run"), "min-nodes": len(nodes.numbers), "wait-timeout": 0.0}
    serve(nodes, RunSettings.read(out))
    progress = load_checkpoint(folder / "run" / "checkpoint")
    assert progress is not None
    return progress.state


def simulated(table: Mapping[str, object]):
    _, simulation = build(parse_config(table, "test"))
    with Engine(simulation.setup.model, threads=1, backend="loop") as engine:
        simulation = move_to_engine(simulation, engine)
        (*_, (now, _)) = run_rounds(simulation, engine, initial_state(simulation, engine))
    return now.state


def rows_of(folder: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "run" / name).read_text().splitlines()))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": {"name": "fedavg", "rounds": 3}, "red_team": {"every": 0}},
        {"algorithm": {"name": "hypcluster", "rounds": 3}, "red_team": {"every": 0}},
        {"algorithm": {"name": "fedopt", "rounds": 3, "base": {"name": "ifca"}}, "red_team": {"every": 0}},
        {"algorithm": {"name": "ditto", "rounds": 3}, "red_team": {"every": 0}},
    ],
)
def test_a_run_by_secure_sums_is_the_simulation_but_for_rounding(tmp_path, changes):
    table = {**TABLE, **changes}
    state, expected = served(tmp_path, Nodes(tmp_path), table), simulated(table)
    assert (state.models - expected.models).abs().max() < 1e-5
    assert torch.bincount(state.assignment).tolist() == torch.bincount(expected.assignment).tolist()
    assert (state.risks - expected.risks).abs().max() < 0.02
    sums = rows_of(tmp_path, "sums.csv")
    assert [int(row["clients"]) for row in sums if row["round"] == "3"] == torch.bincount(expected.assignment).tolist()
    assert {"cluster", "examples"}.isdisjoint(rows_of(tmp_path, "clients.csv")[0])


def test_nothing_that_the_server_is_sent_or_keeps_is_of_one_client(tmp_path):
    nodes = Nodes(tmp_path)
    served(tmp_path, nodes)
    assert all(set(reply) <= {"secure", "blocks", "refusal"} for reply in nodes.seen)
    kept = {path.name for path in (tmp_path / "run").iterdir()}
    assert "sums.csv" in kept
    assert (tmp_path / "0" / "secure-sums").stat().st_mode & 0o077 == 0
    assert not (tmp_path / "0" / "secure-sums" / "sum.json").exists(), "secrets of a sum that is over are forgotten"
