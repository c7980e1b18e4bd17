"""The speed comparison runs, and says in words what it measured. Nothing here is timed."""

import json
import math
import runpy
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import bench
from comparisons import ROWS, Goal, Row, Side
from systems.work import WORKS, load
from tables import Measured, pool, verdict

BENCHMARKS = Path(bench.__file__).resolve().parent
TINY = ("--random-data", "--rounds", "1", "--clients", "10", "--examples", "6")


def printed(seconds: list[float], **other: object) -> dict:
    fields = {"images": 100, "seconds": seconds, "peak_mib": 300.0, "startup_seconds": 2.0}
    return fields | {"cpu_seconds_per_round": 1.5, "others_cores": 0.0} | other


def compared(goal: Goal, *names: str) -> Row:
    return Row("row", "A row", tuple(Side(name, "shoal_side", ("small-mlp",)) for name in names), (goal,))


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


def test_each_group_of_the_official_setting_holds_the_same_images_turned() -> None:
    work = WORKS["ifca-official"].resized(8, 3, random=True)
    x, y = load(work, None)
    assert x.shape == (24, 1, 28, 28)
    assert x.dtype == np.float32
    groups, labels = x.reshape(4, 6, 28, 28), y.reshape(4, 6)
    for group in range(4):
        upright = np.rot90(groups[group], -group, axes=(1, 2))
        for image, label in zip(upright, labels[group], strict=True):
            same = [(image == other).all() for other in groups[0]]
            assert labels[0][same.index(True)] == label
            assert sum(same) == 1


def test_disturbed_repeats_count_only_where_there_are_no_others() -> None:
    quiet, disturbed = printed([1.0]), printed([50.0], others_cores=0.9)
    assert pool([disturbed, quiet]).seconds == (1.0,)
    assert pool([disturbed, quiet]).left_out == 1
    assert pool([disturbed]).seconds == (50.0,)
    assert pool([disturbed]).others == 0.9


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (Goal("speed", "a", 4.0, ("b",)), "a is at least 4 times as fast as b: 3.00, **not met**"),
        (
            Goal("speed", "a", 1.25, ("b", "c", "gone")),
            "a is at least 1.25 times as fast as the fastest of 3: 1.10 (against c), **not met**; gone was left out",
        ),
        (Goal("memory", "c", 1.3, ("a",)), "c takes at most 1.3 times the peak memory of a: 2.00, **not met**"),
        (Goal("share", "a", 0.25, part="red_team"), "a: red team takes at most 25% of the time: 20.0%, **met**"),
        (
            Goal("speed", "a", 8.0, ("failed",)),
            "a is at least 8 times as fast as failed: not measured, failed failed (no Ray)",
        ),
        (
            Goal("speed", "a", 2.0, ("busy",)),
            "a is at least 2 times as fast as busy: 9.00, **not judged, others used the machine meanwhile**",
        ),
    ],
)
def test_a_goal_says_whether_it_is_met_or_why_it_is_not_measured(goal: Goal, words: str) -> None:
    measured = {
        "a": pool([printed([1.0], parts={"choose": 0.1, "train": 0.7, "red_team": 0.2})]),
        "b": pool([printed([3.0], images=1000)]),
        "c": pool([printed([1.1], peak_mib=600.0)]),
        "busy": pool([printed([9.0], others_cores=1.0)]),
        "failed": Measured(failures=("no Ray",)),
    }
    assert verdict(goal, measured) == words


def test_every_goal_names_sides_of_its_row() -> None:
    for row in ROWS:
        labels = [side.label for side in row.sides]
        assert len(set(labels)) == len(labels)
        assert all({goal.side, *goal.against} <= set(labels) for goal in row.goals)
        assert all(side.arguments[0] in WORKS for side in row.sides)
        assert all((BENCHMARKS / "systems" / f"{side.script}.py").exists() for side in row.sides)


def test_a_side_that_ends_badly_is_told_in_its_last_words() -> None:
    assert bench.outcome_of(0, 'noise\n{"side": "pfl"}\nmore noise\n', "") == {"side": "pfl"}
    assert bench.outcome_of(1, '{"side": "pfl"}', "Traceback\nMemoryError: no room\n\n") == (
        "exit code 1: MemoryError: no room"
    )
    assert bench.outcome_of(0, "", "") == "exit code 0: no word why"


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
