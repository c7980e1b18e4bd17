"""Sweeps of data that clients have already: files are read once, and count by what they hold."""

from types import SimpleNamespace

import numpy as np
import pytest
import tomli_w

from shoal.data.user import own_files
from shoal.sweeps import read_sweep, run_sweep, runner

SWEEP = """
base = "base.toml"
seeds = [0]
[grid]
"{key}" = {values}
"""


@pytest.fixture
def sweep_of(tmp_path, monkeypatch):
    """Makes a sweep over a key of a table with two clients; the files are ``few.csv`` and ``many.csv``."""
    monkeypatch.setattr(runner, "report_of", lambda out, **_: (out / "report.html").touch())
    draw = np.random.default_rng(0)
    for name, each in (("few", 5), ("many", 60)):
        rows = [f"{'ab'[i % 2]},{i // 2 % 2},{draw.normal()},words" for i in range(2 * each)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["who,ill,dose,remark", *rows]))
    data = {"source": "table", "path": str(tmp_path / "few.csv"), "client": "who", "label": "ill"}
    base = {
        "data": data,
        "model": {"name": "logistic"},
        "algorithm": {"name": "fedavg", "rounds": 1},
        "local": {"batch_size": 4},
        "red_team": {"every": 0, "attack": "gap"},
    }
    (tmp_path / "base.toml").write_text(tomli_w.dumps(base))

    def make(key, values):
        (tmp_path / "sweep.toml").write_text(SWEEP.format(key=key, values=values))
        return read_sweep(tmp_path / "sweep.toml")

    return make


def test_a_process_reads_a_table_once(sweep_of, tmp_path, monkeypatch):
    """A planned run names its columns, which the sweep's file does not."""
    read, load_table = [], own_files.load_table
    monkeypatch.setattr(own_files, "load_table", lambda path, columns: read.append(path) or load_table(path, columns))
    assert run_sweep(sweep_of("local.learning_rate", [0.1, 0.5]), tmp_path / "out").finished == 2
    assert read == [tmp_path / "few.csv"]
    # Another sweep reads anew: the file may be another by now.
    assert run_sweep(sweep_of("local.learning_rate", [0.2]), tmp_path / "other").finished == 1
    assert len(read) == 2


def test_the_work_that_is_done_counts_the_examples_of_files(sweep_of, tmp_path):
    states = []
    files = [str(tmp_path / name) for name in ("few.csv", "many.csv")]
    sweep = sweep_of("data.path", files)
    watch = SimpleNamespace(started=lambda now: states.append(now()), run_ended=states.append)
    run_sweep(sweep, tmp_path / "out", watch=watch)
    # Of 10 and of 120 rows a fifth is held out; each round counts for one example more.
    assert [now.done for now in states] == pytest.approx([0, 9 / (9 + 97), 1])
