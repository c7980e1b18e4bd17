"""`shoal sweep` as its users meet it: exit codes, what it prints, and the sentences for wrong files."""

import io
import os
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from forked_calls import PROCESS
from shoal.cli.app import main
from shoal.cli.displays import SweepDisplay
from shoal.sweeps import SweepProgress

SWEEP = """
base = "base.toml"
seeds = [0]
[grid]
"local.learning_rate" = [0.1, 0.5]
[tables.accuracy]
rows = ["local.learning_rate"]
y = ["accuracy.overall"]
"""


@pytest.fixture
def sweep(toy_sweep, tmp_path, monkeypatch):
    """The path of a sweep of two runs of one group, which leave out their own pages."""
    monkeypatch.setattr("shoal.sweeps.runner.report_of", lambda out, **_: (out / "report.html").touch())
    changes = {"data__groups": {"all": {"share": 1.0}}, "algorithm": {"name": "ifca", "rounds": 2}}
    path = toy_sweep(tmp_path, SWEEP, **changes, red_team={"every": 0, "attack": "gap"})
    return path.rename(tmp_path / "rates.toml")


def test_a_sweep_says_how_far_it_is_and_where_its_report_is(sweep, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", str(sweep)]) == 0
    printed = capsys.readouterr()
    assert "2 of 2 runs are done: runs/rates/results.csv" in printed.out
    assert "Report: runs/rates/report.html" in printed.out
    assert [line.split(";")[0] for line in printed.err.splitlines()] == ["run 1 of 2", "run 2 of 2"]
    assert main(["sweep", str(sweep)]) == 0
    assert capsys.readouterr().err == "2 of 2 runs are already done\n"
    page = (tmp_path / "runs/rates/report.html").read_bytes()
    assert main(["report", "runs/rates"]) == 0
    assert (tmp_path / "runs/rates/report.html").read_bytes() == page
    capsys.readouterr()
    assert main(["sweep", "runs/rates/sweep.toml", "--out", "again", "--quiet"]) == 0
    assert capsys.readouterr() == ("2 of 2 runs are done: again/results.csv\nReport: again/report.html\n", "")
    assert (tmp_path / "again/results.csv").read_bytes() == (tmp_path / "runs/rates/results.csv").read_bytes()


def test_a_failed_run_is_printed_and_the_exit_code_is_1(sweep, tmp_path, capsys):
    sweep.write_text(SWEEP.replace("0.5]", "1e30]"))
    assert main(["sweep", str(sweep), "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert "1 of 2 runs are done" in printed.out
    assert "shoal: local.learning_rate = 1e+30, seed 0: failed: the loss became NaN" in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SWEEP.replace("learning_rate", "lerning_rate"), "unknown key 'local.lerning_rate'; did you mean"),
        (SWEEP.replace("[grid]", '[changes]\n"data.clients" = 900\n[grid]'), "900 clients x 12 + 60 shadow + 40 test)"),
    ],
    ids=["unknown key", "too few images"],
)
def test_a_bad_file_gets_one_sentence_and_exit_code_2(sweep, tmp_path, capsys, text, said):
    sweep.write_text(text)
    assert main(["sweep", str(sweep), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [["--jobs", "0"], ["--jobs", "many"], ["--cluster"]])
def test_wrong_options_get_exit_code_2(sweep, tmp_path, options, capsys):
    assert main(["sweep", str(sweep), "--out", str(tmp_path / "out"), *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_interrupted_before_anything_is_written_it_promises_nothing(sweep, tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.sweeps.run_sweep", interrupt)
    assert main(["sweep", str(sweep), "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err.strip() == "shoal: interrupted", "there is nothing to resume yet"


@pytest.mark.processes
def test_interrupted_with_two_jobs_it_ends_its_workers(sweep, tmp_path):
    base, out = tmp_path / "base.toml", tmp_path / "out"
    base.write_text(base.read_text().replace("rounds = 2", "rounds = 4000"))
    command = [sys.executable, "-c", PROCESS, "sweep", str(sweep), "--out", str(out), "--jobs", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        while len({path.parent for path in out.glob("runs/*/checkpoint/round-*")}) < 2:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        # As a terminal does: to the workers too.
        os.killpg(process.pid, signal.SIGINT)
        try:
            # Standard error is at its end when the workers have ended, which have it too.
            _, printed = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert printed.splitlines()[-1].endswith("rerun the command to resume")
    assert "Traceback" not in printed


def test_the_live_display_counts_runs_and_prints_the_time_left():
    now = SweepProgress(runs=8, finished=2, failed=0, done=0.25)
    stream = io.StringIO()
    with SweepDisplay(Console(file=stream, force_terminal=True, width=100)) as display:
        display.started(lambda: now)
        now = SweepProgress(runs=8, finished=3, failed=1, done=0.375)
    assert "3/8" in stream.getvalue()
    assert "1 failed; about" in stream.getvalue()


def test_a_log_of_several_sweeps_has_one_numbered_line_for_each():
    stream = io.StringIO()
    with SweepDisplay(Console(file=stream, width=100), steps=True) as display:
        for runs in (2, 3):
            display.started(lambda: SweepProgress(runs=9, finished=1, failed=0, done=0.1))
            for finished in range(1, runs + 1):
                display.run_ended(SweepProgress(runs=runs, finished=finished, failed=0, done=finished / runs))
    assert stream.getvalue().splitlines() == ["step 1: run 2 of 2", "step 2: run 3 of 3"]
