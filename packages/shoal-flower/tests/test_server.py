"""The server's rounds with nodes that are functions: who is merged, who is not, and going on after a kill."""

import hashlib
import json
import re
import resource
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from flwr.app import MetricRecord, RecordDict

import wire_federation
from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.core.errors import InputError, ShoalError
from shoal.engine import Engine
from shoal.models import Features
from shoal.runs.directory import lock_folder
from shoal.simulation.play import initial_state, move_to_engine
from shoal_flower.client.client_round import histograms_reply, training_reply, vote_reply
from shoal_flower.client.node_data import asked_run, keep_features, load_features, open_client
from shoal_flower.client.policy import Ledger, NotAllowedError
from shoal_flower.flower_config import NodeSettings, RunSettings
from shoal_flower.messages import Offer, Refusal
from shoal_flower.server import attendance, server_app
from shoal_flower.server.exchange import NodeReply, Registration
from shoal_flower.server.roster import Member
from shoal_flower.server.server_app import serve
from shoal_flower.server.server_rounds import Progress, Server
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
from wire_federation import rows_of, simulated, state_in

TABLE = {
    **wire_federation.TABLE,
    "algorithm": {"name": "ifca-mir", "clusters": 2, "rounds": 3},
    "red_team": {"every": 2, "shadow_models": 2},
}


@dataclass
class Nodes:
    """An exchange whose nodes are in this process.

    Args:
        folder: of the clients' states.
        numbers: the partitions, whose nodes are 100 + partition.
        spoil: what becomes of a reply in a round, by partition; None is silence.
        away: the partitions that are not connected, asked before each round.
    """

    folder: Path
    numbers: tuple[int, ...] = (0, 1, 2)
    spoil: Callable[[int, int, RecordDict], RecordDict | None] = lambda number, partition, reply: reply
    away: Callable[[], set[int]] = set
    asked: list[tuple[str, int]] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    pauses: int = 0

    def connected(self) -> dict[int, Registration]:
        away = self.away()
        return {100 + i: Registration(f"key-{i}") for i in self.numbers if i not in away}

    def pause(self) -> None:
        self.pauses += 1

    def settings_of(self, partition: int) -> NodeSettings:
        return NodeSettings.read(
            {
                "partition-id": partition, "state-dir": str(self.folder / str(partition)), "noise": "seed",
                "allow-code": "damped:Damped, bodies:Pretrained",
            }
        )  # fmt: skip

    def ask(self, question, messages: Mapping[int, RecordDict], awaited, seconds, group) -> Iterator[NodeReply]:
        for node, content in reversed(messages.items()):
            partition = node - 100
            self.asked.append((question, partition))
            settings = self.settings_of(partition)
            if question == "identify":
                yield NodeReply(node, pack_identity(settings.name, partition))
                continue
            if question == "features":
                digest, map_ = unpack_features(content)
                yield NodeReply(node, pack_kept_features(keep_features(settings.folder, digest, map_)))
                continue
            offer = unpack_offer(content)
            self.offers.append(offer)
            if question == "histograms":
                reply = pack_histograms(histograms_reply(offer, settings))
            elif question == "votes":
                reply = pack_vote(vote_reply(offer, settings))
            else:
                reply = pack_reply(training_reply(offer, settings))
            pack_stamp(reply, Ledger.load(settings.folder / "ledger.json").stamp)
            spoiled = self.spoil(offer.round, partition, reply)
            if spoiled is not None:
                yield NodeReply(node, spoiled)


def table_of(folder: Path, name: str) -> NodeSettings:
    """The settings of the node of a client with a table."""
    return NodeSettings.read(
        {"client": name, "data-path": str(folder / f"{name}.csv"), "state-dir": str(folder / name)}
    )


class OwnTables(Nodes):
    """Nodes with a table each, of the clients "north" and "south"."""

    def settings_of(self, partition: int) -> NodeSettings:
        name = ("north", "south")[partition]
        return table_of(self.folder, name)


def settings(folder: Path, table: Mapping[str, object] = TABLE, **keys: object) -> RunSettings:
    path = folder / "run.toml"
    path.write_text(parse_config(table, "test").toml())
    return RunSettings.read(
        {"config": str(path), "out": str(folder / "run"), "min-nodes": 3, "wait-timeout": 0.0, **keys}
    )


def state_of(folder: Path):
    return state_in(folder / "run")


def events_of(folder: Path) -> list[dict[str, str]]:
    return rows_of(folder / "run" / "events.csv")


def clients_of(folder: Path, *columns: str) -> list[tuple[str, ...]]:
    return [tuple(row[name] for name in ("name", *columns)) for row in rows_of(folder / "clients.csv")]


def rounds_and_kinds(folder: Path, client: str) -> list[tuple[str, str]]:
    return [(row["round"], row["kind"]) for row in events_of(folder) if row["client"] == client]


@pytest.fixture(autouse=True)
def _tracebacks(monkeypatch):
    """The server's program switches tracebacks off in its process, here that of all tests."""
    monkeypatch.setattr(sys, "tracebacklimit", None, raising=False)


IFCA2 = {"name": "ifca", "clusters": 2}
ALGORITHMS = [
    {"name": "fedavg"},
    {"name": "cfl", "eps1": 10.0, "eps2": 0.0},
    {"name": "fedsoft"},
    {"name": "ditto", "base": IFCA2},
    {"name": "hypcluster", "clusters": 2, "optimizer": "adam", "server_learning_rate": 0.1},
    {"name": "fedprox", "base": IFCA2, "mu": 0.5},
    {"name": "ifca-within-limit", "clusters": 2},
    {"name": "risk-aware-choice", "base": {"name": "fedopt", "base": IFCA2}},
    {"name": "priced-choice", "base": IFCA2, "prices": [0.2, 0.0]},
    {"name": "fedopt", "base": {"name": "median", "base": IFCA2}},
    {"name": "trimmed-mean", "base": {"name": "fedavg"}, "trim": 0.4},
    {"name": "multi-krum", "base": {"name": "ditto", "base": IFCA2}, "byzantine": 1},
    {"name": "damped:Damped", "base": {"name": "ifca-mir", "clusters": 2}},
]
CHANGES = {
    "ifca-mir": {},
    "histograms": {
        "red_team": {"every": 2, "estimator": "histogram", "attack": "loss-threshold", "histogram_epsilon": 1.0}
    },
    "defenses": {"defenses": {"dp_sgd": {"noise_multiplier": 0.5}, "max_update_norm": 0.1}},
    "participation": {"algorithm": {"name": "ifca-mir", "clusters": 2, "rounds": 3, "participation": 0.67}},
    "features": {"model": {"name": "logistic", "features": {"maps": ["scattering", "pca"], "dimension": 6}}},
    "coordinator": {
        "data": {**TABLE["data"], "holdout_examples": 0},
        "red_team": {"every": 1, "shadow_models": 2},
        "privacy": {"thresholds": [0.5, 0.51], "beta": 0.5},
        "coordinator": {"l2": 0.1, "gain": 1.0, "max_cost": 1.0, "vote_epsilon": 1.0},
    },
    **{algorithm["name"]: {"algorithm": {**algorithm, "rounds": 3}} for algorithm in ALGORITHMS},
}
CHANGES["multi-krum"]["data"] = {**TABLE["data"], "clients": 5}
# Choices that only the risk decides.
for chooser in ("ifca-mir", "risk-aware-choice", "ifca-within-limit"):
    CHANGES[chooser] |= {
        "privacy": {"thresholds": [0.5, 0.55], "beta": 1.0},
        "red_team": {"every": 1, "shadow_models": 2},
    }


@pytest.mark.usefixtures("_unrendered_figures")
@pytest.mark.parametrize("name", CHANGES)
def test_a_run_is_the_simulators(tmp_path, monkeypatch, name):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "docs" / "examples"))
    table = {**TABLE, **CHANGES[name]}
    nodes = Nodes(tmp_path, numbers=tuple(range(table["data"]["clients"])))
    serve(nodes, settings(tmp_path, table))
    expected, deployed = simulated(table), state_of(tmp_path)
    if name == "cfl":
        assert len(deployed.models) > 1
        assert {len(offer.models) for offer in nodes.offers} == {1}, "a client is sent its own model alone"
    # FedSoft's pull is towards a mixture of models, whose last bits hang on how many mixtures are computed at once.
    same = torch.allclose if name == "fedsoft" else torch.equal
    assert same(deployed.models, expected.models)
    assert torch.equal(deployed.risks, expected.risks)
    assert torch.equal(deployed.assignment, expected.assignment)
    assert deployed.directives.keys() == expected.directives.keys()
    assert all(torch.equal(deployed.directives[name], values) for name, values in expected.directives.items())
    assert (name == "coordinator") == any(bool(values.any()) for values in deployed.directives.values())


class Refusing(Nodes):
    """Nodes that answer as the client's program does where it refuses."""

    def ask(self, question, messages, awaited, seconds, group):
        for node, content in messages.items():
            try:
                yield from super().ask(question, {node: content}, awaited, seconds, group)
            except NotAllowedError as refused:
                yield NodeReply(node, pack_reply(Refusal(refused.reason)))


def test_a_map_of_features_is_sent_once_and_again_to_a_node_that_lost_it(tmp_path):
    def lose(number, partition, reply):
        if number == 1 and partition == 1:
            (kept,) = (tmp_path / "1" / "features").iterdir()
            kept.write_bytes(kept.read_bytes()[:-1])
            open_client.cache_clear()
            asked_run.cache_clear()
        return reply

    nodes = Refusing(tmp_path, spoil=lose)
    serve(nodes, settings(tmp_path, {**TABLE, **CHANGES["features"]}))
    asked = [partition for question, partition in nodes.asked if question == "features"]
    assert sorted(asked) == [0, 1, 1, 2]
    assert rounds_and_kinds(tmp_path, "partition-1") == [("1", "joined"), ("2", "refused")]
    (kept,) = (tmp_path / "1" / "features").iterdir()
    assert kept.read_bytes() == (tmp_path / "run" / "features.safetensors").read_bytes()
    assert all(offer.features == kept.stem for offer in nodes.offers)


def test_a_map_that_is_not_what_its_hash_says_is_not_kept(tmp_path):
    inputs = torch.rand(9, 4, generator=torch.Generator().manual_seed(0))
    content = Features(("pca",), dimension=2).fit(inputs).to_bytes()
    for digest, given, words in (
        ("0" * 64, content, "must have the hash"),
        (hashlib.sha256(b"no").hexdigest(), b"no", "is damaged"),
        ("../../x", content, "is not a hash"),
    ):
        with pytest.raises(InputError, match=words):
            keep_features(tmp_path / "node", digest, given)
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    with pytest.raises(InputError, match="is not a hash"):
        load_features(tmp_path / "node", "../../x")
    digest = hashlib.sha256(content).hexdigest()
    assert keep_features(tmp_path / "node", digest, content) == digest
    assert load_features(tmp_path / "node", digest).to_bytes() == content


def test_rounds_that_every_client_refuses_leave_the_models_as_they_were_and_end_the_run(tmp_path):
    nodes = Nodes(tmp_path, spoil=lambda number, partition, reply: pack_reply(Refusal("no")))
    with pytest.raises(InputError, match="round 3: in 3 consecutive rounds no client's update was merged"):
        serve(nodes, settings(tmp_path))
    assert state_of(tmp_path).round == 2
    assert not (tmp_path / "run" / "summary.json").exists()
    _, simulation = build(parse_config(TABLE, "test"))
    with Engine(simulation.setup.model, threads=1, backend="loop") as engine:
        first = initial_state(move_to_engine(simulation, engine), engine).state.models
    assert torch.equal(state_of(tmp_path).models, first)


def test_models_are_sent_once_a_round_and_the_chosen_one_comes_back_without_what_a_client_tolerates(tmp_path):
    replies = []
    nodes = Nodes(tmp_path, spoil=lambda number, partition, reply: replies.append(reply) or reply)
    serve(nodes, settings(tmp_path))
    assert sorted(nodes.asked) == sorted([("identify", i) for i in range(3)] + 3 * [("train", i) for i in range(3)])
    assert all(offer.models.shape == (2, 650) for offer in nodes.offers)
    assert all(set(reply) == {"model", "update"} for reply in replies)
    assert all(set(reply["update"]) == {"cluster", "examples"} for reply in replies)


def test_a_client_whose_ledger_is_gone_stops_also_in_another_run_and_the_others_go_on(tmp_path):
    serve(Nodes(tmp_path), settings(tmp_path))
    assert json.loads((tmp_path / "ledgers.json").read_text())["partition-1"][0] == 6
    (tmp_path / "1" / "ledger.json").unlink()

    serve(Refusing(tmp_path), settings(tmp_path, out=str(tmp_path / "second")))
    assert clients_of(tmp_path / "second", "rounds", "refused") == [
        ("partition-0", "3", "0"), ("partition-1", "0", "3"), ("partition-2", "3", "0")
    ]  # fmt: skip
    assert json.loads((tmp_path / "ledgers.json").read_text())["partition-0"][0] == 12
    assert not (tmp_path / "1" / "ledger.json").exists()


def test_a_rejected_reply_is_logged_counted_and_never_merged(tmp_path):
    def spoil(number: int, partition: int, reply: RecordDict) -> RecordDict:
        if (number, partition) == (2, 1):
            reply["update"] = MetricRecord({"cluster": 7, "examples": 20})
        return reply

    serve(Nodes(tmp_path, spoil=spoil), settings(tmp_path))
    alone = tmp_path / "without"
    alone.mkdir()
    serve(Nodes(alone, spoil=lambda n, p, reply: None if (n, p) == (2, 1) else reply), settings(alone))
    assert torch.equal(state_of(tmp_path).models, state_of(alone).models)
    (rejected,) = [row for row in events_of(tmp_path) if row["kind"] == "rejected"]
    assert (rejected["round"], rejected["client"], rejected["node"]) == ("2", "partition-1", "101")
    assert "cluster 7" in rejected["reason"]
    assert "round 2: client partition-1 (node 101) rejected" in (tmp_path / "run" / "run.log").read_text()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["events.rejected"] == 1
    assert "events.missed" not in summary
    assert json.loads((alone / "run" / "summary.json").read_text())["events.missed"] == 1
    assert clients_of(tmp_path / "run", "rounds", "rejected") == [
        ("partition-0", "3", "0"), ("partition-1", "2", "1"), ("partition-2", "3", "0")
    ]  # fmt: skip


def test_a_killed_server_goes_on_after_its_last_round_bit_for_bit(tmp_path):
    def kill(number: int, partition: int, reply: RecordDict) -> RecordDict:
        if number == 3:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        serve(Nodes(tmp_path, spoil=kill), settings(tmp_path))
    again = Nodes(tmp_path)
    serve(again, settings(tmp_path))
    assert [asked for asked in again.asked if asked[0] == "train"] == [("train", i) for i in (2, 1, 0)]
    assert torch.equal(state_of(tmp_path).models, simulated(TABLE).models)


@pytest.mark.parametrize(
    ("is_away", "expected"),
    [
        (lambda rounds: 1 not in rounds, [("2", "joined")]),
        (lambda rounds: rounds[-1:] == [1], [("1", "joined"), ("2", "disconnected"), ("3", "returned")]),
    ],
    ids=["comes later", "disconnects and comes back"],
)
def test_a_client_that_is_away_for_some_rounds_is_one_client(tmp_path, is_away, expected):
    rounds = []
    nodes = Nodes(tmp_path, spoil=lambda number, partition, reply: rounds.append(number) or reply)
    nodes.away = lambda: {2} if is_away(rounds) else set()
    serve(nodes, settings(tmp_path, **{"min-nodes": 2}))
    assert rounds_and_kinds(tmp_path, "partition-2") == expected
    assert len(state_of(tmp_path).assignment) == 3


def test_the_absent_are_named_in_the_log_in_the_progress_and_in_the_error(tmp_path, monkeypatch):
    clock, nodes = [0.0], Nodes(tmp_path)
    monkeypatch.setattr(attendance, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    nodes.pause = lambda: clock.__setitem__(0, clock[0] + 1)
    # Two leave after the first round; one comes back after 30 seconds, the other never does.
    nodes.away = lambda: ({1} if clock[0] < 30 else set()) | {2} if ("train", 0) in nodes.asked else set()
    seen: list[Progress] = []
    with pytest.raises(InputError, match=r"'min-nodes' = 3 clients .*got 2.*; absent: partition-2"):
        serve(nodes, settings(tmp_path, **{"wait-timeout": 60.0}), seen.append)
    waits = [(each.round, each.missing, each.waits_for) for each in seen if each.missing]
    assert waits == [(2, 2, ("partition-1", "partition-2"))] * 30 + [(2, 1, ("partition-2",))] * 32
    assert seen[0] == Progress(0)
    said = re.findall(r"round 2: waiting for (.+): (\d) of 'min-nodes' = 3", (tmp_path / "run" / "run.log").read_text())
    assert said == [("partition-1, partition-2", "1")] * 3 + [("partition-2", "2")]  # After 5, 10, 20 and 40 seconds.


def test_a_server_that_does_not_hold_the_directory_leaves_its_progress_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(server_app, "Exchange", lambda grid: grid)
    given = settings(tmp_path, {**TABLE, "seed": 5})
    given.out.mkdir()
    config = {"config": str(given.config), "out": str(given.out), "min-nodes": 3}
    with lock_folder(given.out):
        with pytest.raises(InputError, match="in use by another run"):
            server_app.main(Nodes(tmp_path), SimpleNamespace(run_config=config))
        assert not (given.out / "progress.json").exists()
    (given.out / "config.toml").write_text(parse_config(TABLE, "test").toml())
    with pytest.raises(InputError, match=r"seed = 2 \(got 5\)"):
        server_app.main(Nodes(tmp_path), SimpleNamespace(run_config=config))
    assert not (given.out / "progress.json").exists()


def test_tables_are_standardised_by_the_servers_wherever_they_are(tmp_path):
    """Else clients that differ by a shift would all look alike, and none like the server's test set."""
    shifted = {"server": 0, "north": 3, "south": 30}
    for name, by in shifted.items():
        rows = [f"{name},{'ill' if i % 2 else 'well'},{i % 5 + by},{7 + by}" for i in range(20)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["who,state,dose,ward", *rows]) + "\n")
    data = {"source": "table", "path": str(tmp_path / "server.csv"), "client": "who", "label": "state"}
    table = {
        "data": data, "model": {"name": "logistic"}, "algorithm": {"name": "fedavg", "rounds": 1},
        "red_team": {"every": 0, "attack": "gap"},
    }  # fmt: skip
    nodes = OwnTables(tmp_path, numbers=(0, 1))
    serve(nodes, settings(tmp_path, table, **{"min-nodes": 2}))
    (offer, _), inputs = nodes.offers, {}
    assert offer.scale.inputs == ("dose", "ward")
    for name in ("north", "south"):
        clients = open_client(
            asked_run(offer.config, table_of(tmp_path, name), offer.classes, offer.scale)
        ).federation.clients
        inputs[name] = clients.x[clients.indices]
        original = inputs[name][:, 0].double() * offer.scale.std[0] + offer.scale.mean[0]
        assert {round(dose, 3) for dose in original.tolist()} <= {i + shifted[name] for i in range(5)}
        assert (inputs[name][:, 1] == 0).all(), "constant at the server"
    assert inputs["south"][:, 0].min() > inputs["north"][:, 0].max() + 10
    (tmp_path / "north.csv").write_text((tmp_path / "north.csv").read_text().replace("dose", "weight", 1))
    open_client.cache_clear()
    with pytest.raises(InputError, match="has no column 'dose'"):
        open_client(asked_run(offer.config, table_of(tmp_path, "north"), offer.classes, offer.scale))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": {"name": "scaffold", "rounds": 2}}, "does not run on several machines"),
        ({"red_team": {"every": 1, "estimator": "audit"}}, "must be 'shadow' or 'histogram'"),
        ({"canaries": {"per_client": 2}}, "is allowed in simulations only"),
        (
            {"events": [{"round": 2, "leave": [0]}]},
            r"\[\[events\]\] is allowed in simulations only; use 'leave' in the run",
        ),
        ({"forgetting": {"method": "exact"}}, r"must be 'continue' on several machines \(got 'exact'\); .* a new run"),
        (
            {"model": {"name": "logistic", "features": {"maps": ["torch.nn:Identity"]}}},
            "'model.features.maps' must be .*got 'torch.nn:Identity'",
        ),
        ({"coordinator": {"pooling": 0.5}}, "'coordinator.pooling' is allowed in simulations only"),
    ],
)
def test_what_a_server_cannot_do_is_said_before_anybody_is_asked(tmp_path, changes, words):
    nodes = Nodes(tmp_path)
    with pytest.raises(InputError, match=words):
        serve(nodes, settings(tmp_path, {**TABLE, **changes}))
    assert not nodes.asked
    assert not (tmp_path / "run").exists()


@dataclass
class Silent(Nodes):
    """Nodes, some of them silent.

    Args:
        is_silent: whether a node does not answer a question in a round.
        late: an answer that comes late, to the first training.
    """

    is_silent: Callable[[int, str, str], bool] = lambda node, question, group: False
    late: NodeReply | None = None
    awaited: list[tuple[str, str, set[int]]] = field(default_factory=list)

    def ask(self, question, messages, awaited, seconds, group):
        self.awaited.append((question, group, awaited))
        if self.late is not None and (question, group) == ("train", "1"):
            yield self.late
        answering = {node: text for node, text in messages.items() if not self.is_silent(node, question, group)}
        yield from super().ask(question, answering, awaited, seconds, group)


def test_a_node_that_never_says_who_it_is_is_waited_for_once_and_named(tmp_path):
    nodes = Silent(tmp_path, numbers=(0, 1, 2, 3), is_silent=lambda node, question, group: node == 103)
    serve(nodes, settings(tmp_path))
    identified = [(group, 103 in awaited) for question, group, awaited in nodes.awaited if question == "identify"]
    assert identified == [("1", True), ("2", False), ("3", False)]
    (row,) = [row for row in events_of(tmp_path) if row["node"] == "103"]
    assert (row["round"], row["kind"], row["client"]) == ("1", "missed", "unknown")
    assert row["reason"].endswith("is its task worker running?")


def test_a_node_that_says_late_who_it_is_is_waited_for_again(tmp_path):
    nodes = Silent(
        tmp_path,
        is_silent=lambda node, question, group: (node, question, group) == (102, "identify", "1"),
        late=NodeReply(102, pack_identity("partition-2", 2), late=True),
    )
    serve(nodes, settings(tmp_path, **{"min-nodes": 2}))
    assert ("identify", "2", {102}) in nodes.awaited
    assert rounds_and_kinds(tmp_path, "partition-2") == [("2", "joined")]


def test_a_node_that_did_not_answer_is_waited_for_again_where_too_few_are_there(tmp_path):
    nodes = Silent(tmp_path, is_silent=lambda node, question, group: node == 102 and nodes.pauses < 2)
    serve(nodes, settings(tmp_path, **{"wait-timeout": 60.0}))
    assert [awaited for _, _, awaited in nodes.awaited[:3]] == [{100, 101, 102}, {102}, {102}]


def test_a_second_node_of_the_same_client_is_turned_away(tmp_path):
    class Twice(Nodes):
        def connected(self) -> dict[int, Registration]:
            return super().connected() | ({1100: Registration("key-0")} if self.offers else {})

        def ask(self, question, messages, awaited, seconds, group):
            if question == "identify" and 1100 in messages:
                yield NodeReply(1100, pack_identity("partition-0", 0))
                return
            yield from super().ask(question, messages, awaited, seconds, group)

    serve(Twice(tmp_path), settings(tmp_path))
    (rejected,) = [row for row in events_of(tmp_path) if row["kind"] == "rejected"]
    assert (rejected["node"], rejected["reason"]) == ("1100", "the client 'partition-0' is at node 100 already")
    assert torch.equal(state_of(tmp_path).models, simulated(TABLE).models)


def test_a_node_that_was_restarted_is_taken_once_its_first_self_has_left(tmp_path):
    class Restarted(Nodes):
        def connected(self) -> dict[int, Registration]:
            last = max((offer.round for offer in self.offers), default=0)
            return dict.fromkeys([*([100] if last < 2 else []), 101, 102, *([1100] if last else [])], Registration())

        def ask(self, question, messages, awaited, seconds, group):
            first = {1100: 100}
            known = {first.get(node, node): content for node, content in messages.items()}
            for answer in super().ask(question, known, awaited, seconds, group):
                yield replace(answer, node=1100) if answer.node == 100 and 1100 in messages else answer

    serve(Restarted(tmp_path), settings(tmp_path, **{"min-nodes": 2}))
    assert rounds_and_kinds(tmp_path, "partition-0") == [("1", "joined"), ("3", "disconnected"), ("3", "returned")]
    reasons = [(row["round"], row["reason"]) for row in events_of(tmp_path) if row["node"] == "1100"]
    assert reasons == [("2", "the client 'partition-0' is at node 100 already"), ("3", "")]
    assert torch.equal(state_of(tmp_path).models, simulated(TABLE).models)


def test_a_node_whose_replies_come_a_message_late_is_named_with_what_to_do(tmp_path):
    class Behind(Nodes):
        def ask(self, question, messages, awaited, seconds, group):
            if question == "train":
                yield NodeReply(102, None, late=True)
                messages = {node: content for node, content in messages.items() if node != 102}
            yield from super().ask(question, messages, awaited, seconds, group)

    serve(Behind(tmp_path), settings(tmp_path))
    reasons = [row["reason"] for row in events_of(tmp_path) if row["client"] == "partition-2" and row["reason"]]
    assert reasons.count("each of its replies is one message late, as after an outage; restart its SuperNode") == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device", "/runs/first/rounds.csv"), InputError("no")])
def test_the_reason_is_one_sentence_also_where_it_cannot_be_written(tmp_path, monkeypatch, capsys, error):
    def fail(*arguments: object) -> None:
        raise error

    def serve_and_fail(exchange: object, given: object, watch: Callable[[Progress], object]) -> None:
        watch(Progress(0))
        monkeypatch.setattr(server_app, "write_text", fail)
        fail()

    (tmp_path / "run").mkdir()
    monkeypatch.setattr(server_app, "serve", serve_and_fail)
    monkeypatch.setattr(server_app, "Exchange", lambda grid: grid)
    config = {"config": str(settings(tmp_path).config), "out": str(tmp_path / "run")}
    with pytest.raises(ShoalError) as failed:
        server_app.main(None, SimpleNamespace(run_config=config))
    full = "/runs/first/rounds.csv: No space left on device; fix this and resume by the same 'flwr run' command"
    said = full if isinstance(error, OSError) else "no"
    assert str(failed.value) == said
    assert sys.tracebacklimit == 0
    assert said in capsys.readouterr().out
    assert (tmp_path / "run" / "run.log").read_text().endswith(f"ERROR {said}\n")


def test_a_server_that_cannot_write_for_some_time_ends_as_if_it_could(tmp_path, monkeypatch):
    """In the second round no file may grow beyond a few kilobytes, as on a disk that is full."""
    monkeypatch.setattr(server_app, "Exchange", lambda grid: grid)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(number: int, partition: int, reply: RecordDict) -> RecordDict:
        if number == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        return reply

    given = settings(tmp_path)
    config = {"config": str(given.config), "out": str(given.out), "min-nodes": 3}
    try:
        with pytest.raises(ShoalError, match="File too large; fix this and resume by the same 'flwr run' command"):
            server_app.main(Nodes(tmp_path, spoil=fill), SimpleNamespace(run_config=config))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert json.loads((given.out / "progress.json").read_text()).keys() == {"error"}
    server_app.main(Nodes(tmp_path), SimpleNamespace(run_config=config))
    assert torch.equal(state_of(tmp_path).models, simulated(TABLE).models)
    assert not list(given.out.rglob(".*"))


def test_a_run_whose_last_rounds_merged_nothing_is_not_done(tmp_path):
    refused = lambda number, partition, reply: pack_reply(Refusal("no")) if number == 3 else reply  # noqa: E731
    with pytest.raises(InputError, match="no update was merged in the last 1 rounds"):
        serve(Nodes(tmp_path, spoil=refused), settings(tmp_path))
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_quorum_ends_a_rounds_waiting_and_blames_nobody(tmp_path):
    serve(Nodes(tmp_path), settings(tmp_path, quorum=0.5))
    # Nodes answer in the reverse order of their numbers.
    assert clients_of(tmp_path / "run", "rounds") == [(f"partition-{i}", "0" if i == 0 else "3") for i in range(3)]
    assert {row["kind"] for row in events_of(tmp_path)} == {"joined"}


def test_progress_names_few_of_many_clients(tmp_path):
    seen: list[Progress] = []
    serve(Nodes(tmp_path), settings(tmp_path), seen.append)
    assert [(each.round, each.asked, each.answered) for each in seen[1:] if each.answered in (0, 3)] == [
        (number, 3, answered) for number in (1, 2, 3) for answered in (0, 3)
    ]  # fmt: skip
    server = Server(attendance=None, config="", choice="client", watch=seen.append)  # pyright: ignore[reportArgumentType]
    members = [Member(f"client-{i}", i) for i in range(5000)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "members", members)
        server._show(1, 5000, set(range(5000)), {})
    assert (seen[-1].asked, len(seen[-1].waiting)) == (5000, 100)


def test_a_node_with_another_frozen_body_is_sent_the_servers_once(tmp_path, monkeypatch):
    seeds, reply = [1], training_reply

    class Pretrained(torch.nn.Sequential):
        def __init__(self, _: object) -> None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seeds[-1])
                body = torch.nn.Linear(64, 20).requires_grad_(False)
            super().__init__(torch.nn.Flatten(), body, torch.nn.Linear(20, 10))

    class OtherBodies(Nodes):
        def settings_of(self, partition: int) -> NodeSettings:
            seeds[:] = [1 if partition == 0 else 2]
            return super().settings_of(partition)

    def answered(offer: Offer, settings: NodeSettings) -> object:
        try:
            return reply(offer, settings)
        except NotAllowedError as error:
            return Refusal(error.reason)

    monkeypatch.setattr(sys.modules[__name__], "training_reply", answered)
    monkeypatch.setitem(sys.modules, "bodies", module := types.ModuleType("bodies"))
    module.Pretrained = Pretrained
    table = {**TABLE, "model": {"name": "bodies:Pretrained"}, "engine": {"backend": "loop"}}
    nodes = OtherBodies(tmp_path)
    serve(nodes, settings(tmp_path, table))
    refused = [(event["round"], event["client"]) for event in events_of(tmp_path) if event["kind"] == "refused"]
    assert len(refused) == 2
    assert {number for number, _ in refused} == {"1"}
    assert sorted(partition for question, partition in nodes.asked if question == "features") == [1, 2]
    assert state_of(tmp_path).models.shape == (2, 210)
    (digest,) = {offer.frozen for offer in nodes.offers}
    assert (tmp_path / "1" / "frozen" / f"{digest}.safetensors").exists()
    open_client.cache_clear()
    asked_run.cache_clear()


def test_too_few_clients_end_the_run_with_a_sentence(tmp_path):
    with pytest.raises(InputError, match=r"'min-nodes' = 3 clients .*got 2"):
        serve(Nodes(tmp_path, numbers=(0, 1)), settings(tmp_path))


def test_another_runs_directory_is_not_touched(tmp_path):
    serve(Nodes(tmp_path), settings(tmp_path))
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(InputError, match="seed = 2"):
        serve(Nodes(tmp_path), settings(tmp_path, {**TABLE, "seed": 5}))


def test_a_silent_node_is_named_with_what_to_look_at(tmp_path):
    serve(
        Silent(tmp_path, numbers=(0, 1, 2, 3), is_silent=lambda node, question, group: node == 103), settings(tmp_path)
    )
    (row,) = [row for row in events_of(tmp_path) if row["node"] == "103"]
    assert (row["round"], row["kind"], row["client"]) == ("1", "missed", "unknown")
    assert row["reason"].endswith("is its task worker running?")
