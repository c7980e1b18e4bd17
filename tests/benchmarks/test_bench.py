"""The scripts on speed run, and their parts add up. Nothing here is timed."""

import json
import math
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from shoal import IFCA, FedAvg, FineTuning, Gap, LocalSGD, NormClipping, RedTeam, Shape, Simulation, create_model
from shoal.simulation.play import EngineSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import bench
import profile_round
from comparisons import ROWS
from systems.work import WORKS
from tables import pool

import algorithms as costs

BENCHMARKS = Path(bench.__file__).resolve().parent
TINY = ("--random-data", "--rounds", "1", "--clients", "10", "--examples", "6")


LAYOUT = "onednn" if torch.backends.mkldnn.is_available() else "pooled"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("script", "words", "images", "in_process"),
    [
        ("shoal_side", ("fedavg-cnn", "--precision", "bf16"), 60, False),
        ("shoal_side", ("ifca-official",), 600, True),
        ("shoal_side", ("ifca-mir",), 300, True),
        ("shoal_side", ("blazefl-cnn",), 300, True),
        ("torch_side", ("fedavg-cnn", "--layout", LAYOUT), 60, False),
    ],
)
def test_a_side_prints_one_whole_line_of_json(
    script: str, words: tuple[str, ...], images: int, in_process: bool, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    path, arguments = BENCHMARKS / "systems" / f"{script}.py", [*words, *TINY, "--began", str(time.time())]
    if in_process:
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        monkeypatch.syspath_prepend(str(path.parent))
        for neighbour in ("clock", "networks", "work"):  # Which are forgotten afterwards.
            monkeypatch.setitem(sys.modules, neighbour, None)
            del sys.modules[neighbour]
        runpy.run_path(str(path), run_name="__main__")
        printed = capsys.readouterr().out
    else:
        done = subprocess.run([sys.executable, str(path), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    outcome = json.loads(printed.strip().rpartition("\n")[2])
    assert outcome["work"] == words[0]
    assert outcome["images"] == images
    assert len(outcome["seconds"]) == 1
    numbers = ["startup_seconds", "cpu_seconds_per_round", "peak_mib", "others_cores"]
    assert all(math.isfinite(value) and value >= 0 for value in [*outcome["seconds"], *map(outcome.get, numbers)])
    assert outcome["startup_seconds"] > 0
    assert outcome["peak_mib"] > 10
    if script == "shoal_side":
        assert set(outcome["parts"]) == {"choose", "train", "red_team"}
    assert pool([outcome]).seconds == tuple(outcome["seconds"])


def test_every_goal_names_sides_of_its_row() -> None:
    for row in ROWS:
        labels = [side.label for side in row.sides]
        assert len(set(labels)) == len(labels)
        assert all({goal.side, *goal.against} <= set(labels) for goal in row.goals)
        assert all(side.arguments[0] in WORKS for side in row.sides)
        assert all((BENCHMARKS / "systems" / f"{side.script}.py").exists() for side in row.sides)


def test_the_command_line_chooses_rows_sides_and_rounds(tmp_path: Path) -> None:
    options = bench.arguments_of(["--only", "fedavg-cnn", "ifca-official", "cuda", "--no-peers", "--tiny"])
    rows = bench.round_metrics(options, cuda=False)
    assert [row.name for row in rows] == ["fedavg-cnn", "ifca-official"]
    assert {side.environment for row in rows for side in row.sides} == {"shoal"}
    with_peers = bench.arguments_of(["--tiny", "--pfl-python", str(tmp_path / "python")])
    everything = {row.name: row for row in bench.round_metrics(with_peers, cuda=True)}
    assert "cuda" in everything
    two = next(side for side in everything["fedavg-cnn"].sides if side.processes == 2)
    command = bench.command_of(everything["fedavg-cnn"], two, with_peers)
    assert command[0] == str(tmp_path / "python")
    assert "--nproc-per-node=2" in command
    official = everything["ifca-official"]
    assert official.rounds_of(official.sides[0], 7) == 3
    assert everything["small-mlp"].rounds_of(everything["small-mlp"].sides[0], 7) == 35
    assert everything["ifca-mir"].rounds_of(everything["ifca-mir"].sides[0], 1) == 5


def test_every_algorithm_of_the_house_is_measured_and_the_first_is_the_unit():
    names = [each.name for each in costs.ALGORITHMS]
    assert names[0] == "fedavg"
    assert {"ifca", "scaffold", "fedrep", "apfl", "per-fedavg", "fine-tuning"} <= set(names)
    rows = [(FedAvg(), 2.0, 0.1), (FineTuning(), 1.0, 3.0)]
    assert costs.table(rows).splitlines()[2:] == ["| `fine-tuning` | 0.50 | 1.50 |", "| `fedavg` | 1.00 | 0.05 |"]


def test_a_round_of_each_and_what_follows_the_last_are_counted(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(costs.time, "process_time", lambda: next(ticks))
    shape = Shape(1, 8, 8, 3)
    model = create_model("mlp", shape, hidden=4)
    found = costs.measured(model, costs.federation(shape, 3, 8), (FedAvg(), FineTuning()), 2)
    assert found == [(FedAvg(), 1, 1), (FineTuning(), 1, 1)]


ONE, LOCAL = EngineSettings(threads=1), LocalSGD(batch_size=6)


def profiled(build, model, every, rounds=2, **more):
    team = RedTeam(every=every, estimator="audit", attack=Gap())
    simulation = Simulation(build(), model, IFCA(2), LOCAL, 20, red_team=team, **more)
    return profile_round.profile(simulation, ONE, rounds=rounds)


def test_the_parts_of_a_round_add_up_and_none_is_counted_twice(build, mlp):
    found = profiled(build, mlp, every=0, defenses=[NormClipping(1.0)])
    parts = {key.partition(".")[2]: value for key, value in found.items() if key.startswith("seconds.")}
    assert parts.pop("total") == pytest.approx(sum(parts.values()))
    assert set(parts) == {"choose", "local_training", "defenses", "aggregation", "red_team", "evaluation"}
    assert sum(value for key, value in found.items() if key.startswith("share.")) == pytest.approx(1)


def test_the_script_prints_a_table_or_a_document_and_writes_nothing(toy_config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "toy.toml"
    path.write_text(toy_config(algorithm__name="ifca", engine__threads=1).toml())
    assert profile_round.main([str(path), "--rounds", "1"]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("local training", "Medians of 1 round;", "Backend 'vmap'"))
    assert profile_round.main([str(path), "--rounds", "1", "--json", "--set", "engine.backend=loop"]) == 0
    assert json.loads(capsys.readouterr().out)["backend"] == "loop"
    assert profile_round.main([str(path), "--rounds", "0"]) == 2
    assert capsys.readouterr().err == "Error: 'rounds' must be at least 1 (got 0)\n"
    assert list(tmp_path.iterdir()) == [path]
