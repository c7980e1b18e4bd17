"""A client leaves a federation for good: by the operator's word, or by its own."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import sums_in_process
import wire_federation
from shoal.config.schema import parse_config
from shoal.core.errors import InputError
from shoal_flower.client import client_app
from shoal_flower.client.policy import Ledger
from shoal_flower.flower_config import RunSettings
from shoal_flower.messages import LEAVES
from shoal_flower.server.exchange import NodeReply, Registration
from shoal_flower.server.roster import Roster
from shoal_flower.server.server_app import serve
from wire_federation import rows_of, simulated, state_in

HANDLERS = {
    "identify": client_app.identify,
    "features": client_app.features,
    "train": client_app.train,
    "histograms": client_app.count,
    "votes": client_app.vote,
    "secure": client_app.add_up,
}
TABLE = {**wire_federation.TABLE, "algorithm": {"name": "fedavg", "rounds": 3}}


def answer(question: str, config: Mapping[str, object], content: RecordDict) -> RecordDict:
    """What a node of this configuration answers."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 7
    kind = question if question == "train" else f"query.{question}"
    message = Message(content=content, dst_node_id=7, message_type=kind)
    context = Context(run_id=1, node_id=7, node_config=dict(config), state=RecordDict(), run_config={})
    return HANDLERS[question](message, context).content


@dataclass
class Nodes:
    """An exchange with the ClientApps of nodes 100, 101, ....

    Args:
        folder: of the clients' states.
        clients: how many.
        leavers: the node configuration of these partitions has ``leave``; by the first round in which it does.
        restarted: whether they come back at another node then.
        killed: the round in whose training the server is killed.
    """

    folder: Path
    clients: int = 3
    leavers: Mapping[int, int] = field(default_factory=dict)
    restarted: bool = True
    killed: int = 0
    round: int = 0
    asked: list[tuple[int, str, int]] = field(default_factory=list)

    def connected(self) -> dict[int, Registration]:
        self.round += 1
        moved = {i for i in self.leavers if self.restarted and self.has_left(i)}
        return {100 + i + 1000 * (i in moved): Registration(f"key-{i}") for i in range(self.clients)}

    def has_left(self, partition: int) -> bool:
        return self.round >= self.leavers.get(partition, 99)

    def config(self, partition: int) -> dict[str, object]:
        own = {"partition-id": partition, "state-dir": str(self.folder / str(partition)), "noise": "seed"}
        return own | ({"leave": True} if self.has_left(partition) else {})

    def ask(self, question, messages: Mapping[int, RecordDict], awaited, seconds, group) -> Iterator[NodeReply]:
        if question == "train" and self.round == self.killed:
            raise KeyboardInterrupt
        for node, content in messages.items():
            partition = node % 1000 - 100
            self.asked.append((int(group), question, partition))
            yield NodeReply(node, answer(question, self.config(partition), content))

    def questions(self, partition: int) -> list[tuple[int, str]]:
        return [(number, question) for number, question, other in self.asked if other == partition]


def run(nodes: Nodes, table: Mapping[str, object] = TABLE, name: str = "run", **settings: object) -> Path:
    """The directory of a run by these nodes, which resumes the one before."""
    path, out = nodes.folder / "run.toml", nodes.folder / name
    path.write_text(parse_config(table, "test").toml())
    given = {"config": str(path), "out": str(out), "min-nodes": 2, "wait-timeout": 0.0, **settings}
    serve(nodes, RunSettings.read(given))
    return out


def resumed(folder: Path, table: Mapping[str, object] = TABLE, killed: int = 2, **settings: object) -> Nodes:
    """The nodes of a run that was killed in a round and resumes with other settings."""
    with pytest.raises(KeyboardInterrupt):
        run(Nodes(folder, killed=killed), table)
    nodes = Nodes(folder)
    run(nodes, table, **settings)
    return nodes


def kinds(out: Path, client: str) -> list[tuple[str, str]]:
    return [(row["round"], row["kind"]) for row in rows_of(out / "events.csv") if row["client"] == client]


IFCA_MIR = {
    "algorithm": {"name": "ifca-mir", "clusters": 2, "rounds": 3},
    "red_team": {"every": 1, "shadow_models": 2},
    "privacy": {"thresholds": [0.5, 0.55], "beta": 1.0},
}


@pytest.mark.usefixtures("_unrendered_figures")
@pytest.mark.parametrize(
    "changes",
    [{}, {"algorithm": {**TABLE["algorithm"], "participation": 0.67}}, IFCA_MIR,
     {"algorithm": {"name": "cfl", "eps1": 10.0, "eps2": 0.0, "rounds": 3}}],
    ids=["fedavg", "participation", "ifca-mir", "cfl"],
)  # fmt: skip
@pytest.mark.parametrize("by", ["operator", "node"])
def test_a_run_that_a_client_leaves_is_the_simulators(tmp_path, changes, by):
    table, out = {**TABLE, **changes}, tmp_path / "run"
    if by == "operator":
        nodes = resumed(tmp_path, table, leave="partition-1")
    else:
        nodes = Nodes(tmp_path, leavers={1: 2})
        run(nodes, table)
    expected, state = simulated({**table, "events": [{"round": 2, "leave": [1]}]}), state_in(out)
    assert torch.equal(state.models, expected.models)
    assert torch.equal(state.risks, expected.risks)
    assert torch.equal(state.assignment, expected.assignment)
    assert torch.equal(state.trained, expected.trained)
    # The leaver is asked for its name alone, where it has no known key.
    assert [asked for asked in nodes.questions(1) if asked[1] != "identify" and asked[0] > 1] == []
    assert [row["name"] for row in rows_of(out / "clients.csv")] == ["partition-0", "partition-2"]
    assert ("2", "left") in kinds(out, "partition-1")
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["clients"], summary["events.left"]) == (2, 1)
    counted = [summary[f"clusters.{k}.clients"] for k in range(len(state.models))]
    assert sum(counted) == int((state.assignment[[0, 2]] >= 0).sum())
    assert "left for good" in (out / "report.html").read_text()


def test_a_secure_sum_goes_on_without_the_leaver(tmp_path):
    table = {
        **sums_in_process.TABLE,
        "algorithm": {"name": "ifca", "clusters": 2, "rounds": 3},
        "red_team": {"every": 0},
    }
    out = run(Nodes(tmp_path, clients=6, leavers={5: 2}), table, **{"min-nodes": 4})
    expected = simulated({**table, "events": [{"round": 2, "leave": [5]}]})
    assert (state_in(out).models - expected.models).abs().max() < 1e-5
    sums = rows_of(out / "sums.csv")
    assert [sum(int(row["clients"]) for row in sums if row["round"] == number) for number in "123"] == [6, 5, 5]
    assert len(rows_of(out / "clients.csv")) == 5


def test_a_node_that_the_server_never_saw_restart_leaves_by_its_refusal(tmp_path):
    nodes = Nodes(tmp_path, leavers={1: 2}, restarted=False)
    out = run(nodes)
    assert nodes.questions(1) == [(1, "identify"), (1, "train"), (2, "train")]
    assert kinds(out, "partition-1") == [("1", "joined"), ("2", "refused"), ("3", "left")]
    ledger = Ledger.load(tmp_path / "1" / "ledger.json")
    assert json.loads((tmp_path / "ledgers.json").read_text())["partition-1"] == list(ledger.stamp)


def test_a_client_that_never_trained_leaves_too(tmp_path):
    nodes = Nodes(tmp_path, leavers={1: 1})
    out = run(nodes)
    assert nodes.questions(1) == [(1, "identify")]
    assert kinds(out, "partition-1") == [("1", "joined"), ("1", "left")]
    never = simulated({**TABLE, "events": [{"round": 1, "leave": [1]}]})
    assert torch.equal(state_in(out).models, never.models)


def test_a_leaver_is_neither_counted_nor_named_among_the_absent(tmp_path):
    with pytest.raises(InputError, match=r"'min-nodes' = 3 clients must connect .* .got 2.$"):
        resumed(tmp_path, leave="partition-1", **{"min-nodes": 3})


@pytest.mark.parametrize("fate", ["new", "without the key", "older copy"])
def test_who_left_stays_away_when_the_run_resumes_with_any_copy_of_its_clients(tmp_path, fate):
    with pytest.raises(KeyboardInterrupt):
        run(Nodes(tmp_path, killed=2))
    path = tmp_path / "run" / "nodes.json"
    rows = json.loads(path.read_text())
    for row in rows:
        assert row.pop("last") is None
    path.write_text(json.dumps(rows))
    if fate != "without the key":
        before = path.read_text()
        with pytest.raises(KeyboardInterrupt):
            run(Nodes(tmp_path, killed=1), leave="partition-1")
        assert [client.last for client in Roster.load(path).clients] == [None, 1, None]
        if fate == "older copy":
            path.write_text(before)
    nodes = Nodes(tmp_path)
    out = run(nodes, leave="" if fate == "new" else " partition-1, ")
    assert torch.equal(state_in(out).models, simulated({**TABLE, "events": [{"round": 2, "leave": [1]}]}).models)
    assert nodes.questions(1) == []
    assert [row["name"] for row in rows_of(out / "clients.csv")] == ["partition-0", "partition-2"]


def test_a_name_that_is_unknown_ends_the_run_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match=r"'leave' must name clients of this run \(got 'partition-0'\); clients join"):
        run(Nodes(tmp_path), leave="partition-0")
    assert not (tmp_path / "run").exists()
    with pytest.raises(KeyboardInterrupt):
        run(Nodes(tmp_path, killed=2))
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"\(got 'partition1'\); did you mean 'partition-1'\?"):
        run(Nodes(tmp_path), leave="partition-0, partition1")
    assert files == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


def test_a_closed_ledger_refuses_every_question_alike_and_costs_nothing(tmp_path):
    run(Nodes(tmp_path), {**TABLE, "defenses": {"dp_sgd": {"noise_multiplier": 1.0}}})
    path, own = tmp_path / "1" / "ledger.json", {"partition-id": 1, "state-dir": str(tmp_path / "1")}
    spent = Ledger.load(path)
    # Also questions that mean nothing, and after 'leave' is taken out again.
    for config in ({**own, "leave": True}, own):
        replies = [answer(question, config, RecordDict()) for question in HANDLERS if question != "identify"]
        assert {str(reply["refusal"]["reason"]) for reply in replies} == {LEAVES}
        assert {str(reply["ledger"]["hash"]) for reply in replies} == {Ledger.load(path).stamp[1]}
    closed = Ledger.load(path)
    assert closed.chain[:-1] == spent.chain
    assert (closed.closed, closed.epsilon(1e-5)) == (True, spent.epsilon(1e-5))


def test_a_copy_of_the_ledger_from_before_the_client_left_is_caught(tmp_path):
    path, copy = tmp_path / "1" / "ledger.json", tmp_path / "copy.json"
    with pytest.raises(KeyboardInterrupt):
        run(Nodes(tmp_path, killed=2))
    shutil.copy(path, copy)
    run(Nodes(tmp_path, leavers={1: 1}))
    shutil.copy(copy, path)
    nodes = Nodes(tmp_path)
    out = run(nodes, name="second")
    assert [kind for _, kind in kinds(out, "partition-1")] == ["joined", "refused", "refused", "refused"]
    assert path.read_bytes() == copy.read_bytes(), "nothing is charged"
