"""Flower's real programs on loopback: a round is the simulator's, and faults cost a round and nothing else."""

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from certificates import make_certificates
from on_loopback import models_in, simulated
from processes import APP, KEEP_RUNNING, TASK_WORKER, Loopback, descendants, wait_until

from forked_programs import ForkedPrograms
from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.defenses import accounting
from shoal.engine import Engine, State
from shoal.simulation.play import move_to_engine
from shoal.simulation.round_metrics import group_accuracies
from shoal_flower.client.policy import Ledger
from wire_federation import rows_of

SECONDS = 240
"""What any one step may take on a machine that others use too."""

CONFIG = """
seed = {seed}
[data]
source = "digits"
clients = {clients}
examples_per_client = {examples}
shadow_examples = 60
test_examples = {test}
[data.groups.upright]
share = 0.4
[data.groups.turned]
share = 0.6
rotation = [180, 180]
[model]
name = "{model}"
[algorithm]
name = "ifca-mir"
clusters = 2
rounds = {rounds}
[local]
epochs = {epochs}
batch_size = 10
learning_rate = 0.1
[red_team]
every = {every}
shadow_models = 2
[evaluation]
every = 20
[privacy]
thresholds = [0.5, 0.8]
{further}
"""

FAULTY = """
import json

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from shoal_flower.client import client_app

app = ClientApp()
app.query("identify")(client_app.identify)


@app.train()
def train(message, context):
    reply = client_app.train(message, context)
    if context.node_config["partition-id"] == 2 and json.loads(message.content["offer"]["header"])["round"] == 3:
        model = reply.content["model"]["model"].numpy().copy()
        model[5] = np.nan
        reply.content["model"] = ArrayRecord({"model": Array(model)})
    return reply
"""


@contextlib.contextmanager
def logs_on_failure(folder: Path) -> Iterator[None]:
    """Print how the programs' logs end if the block fails."""
    try:
        yield
    except BaseException:
        for path in sorted(folder.rglob("*.log")):
            sys.stderr.write(f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}\n")
        raise


def a_config(path: Path, **values: object) -> Path:
    usual = {"clients": 3, "rounds": 1, "epochs": 2, "every": 1, "examples": 30, "test": 200, "seed": 3}
    path.write_text(CONFIG.format(**{**usual, "model": "digits-cnn", "further": "", **values}))
    return path


def finished(out: Path) -> bool:
    return (out / "summary.json").exists()


FAST_CLOCK = """
import datetime

from flwr.supernode import node_auth_http_interceptor
from flwr.supernode.cli.flower_supernode import flower_supernode

now = node_auth_http_interceptor.now
node_auth_http_interceptor.now = lambda: now() + datetime.timedelta(seconds=20)
flower_supernode()
"""


@pytest.mark.processes
def test_a_round_over_tls_on_three_registered_supernodes_is_the_simulators_bit_for_bit(tmp_path, forks):
    path, out, keys = a_config(tmp_path / "run.toml"), tmp_path / "run", tmp_path / "keys"
    make_certificates(keys, nodes=5)
    with logs_on_failure(tmp_path), ForkedPrograms(tmp_path, forks) as programs:
        loopback = Loopback(programs, keys)
        loopback.start_server()
        for i in range(3):
            loopback.register(keys / f"node-{i}.pub")
            node = {"partition-id": i, "state-dir": tmp_path / f"state-{i}"}
            # One as Flower itself runs a ClientApp, a program for each message, the others as `make federation` does.
            loopback.start_node(f"node-{i}", node, key=keys / f"node-{i}", apps="forks" if i else "programs")
        stranger = {"partition-id": 0, "client": "stranger", "state-dir": tmp_path / "stranger"}
        loopback.start_node("unregistered", stranger, key=keys / "node-3", apps="none")
        loopback.start_node("without-tls", stranger, apps="none", plain=True)
        loopback.register(keys / "node-4.pub")
        fast = [sys.executable, "-c", FAST_CLOCK]
        loopback.start_node("fast-clock", stranger, key=keys / "node-4", apps="none", program=fast)
        loopback.run(APP, {"config": path, "out": out, "min-nodes": 3})
        wait_until(lambda: finished(out), SECONDS, "1 round")
        started = descendants({program.pid for program in programs.running.values()})
    expected = simulated(path)
    assert torch.equal(models_in(out, path), expected.models)
    summary = json.loads((out / "summary.json").read_text())
    assert [summary[f"clusters.{k}.risk"] for k in range(2)] == expected.risks.tolist()
    assert {row["name"] for row in rows_of(out / "clients.csv")} == {f"partition-{i}" for i in range(3)}
    assert "SuperNode ID" in programs.log("node-0")
    assert "SuperNode ID" not in programs.log("unregistered")
    assert "SuperNode ID" not in programs.log("without-tls")
    assert "SuperNode ID" not in programs.log("fast-clock")
    assert "terminated gracefully" in programs.log("fast-clock")
    assert not started & descendants({os.getpid(), 1}), "programs outlived the run"


def client_accuracy(path: Path, state: State) -> float:
    """The mean accuracy of the models that the simulator's clients choose, each on its group's test examples."""
    decided, simulation = build(read_config(path))
    with Engine(simulation.setup.model, threads=1, backend=decided.engine.backend) as engine:
        simulation = move_to_engine(simulation, engine)
        training = simulation.on(engine)
        deployed, _ = training.deployed_models(state)
        of_models = torch.tensor([group_accuracies(row, training.federation, engine) for row in state.models])
    return float(of_models[deployed.model, simulation.federation.group].mean())


def rounds_done(out: Path) -> int:
    path = out / "rounds.csv"
    return max(int(row["round"]) for row in rows_of(path)) if path.exists() else 0


def events_of(out: Path) -> list[dict[str, str]]:
    path = out / "events.csv"
    return rows_of(path) if path.exists() else []


def has_returned(out: Path, client: str) -> bool:
    return any((row["client"], row["kind"]) == (client, "returned") for row in events_of(out))


@pytest.mark.processes
def test_rounds_outlive_a_killed_node_a_node_that_sends_nan_and_a_killed_server(tmp_path, forks):  # noqa: PLR0915
    noise = "[defenses.dp_sgd]\nmax_grad_norm = 2.0\nnoise_multiplier = 0.02"
    path, out = tmp_path / "run.toml", tmp_path / "run"
    # Enough training and test examples that it hardly matters who misses which rounds, which hangs on the machine: the
    # simulator's accuracy is 0.918, and 0.913 to 0.924 if client 0 is away for any three, five, seven or nine rounds in
    # a row, client 2 misses the third, and another one of the last three.
    size = {"clients": 4, "rounds": 10, "epochs": 6, "every": 5, "examples": 100, "test": 1000}
    a_config(path, **size, seed=2, model="logistic", further=noise)
    states = [tmp_path / f"state-{i}" for i in range(4)]
    # Noise by the run's seed, so that the test is the same each time.
    nodes = [{"partition-id": i, "state-dir": folder, "noise": "seed"} for i, folder in enumerate(states)]
    config = {"config": path, "out": out, "min-nodes": 3, "round-timeout": 15.0, "names": "nodes"}
    faulty = tmp_path / "faulty_client.py"
    faulty.write_text(FAULTY)
    with logs_on_failure(tmp_path), ForkedPrograms(tmp_path, forks) as programs:
        loopback = Loopback(programs)

        def start(i: int) -> None:
            address = loopback.start_node(f"node-{i}", nodes[i], apps="none")
            programs.start(f"node-{i}-worker", ["python", str(TASK_WORKER), address, str(faulty)])

        def wait_for(number: int) -> None:
            wait_until(lambda: rounds_done(out) >= number, SECONDS, f"round {number}")

        loopback.start_server()
        for i in range(4):
            start(i)
        loopback.run(APP, config)
        wait_for(1)
        loopback.kill_node("node-0")
        spent = Ledger.load(states[0] / "ledger.json")
        # One round waits for it until the deadline, and one does not.
        wait_for(3)
        start(0)
        wait_until(lambda: has_returned(out, "partition-0"), SECONDS, "the node's return")
        trained = lambda: Ledger.load(states[0] / "ledger.json").rounds > spent.rounds  # noqa: E731
        wait_until(lambda: trained() or finished(out), SECONDS, "the returned node's next round")
        programs.kill("superlink")
        done = rounds_done(out)
        loopback.start_server()
        loopback.run(APP, config)
        wait_until(lambda: finished(out), SECONDS, "10 rounds")
    events = events_of(out)
    assert {(row["client"], row["round"]) for row in events if row["kind"] == "rejected"} == {("partition-2", "3")}
    assert any(row["client"] == "partition-0" and row["kind"] == "missed" for row in events)
    log = (out / "run.log").read_text()
    assert "round 3: client partition-2" in log
    assert "NaN" in log
    begun = [int(number) for number in re.findall(r"begin after round (\d+)", log)]
    assert begun[0] == 0
    assert 10 > begun[1] >= done > 0
    ledgers = [Ledger.load(folder / "ledger.json") for folder in states]
    members = {row["name"]: row for row in rows_of(out / "clients.csv")}
    for i, ledger in enumerate(ledgers):
        trained = int(members[f"partition-{i}"]["rounds"])
        assert ledger.rounds >= trained
        assert (0 < accounting.composed_epsilon(ledger.steps, 1e-5) < 1e9, ledger.answers) == (
            True,
            (("choice", 0.0, ledger.rounds),),
        )
    assert ledgers[0].rounds > spent.rounds >= 1
    assert (out / "report.html").read_text().count("partition-2") >= 2
    undisturbed = simulated(path)
    disturbed = replace(undisturbed, models=models_in(out, path))
    assert client_accuracy(path, disturbed) >= client_accuracy(path, undisturbed) - 0.02


HASTY_SUPERNODE = """
from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_connection
from flwr.supernode.cli.flower_supernode import flower_supernode

# The SuperLink counts it as alive for twice as long: 12 seconds instead of 60.
heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 6
heartbeat.HEARTBEAT_CALL_TIMEOUT = 1
flower_supernode()
"""


@pytest.mark.processes
def test_a_killed_supernode_comes_back_by_itself_to_a_run_that_needs_all(tmp_path, forks):
    path, out, keys = tmp_path / "run.toml", tmp_path / "run", tmp_path / "keys"
    a_config(path, model="logistic", rounds=12, clients=2)
    make_certificates(keys, nodes=2)
    with logs_on_failure(tmp_path), ForkedPrograms(tmp_path, forks) as programs:
        loopback = Loopback(programs, keys)
        loopback.start_server()
        for i in range(2):
            loopback.register(keys / f"node-{i}.pub")
            kept = {"program": [str(KEEP_RUNNING), sys.executable, "-c", HASTY_SUPERNODE]} if i == 0 else {}
            node = {"partition-id": i, "state-dir": tmp_path / f"state-{i}"}
            loopback.start_node(f"node-{i}", node, key=keys / f"node-{i}", **kept)
        loopback.run(APP, {"config": path, "out": out, "min-nodes": 2})
        wait_until(lambda: rounds_done(out) >= 1, SECONDS, "round 1")
        (supernode,) = descendants({programs.running["node-0"].pid})
        os.kill(supernode, signal.SIGKILL)
        wait_until(lambda: finished(out), SECONDS, "12 rounds")
    assert has_returned(out, "partition-0")
    assert len({row["round"] for row in rows_of(out / "rounds.csv")}) == 12


@pytest.mark.processes
def test_rounds_by_secure_sums_on_real_processes_are_the_simulators_but_for_rounding(tmp_path, forks):
    secure = "[secure_aggregation]\nmin_clients = 2\nthreshold = 0.7"
    path, out, keys = tmp_path / "run.toml", tmp_path / "run", tmp_path / "keys"
    # With this seed two clients choose each model in both rounds.
    a_config(path, clients=4, rounds=2, model="logistic", every=2, seed=8, further=secure)
    make_certificates(keys, nodes=4)
    names = [(keys / f"node-{i}.pub").read_text().split()[:2] for i in range(4)]
    (tmp_path / "peers").write_text("".join(f"partition-{i} {' '.join(key)}\n" for i, key in enumerate(names)))
    with logs_on_failure(tmp_path), ForkedPrograms(tmp_path, forks) as programs:
        loopback = Loopback(programs)
        loopback.start_server()
        for i in range(4):
            known = {"node-key": keys / f"node-{i}", "peer-keys": tmp_path / "peers"}
            node = {"partition-id": i, "state-dir": tmp_path / f"state-{i}", **known}
            loopback.start_node(f"node-{i}", node)
        loopback.run(APP, {"config": path, "out": out, "min-nodes": 4})
        wait_until(lambda: finished(out), SECONDS, "2 rounds")
    sums = rows_of(out / "sums.csv")
    assert [(row["round"], row["cluster"], row["clients"], row["opened"]) for row in sums] == [
        (round_, cluster, "2", "1") for round_ in "12" for cluster in "01"
    ]
    expected = simulated(path)
    assert (models_in(out, path) - expected.models).abs().max() < 1e-5
    summary = json.loads((out / "summary.json").read_text())
    assert [summary[f"clusters.{k}.risk"] for k in range(2)] == pytest.approx(expected.risks.tolist(), abs=0.02)
    assert {row["kind"] for row in events_of(out)} == {"joined"}
    assert set(rows_of(out / "clients.csv")[0]) == {"client", "name", "rounds", "rejected", "missed", "refused"}
