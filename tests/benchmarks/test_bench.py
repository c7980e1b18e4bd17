"""The speed comparison runs, and says in words what it measured. Nothing here is timed."""

import json
import math
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import bench
from comparisons import ROWS
from systems.work import WORKS
from tables import pool

BENCHMARKS = Path(bench.__file__).resolve().parent
TINY = ("--random-data", "--rounds", "1", "--clients", "10", "--examples", "6")


def printed(seconds: list[float], **other: object) -> dict:
    fields = {"images": 100, "seconds": seconds, "peak_mib": 300.0, "startup_seconds": 2.0}
    return fields | {"cpu_seconds_per_round": 1.5, "others_cores": 0.0} | other


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
