"""A sweep's directory: what is done stays done, what is killed goes on, and what fails does not stop the rest."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from shoal.core.errors import InputError
from shoal.runs import run as single
from shoal.sweeps import Workers, read_sweep, report_of_sweep, run_sweep
from shoal.sweeps import workers as playing
from shoal.sweeps.results import by_size

BASE = """
[data]
source = "digits"
clients = 10
examples_per_client = 12
shadow_examples = 60
test_examples = 40
groups.minority = { share = 0.3, rotation = [0, 20] }
groups.majority = { share = 0.7, rotation = [60, 90] }
[model]
name = "mlp"
hidden = 16
[algorithm]
name = "ifca-mir"
rounds = 4
[red_team]
every = 2
shadow_models = 2
[engine]
threads = 1
"""

SWEEP = """
title = "A try"
base = "base.toml"
seeds = [0, 1]
[grid]
"local.learning_rate" = [0.1, 0.5]
[tables.accuracy]
rows = ["local.learning_rate"]
y = ["accuracy.overall", "mia.minority"]
[figures.accuracy]
kind = "lines"
x = "local.learning_rate"
y = ["accuracy.overall"]
[figures.course]
kind = "courses"
by = "local.learning_rate"
y = ["accuracy"]
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The path of a sweep of four runs."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "base.toml").write_text(BASE)
    (folder / "sweep.toml").write_text(SWEEP)
    return folder / "sweep.toml"


@pytest.fixture(scope="module")
def finished(written, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "whole"
    outcome = run_sweep(read_sweep(written), out)
    assert (outcome.finished, outcome.failed) == (4, {})
    return out


def content(out: Path) -> dict[str, bytes]:
    """Every file that a sweep writes of its runs together, but the wall times and the page, which links to the runs."""
    files = [out / "results.csv", *sorted((out / "tables").iterdir()), *sorted((out / "figures").iterdir())]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def change(written: Path, folder: Path, old: str, new: str) -> Path:
    """The sweep with its text changed, in another folder."""
    (folder / "base.toml").write_text((written.parent / "base.toml").read_text())
    text = written.read_text()
    assert old in text
    (folder / "sweep.toml").write_text(text.replace(old, new))
    return folder / "sweep.toml"


def test_a_sweep_directory_holds_what_was_promised(finished):
    assert sorted(path.name for path in finished.iterdir()) == [
        "base.toml", "figures", "report.html", "results.csv", "runs", "sweep.toml", "tables", "timings.json",
    ]  # fmt: skip
    assert sorted(path.name for path in (finished / "tables").iterdir()) == [
        "accuracy.csv", "accuracy.md", "accuracy.tex",
    ]  # fmt: skip
    assert sorted(path.name for path in (finished / "figures").iterdir()) == [
        "accuracy.pdf", "accuracy.svg", "course.pdf", "course.svg",
    ]  # fmt: skip


def test_a_row_has_the_settings_and_the_run_s_own_figures(finished):
    results = pd.read_csv(finished / "results.csv")
    assert list(results.columns[:3]) == ["run", "local.learning_rate", "seed"]
    assert list(results[["local.learning_rate", "seed"]].itertuples(index=False, name=None)) == [
        (0.1, 0), (0.1, 1), (0.5, 0), (0.5, 1),
    ]  # fmt: skip
    times = json.loads((finished / "timings.json").read_text())
    assert list(times) == list(results["run"])
    for _, row in results.iterrows():
        summary = json.loads((finished / "runs" / row["run"] / "summary.json").read_text())
        for key, value in summary.items():
            if isinstance(value, int | float) and key not in ("seed", "rounds"):
                assert (times[row["run"]] if key.startswith("seconds.") else row)[key] == value
        clients = pd.read_csv(finished / "runs" / row["run"] / "clients.csv")
        sizes = clients["cluster"].value_counts()
        assert row["larger.clients"] == sizes.max()
        assert row["larger.clients"] + row["smaller.clients"] == len(clients)
        chosen = clients.loc[clients["group"] == "minority", "cluster"].mode()[0]
        assert row["model.minority.mia"] == summary[f"clusters.{chosen}.mia"]


def test_the_larger_cluster_is_so_whatever_its_number():
    figures = {"clusters.0.clients": 3, "clusters.0.mia": 0.7, "clusters.1.clients": 9, "clusters.1.mia": 0.6}
    swapped = {key.replace(".0.", ".x.").replace(".1.", ".0.").replace(".x.", ".1."): v for key, v in figures.items()}
    assert by_size(figures) == by_size(swapped)
    assert by_size(figures)["larger.mia"] == 0.6


@pytest.mark.parametrize("decides", ["accuracy", "mia", "gap"])
def test_of_clusters_of_one_size_figures_decide_and_no_number(decides):
    same = {"clients": 6, "accuracy": 0.7, "mia": 0.6, "gap": 0.5}
    other = same | {decides: 0.8}
    # What comes after the figure that decides has no say.
    other |= dict.fromkeys(list(same)[list(same).index(decides) + 1 :], 0.1)
    for first, second in ((same, other), (other, same)):
        figures = {f"clusters.0.{key}": value for key, value in first.items()}
        figures |= {f"clusters.1.{key}": value for key, value in second.items()}
        sized = by_size(figures)
        assert {key: sized[f"larger.{key}"] for key in same} == other
        assert {key: sized[f"smaller.{key}"] for key in same} == same


def test_two_at_a_time_give_the_same_bytes(written, finished, tmp_path):
    run_sweep(read_sweep(written), tmp_path / "two", workers=Workers(2))
    assert content(tmp_path / "two") == content(finished)


def test_what_is_finished_is_not_done_again(written, finished, tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("a finished run was done again")

    monkeypatch.setattr(playing, "run", never)
    before = content(finished)
    assert run_sweep(read_sweep(written), finished).finished == 4
    assert content(finished) == before
    monkeypatch.undo()
    # Another seed is two more runs, and leaves the others alone.
    done = {path: path.stat().st_mtime_ns for path in finished.glob("runs/*/summary.json")}
    copy = tmp_path / "more"
    subprocess.run(["cp", "-a", finished, copy], check=True)
    more = run_sweep(read_sweep(change(written, tmp_path, "[0, 1]", "[0, 1, 2]")), copy)
    assert more.finished == 6
    now = {path: path.stat().st_mtime_ns for path in copy.glob("runs/*/summary.json")}
    assert len(now) == 6
    assert all(now[copy / path.relative_to(finished)] == time for path, time in done.items())


PROCESS = """
import sys, pathlib
from shoal.cli.app import main
sys.exit(main(["sweep", sys.argv[1], "--out", sys.argv[2], "--jobs", sys.argv[3]]))
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_twice_it_ends_with_the_same_bytes(written, finished, tmp_path, jobs):
    out = tmp_path / "killed"

    def rounds_on_disk():
        done = [path.name for path in out.glob("runs/*/checkpoint/round-*.safetensors")]
        return len(done) + 10 * len(list(out.glob("runs/*/summary.json")))

    for enough in (2, 12):
        arguments = [sys.executable, "-c", PROCESS, str(written), str(out), str(jobs)]
        with subprocess.Popen(arguments, stderr=subprocess.DEVNULL, start_new_session=True) as process:
            while rounds_on_disk() < enough:
                assert process.poll() is None, "it ended before it could be killed"
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
    assert not (out / "results.csv").exists()
    assert run_sweep(read_sweep(written), out, workers=Workers(jobs)).finished == 4
    assert content(out) == content(finished)
    assert not [path for path in out.rglob(".*") if path.suffix != ".lock"], "a temporary file was left behind"


ORPHAN = """
import pathlib, sys
from shoal.sweeps import read_sweep
from shoal.sweeps.plan import plan
from shoal.sweeps.workers import _play_for
first = plan(read_sweep(pathlib.Path(sys.argv[1])))[0]
nobody = -1
_play_for(nobody, first.config, first.digest, pathlib.Path(sys.argv[2]), None)
print("went on")
"""


def test_a_worker_whose_sweep_is_gone_ends_in_its_next_round(written, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN, str(written), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert not list(tmp_path.glob("*/summary.json"))


def test_there_are_no_more_workers_than_runs(written, tmp_path, monkeypatch):
    asked = []

    def parallel(n_jobs, **_):
        asked.append(n_jobs)
        return lambda calls: [playing.play(*arguments[1:]) for _, arguments, _ in calls]

    monkeypatch.setattr(playing, "Parallel", parallel)
    assert run_sweep(read_sweep(written), tmp_path / "out", workers=Workers(64)).finished == 4
    assert asked == [4]


def test_a_run_that_fails_is_told_and_the_others_go_on(written, finished, tmp_path):
    sweep = read_sweep(change(written, tmp_path, "[0.1, 0.5]", "[0.1, 1e30, 0.5]"))
    outcome = run_sweep(sweep, tmp_path / "out")
    assert outcome.finished == 4
    assert [name.split(",")[0] for name in outcome.failed] == ["local.learning_rate = 1e+30"] * 2
    assert all("lower 'local.learning_rate'" in reason for reason in outcome.failed.values())
    page = outcome.report.read_text()
    assert "1e+30" in page
    assert "learning_rate" in page
    kept = pd.read_csv(tmp_path / "out" / "results.csv")
    pd.testing.assert_frame_equal(kept, pd.read_csv(finished / "results.csv"))


def test_a_defect_leaves_its_traceback_until_the_run_succeeds(written, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("of all things")

    out = tmp_path / "out"
    monkeypatch.setattr(playing, "run", broken)
    outcome = run_sweep(read_sweep(written), out)
    assert (outcome.finished, set(outcome.failed.values())) == (0, {"ZeroDivisionError: of all things"})
    told = sorted(out.glob("runs/*.error.txt"))
    assert len(told) == 4
    assert all("in broken" in path.read_text() for path in told)
    monkeypatch.setattr(playing, "run", single.run)
    assert run_sweep(read_sweep(written), out).finished == 4
    assert not list(out.glob("runs/*.error.txt"))


def test_a_damaged_run_is_told_and_the_others_are_shown(written, finished, tmp_path):
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", finished, copy], check=True)
    first, second = sorted((copy / "runs").glob("*/"))[:2]
    (first / "clients.csv").unlink()
    (second / "summary.json").write_text("{")
    outcome = run_sweep(read_sweep(written), copy)
    assert outcome.finished == 2
    assert len(outcome.failed) == 2
    reasons = " ".join(outcome.failed.values())
    for damaged, name in ((first, "clients.csv"), (second, "summary.json")):
        assert f"{damaged / name}: cannot be read" in reasons
        assert f"remove {damaged} to do the run again" in reasons
        subprocess.run(["rm", "-r", damaged], check=True)
    assert len(pd.read_csv(copy / "results.csv")) == 2
    assert run_sweep(read_sweep(written), copy).finished == 4
    assert content(copy) == content(finished)


def test_a_sweep_killed_before_its_first_run_goes_on(written, finished, tmp_path):
    (tmp_path / "out/runs").mkdir(parents=True)
    (tmp_path / "out/base.toml").write_text(BASE)
    assert run_sweep(read_sweep(written), tmp_path / "out").finished == 4
    assert content(tmp_path / "out") == content(finished)


def test_of_two_sweeps_at_once_the_last_to_write_is_shown(written, finished, tmp_path):
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", finished, copy], check=True)
    fewer = read_sweep(change(written, tmp_path, "seeds = [0, 1]", "seeds = [1]"))
    # The other starts, and ends, while the first is at work.
    run_sweep(read_sweep(written), copy, begun=lambda _: run_sweep(fewer, copy) and None)
    assert read_sweep(copy / "sweep.toml").seeds == (0, 1)
    assert report_of_sweep(copy)
    assert content(copy) == content(finished)


def test_other_people_s_directories_are_left_alone(written, finished, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"foreign: exists already and is not a sweep's; choose another --out"):
        run_sweep(read_sweep(written), foreign)
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a directory"):
        run_sweep(read_sweep(written), tmp_path / "file")
    other = change(written, tmp_path, "A try", "Another try")
    (tmp_path / "base.toml").write_text(BASE.replace("hidden = 16", "hidden = 17"))
    with pytest.raises(InputError, match="is not a sweep's"):
        run_sweep(read_sweep(other), tmp_path)
    assert "Another try" in other.read_text()
    before = content(finished)
    with pytest.raises(InputError, match="holds a sweep of another base"):
        run_sweep(read_sweep(other), finished)
    assert content(finished) == before


def test_a_sweep_is_shown_again_without_its_data(finished, tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", finished, copy], check=True)
    for path in (*(copy / "tables").iterdir(), *(copy / "figures").iterdir(), copy / "report.html"):
        path.unlink()
    monkeypatch.setattr("shoal.config.build.load_dataset", None)
    assert report_of_sweep(copy) == copy / "report.html"
    assert content(copy) == content(finished)
    assert (copy / "report.html").read_bytes() == (finished / "report.html").read_bytes()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda out: (out / "results.csv").write_text("run,seed\nx,1\n"), "no local.learning_rate among its columns"),
        (lambda out: (out / "results.csv").unlink(), "has no results.csv"),
        (lambda out: (out / "timings.json").write_text("{"), "cannot be read"),
        (lambda out: (out / "timings.json").write_text("[5]"), "must hold a table a run"),
        (lambda out: (out / "results.csv").write_text("run,local.learning_rate,seed\nx,7,1\n"), "is never 7"),
    ],
)
def test_a_damaged_sweep_is_told(finished, tmp_path, damage, said):
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", finished, copy], check=True)
    damage(copy)
    with pytest.raises(InputError, match=said):
        report_of_sweep(copy)


RAY = """
import os, pathlib, sys
os.environ["RAY_AUTH_MODE"] = "disabled"
import ray
from shoal.sweeps import Workers, read_sweep, run_sweep
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
print(run_sweep(read_sweep(pathlib.Path(sys.argv[1])), pathlib.Path("swept"), workers=Workers(2, "auto")).finished)
"""


def test_on_a_ray_cluster_of_two_workers_it_gives_the_same_bytes(written, finished, tmp_path):
    # A process of its own, since a cluster's threads and warnings outlive it. Its directory is relative, and the
    # workers are elsewhere.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RAY, str(written)], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=300, env=os.environ | {"RAY_AUTH_MODE": "disabled"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4"]
    assert content(tmp_path / "swept") == content(finished)
    logs = (tmp_path / "swept").glob("runs/*/run.log")
    workers = {line.split()[2] for log in logs for line in log.read_text().splitlines()}
    assert len(workers) == 2
    assert str(os.getpid()) not in workers


def test_a_cluster_needs_ray_and_an_address_that_answers(monkeypatch):
    with pytest.raises(InputError, match="'--jobs' must be at least 1; got 0"):
        Workers(0)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install 'shoal\[ray\]'"):
        Workers(2, "auto")


def test_the_work_that_is_done_counts_images_and_not_runs(written, tmp_path):
    # A round of the first run has a twelfth of the second's images.
    asked = change(written, tmp_path, '"local.learning_rate" = [0.1, 0.5]', '"data.examples_per_client" = [1, 12]')
    text = asked.read_text().replace("[0, 1]", "[0]").replace("local.learning_rate", "data.examples_per_client")
    asked.write_text(text)
    seen = []
    run_sweep(read_sweep(asked), tmp_path / "out", begun=lambda now: seen.append(now()), ended=seen.append)
    assert [(now.finished, now.failed) for now in seen] == [(0, 0), (1, 0), (2, 0)]
    assert seen[0].done == 0
    assert seen[1].done == pytest.approx(1 / 13, abs=0.02)
    assert seen[2].done == 1
