"""Flower's real programs on loopback: a round is the simulator's, and faults cost a round and nothing else."""

import csv
import json
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="Flower's programs need the extra: pip install 'shoal[flower]'")

from safetensors.torch import load_file

from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.deployment.ledger import Ledger
from shoal.deployment.processes import Loopback, Programs, descendants, wait_until
from shoal.engine import Engine
from shoal.simulation.simulation import initial_state, move_to_engine, run_rounds

SECONDS = 240
"""What any one step may take on a machine that others use too."""

APP = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "trial"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "trial"

[tool.flwr.app.components]
serverapp = "shoal.deployment.server_app:app"
clientapp = "{client}:app"

[tool.flwr.app.config]
config = ""
out = ""
min-nodes = 2
round-timeout = 600.0
wait-timeout = 600.0
max-update-norm = 0.0
"""

CONFIG = """
seed = 3
[data]
source = "digits"
clients = {clients}
examples_per_client = 30
shadow_examples = 60
test_examples = 200
[data.groups.upright]
share = 0.4
[data.groups.turned]
share = 0.6
rotation = [180, 180]
[model]
name = "digits-cnn"
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
[privacy]
thresholds = [0.5, 0.8]
"""


def an_app(folder: Path, client: str = "shoal.deployment.client_app", code: str = "") -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(APP.format(client=client))
    if code:
        (folder / f"{client}.py").write_text(code)
    return folder


def a_config(path: Path, **values: int) -> Path:
    path.write_text(CONFIG.format(**{"clients": 3, "rounds": 1, "epochs": 2, "every": 1, **values}))
    return path


def simulated(path: Path) -> torch.Tensor:
    """The models (K, P) that the simulator ends with, and the risks."""
    decided, simulation = build(read_config(path))
    with Engine(simulation.setup.model, threads=1, backend=decided.engine.backend) as engine:
        simulation = move_to_engine(simulation, engine)
        (*_, (now, _)) = run_rounds(simulation, engine, initial_state(simulation, engine))
    return now.state


def models_in(out: Path, path: Path) -> torch.Tensor:
    """The models (K, P) in a run's directory."""
    _, simulation = build(read_config(path))
    model, named = simulation.setup.model, load_file(out / "models.safetensors")
    rows = []
    for k in range(2):
        own = {name.partition(".")[2]: each for name, each in named.items() if name.startswith(f"{k}.")}
        rows.append(model.layout.pack(own))
    return torch.stack(rows)


def finished(out: Path) -> bool:
    return (out / "summary.json").exists()


def test_a_round_on_three_supernodes_is_the_simulators_bit_for_bit(tmp_path):
    path, out = a_config(tmp_path / "run.toml"), tmp_path / "run"
    with Programs(tmp_path) as programs:
        loopback = Loopback(programs)
        loopback.start_server()
        for i in range(3):
            # As Flower itself runs a ClientApp, a program for each message; the other test has forks.
            loopback.start_node(f"node-{i}", {"partition-id": i, "state-dir": tmp_path / f"state-{i}"}, forks=i > 0)
        loopback.run(an_app(tmp_path / "app"), {"config": path, "out": out, "min-nodes": 3})
        started = descendants({program.pid for program in programs.running.values()})
        wait_until(lambda: finished(out), SECONDS, programs.log("superlink")[-2000:])
    expected = simulated(path)
    assert torch.equal(models_in(out, path), expected.models)
    summary = json.loads((out / "summary.json").read_text())
    assert [summary[f"clusters.{k}.risk"] for k in range(2)] == expected.risks.tolist()
    assert not started & descendants({1}), "programs outlived the run"
