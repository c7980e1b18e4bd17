"""A sweep's directory: what is done stays done, what is killed goes on, and what fails does not stop the rest."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import run_files
from forked_calls import workers_are_forks
from shoal.core import processes
from shoal.core.errors import InputError, ShoalError
from shoal.core.processes import Workplace
from shoal.data import load_dataset
from shoal.reports import plotting
from shoal.reports.sweep import sweep_page
from shoal.reports.sweep.report_spec import read_report_spec, require_shown
from shoal.runs.audits.audit_run import audit_run
from shoal.runs.run import run
from shoal.sweeps import Workers, plan, read_sweep, report_of_sweep, run_sweep, runner
from shoal.sweeps.plan import progress_of
from shoal.sweeps.results_table import by_size
from shoal.sweeps.sweep_file import SweepPoint
from unrendered import RENDER

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
"""


@pytest.fixture(scope="module")
def written(toy_sweep, tmp_path_factory):
    """The path of a sweep of four runs."""
    return toy_sweep(tmp_path_factory.mktemp("sweep"), SWEEP, engine={"threads": 1})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("mia.minority", "mia.minorty", "no run has the group 'minorty'; did you mean 'minority'?"),
        (
            "mia.minority",
            "model.minorty.mia",
            "has the metric 'model.minorty.mia'; docs",
        ),
        ("mia.minority", "migratd", "'tables.accuracy': no run has the metric 'migratd'; did you mean 'migrated'?"),
        ("mia.minority", "mia.few", "no run has the group 'few'; known: majority, minority"),
    ],
)
def test_metrics_that_no_run_can_have_are_refused_before_the_runs(written, tmp_path, old, new, said):
    (tmp_path / "wrong").mkdir()
    path = change(written, tmp_path / "wrong", old, new)
    with pytest.raises(InputError) as refused:
        run_sweep(read_sweep(path), tmp_path / "out")
    assert said in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_every_metric_of_the_published_sweeps_can_be_asked_for():
    groups = {"minority", "majority", "trained", "other", "unrotated", "all"}
    for path in sorted(Path("docs").rglob("results.csv")):
        columns = pd.read_csv(path, nrows=1).columns.tolist()
        metrics = columns[columns.index("seed") + 1 :]
        require_shown(read_report_spec({"tables": {"every": {"y": metrics}}}, {}, str(path)), groups)


@pytest.fixture
def two_runs(written, tmp_path):
    """The path of a sweep of two of them, without tables and figures."""
    (tmp_path / "two").mkdir()
    path = change(written, tmp_path / "two", "[0, 1]", "[0]")
    path.write_text(path.read_text().partition("[tables")[0])
    return path


def empty_page(out: Path, **_: object) -> None:
    (out / "report.html").touch()


@pytest.fixture
def _no_run_pages(monkeypatch):
    """The pages of single runs and the sweep's figures are empty, which saves most of a toy sweep's time."""
    monkeypatch.setattr(runner, "report_of", empty_page)


@pytest.fixture(scope="module")
def finished(written, tmp_path_factory):
    """The directory of the sweep of four runs, done one after the other; its figures and the runs' pages are empty."""
    out = tmp_path_factory.mktemp("out") / "whole"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner, "report_of", empty_page)
        outcome = run_sweep(read_sweep(written), out)
    assert (outcome.finished, outcome.failed) == (4, {})
    return out


@pytest.mark.usefixtures("_no_run_pages")
def test_one_run_with_several_jobs_is_done_here_and_these_train_its_references(two_runs, tmp_path, monkeypatch):
    left, given, do = plan.plan_runs(read_sweep(two_runs))[:1], [], runner.run
    (tmp_path / "runs").mkdir()

    def seen(*arguments, **others):
        given.append(others["workers"])
        return do(*arguments, **others)

    monkeypatch.setattr(runner, "run", seen)
    assert [*runner.run_all(left, Workplace(tmp_path / "runs", Workers(jobs=2)), runner.run_one)] == [
        (left[0].digest, None)
    ]
    assert (tmp_path / "runs" / left[0].digest / "report.html").exists()
    assert given == [Workers(jobs=2)]
    assert [*runner.run_all(left[:0], Workplace(tmp_path / "runs"), runner.run_one)] == []


def content(out: Path) -> dict[str, bytes]:
    """Every file that a sweep writes of its runs together, but the wall times and the page, which shows them."""
    files = [out / "results.csv", *sorted((out / "tables").iterdir()), *sorted((out / "figures").iterdir())]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def change(written: Path, folder: Path, old: str, new: str) -> Path:
    """The sweep with its text changed, in another folder."""
    shutil.copy(written.parent / "base.toml", folder)
    text = written.read_text()
    assert old in text
    (folder / "sweep.toml").write_text(text.replace(old, new))
    return folder / "sweep.toml"


def test_a_sweep_directory_holds_what_was_promised(finished):
    assert sorted(path.name for path in finished.iterdir()) == [
        "base.toml", "figures", "report.html", "results.csv", "runs", "sweep.toml", "tables", "timings.json",
    ]  # fmt: skip
    assert sorted(path.name for path in (finished / "tables").iterdir()) == [
        "accuracy.csv", "accuracy.md",
    ]  # fmt: skip
    assert sorted(path.name for path in (finished / "figures").iterdir()) == [
        "accuracy.pdf", "accuracy.svg",
    ]  # fmt: skip
    assert len(list(finished.glob("runs/*/summary.json"))) == len(list(finished.glob("runs/*/report.html"))) == 4


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


@pytest.mark.usefixtures("_no_run_pages")
def test_what_is_finished_is_not_done_again(written, finished, tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("a finished run was done again")

    before = content(finished)
    with monkeypatch.context() as patched:
        patched.setattr(runner, "run", never)
        assert run_sweep(read_sweep(written), finished).finished == 4
    assert content(finished) == before
    # Another seed is two more runs, and leaves the others alone.
    done = {path: path.stat().st_mtime_ns for path in finished.glob("runs/*/summary.json")}
    copy = shutil.copytree(finished, tmp_path / "more")
    more = run_sweep(read_sweep(change(written, tmp_path, "[0, 1]", "[0, 1, 2]")), copy)
    assert more.finished == 6
    now = {path: path.stat().st_mtime_ns for path in copy.glob("runs/*/summary.json")}
    assert len(now) == 6
    assert all(now[copy / path.relative_to(finished)] == time for path, time in done.items())


def test_a_page_that_is_missing_is_written_and_its_run_is_not_done_again(written, finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    page = next(copy.glob("runs/*/report.html"))
    page.unlink()
    before = {path: path.stat().st_mtime_ns for path in copy.glob("runs/*/*") if path != page}
    assert run_sweep(read_sweep(written), copy).finished == 4
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert {path: path.stat().st_mtime_ns for path in before} == before


def workers_of(out: Path) -> set[int]:
    """The processes that did the runs, from what they logged."""
    logs = [path.read_text() for path in out.glob("runs/*/run.log")]
    return {int(line.split()[2]) for log in logs for line in log.splitlines()}


@pytest.mark.usefixtures("_no_run_pages")
@pytest.mark.processes
def test_a_sweep_of_which_a_worker_is_killed_says_so_and_goes_on_when_started_again(written, finished, tmp_path):
    def kill(_):
        os.kill(active_children()[0].pid, signal.SIGKILL)

    watch = SimpleNamespace(started=lambda _: None, run_ended=kill)

    with workers_are_forks(), pytest.raises(ShoalError, match="a worker process was killed"):
        run_sweep(read_sweep(written), tmp_path / "out", workers=Workers(jobs=2), watch=watch)
    outcome = run_sweep(read_sweep(written), tmp_path / "out")
    assert (outcome.finished, outcome.failed) == (4, {})
    assert content(tmp_path / "out") == content(finished)


@pytest.mark.usefixtures("_no_run_pages")
def test_a_run_that_two_sweeps_want_at_once_is_done_once(two_runs, tmp_path):
    first, outcomes, others = plan.plan_runs(read_sweep(two_runs))[0], [], []

    def want():
        outcomes.append(runner.run_one(Workplace(tmp_path), (first.config, first.digest)))

    def watch(simulation, progress, report):
        if report is None:
            others.append(threading.Thread(target=want))
            others[0].start()

    outcomes.append(runner.run_one(Workplace(tmp_path, watch=watch), (first.config, first.digest)))
    others[0].join()
    assert outcomes == [(first.digest, None)] * 2
    assert (tmp_path / first.digest / "run.log").read_text().count("begin") == 1


@pytest.mark.usefixtures("_no_run_pages")
def test_a_sweep_calls_an_own_algorithm_by_its_title_unless_the_file_has_a_label(two_runs, tmp_path, monkeypatch):
    (tmp_path / "titled.py").write_text(
        "from typing import ClassVar\nfrom shoal import IFCA\nfrom shoal.core.settings import settings\n"
        "@settings\nclass Own(IFCA):\n    title: ClassVar[str] = 'Clusters of mine'\n"
        "@settings\nclass Other(Own):\n    title: ClassVar[str] = 'Others'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = two_runs.read_text().replace(
        '"local.learning_rate" = [0.1, 0.5]', '"algorithm.name" = ["titled:Own", "titled:Other"]'
    )
    two_runs.write_text(text + '[labels]\n"titled:Other" = "The other"\n')
    shown = []
    monkeypatch.setattr(sweep_page, "write_sweep_report", lambda out, *, spec, **_: shown.append(spec.labels))
    run_sweep(read_sweep(two_runs), tmp_path / "out")
    assert shown == [{"titled:Own": "Clusters of mine", "titled:Other": "The other"}]


@pytest.mark.usefixtures("_no_run_pages")
def test_there_are_no_more_workers_than_runs(two_runs, tmp_path, monkeypatch):
    numbers, of_threads = [], []

    def unordered(self, work, shared, items):
        numbers.append((self.jobs, len(items)))
        of_threads.extend(config.engine.threads for config, _ in items)
        yield from (work(shared, item) for item in items)

    monkeypatch.setattr(Workers, "unordered", unordered)
    monkeypatch.setattr(processes, "cores", lambda: 7)
    base = two_runs.parent / "base.toml"
    base.write_text(base.read_text().replace("threads = 1", ""))
    assert run_sweep(read_sweep(two_runs), tmp_path / "out", workers=Workers(64)).finished == 2
    assert numbers == [(2, 2)]
    assert of_threads == [3, 3], "no more threads of all runs together than cores"


@pytest.fixture
def loads(monkeypatch):
    """The tasks of the data sets that are loaded, one after the other."""
    tasks = []

    def load(source, *, task, **other):
        tasks.append(task)
        return load_dataset(source, task=task, **other)

    monkeypatch.setattr("shoal.config.build.load_dataset", load)
    return tasks


@pytest.mark.usefixtures("_no_run_pages")
def test_a_process_loads_the_data_of_a_sweep_once(two_runs, loads, tmp_path):
    sweep = read_sweep(two_runs)
    assert run_sweep(sweep, tmp_path / "one").finished == 2
    assert len(loads) == 1
    # Another sweep loads anew: its files may be others by now.
    planned = plan.plan_runs(sweep)
    assert len(loads) == 2
    # As a worker process, which has not planned.
    plan.forget_datasets()
    for each in planned:
        assert runner.run_one(Workplace(tmp_path), (each.config, each.digest)) == (each.digest, None)
    assert len(loads) == 3


def test_a_process_keeps_few_data_sets(toy_config, loads):
    tasks = [None, "class/thick", "class/slanted"]
    assert len(tasks) == plan.LOADED_DATASETS + 1
    plan.forget_datasets()
    for task in (*tasks, *tasks):
        plan.dataset_of(toy_config(data__task=task) if task else toy_config(), None)
    assert loads == [*tasks, *tasks], "the oldest makes room"
    plan.dataset_of(toy_config(data__task=tasks[-1]), None)
    assert len(loads) == 6
    plan.forget_datasets()


def test_relative_and_absolute_paths_are_one_data_set(toy_config, monkeypatch, tmp_path):
    paths = []
    monkeypatch.setattr("shoal.config.build.load_dataset", lambda *_, path, **__: paths.append(path))
    monkeypatch.chdir(tmp_path)
    plan.forget_datasets()
    for path in ("digits", str(tmp_path / "digits")):
        plan.dataset_of(toy_config(data__source="idx", data__path=path), None)
    assert paths == [tmp_path / "digits"]
    plan.forget_datasets()


@pytest.mark.usefixtures("_no_run_pages")
def test_a_run_that_fails_is_told_and_the_others_go_on(written, finished, tmp_path):
    sweep = read_sweep(change(written, tmp_path, "[0.1, 0.5]", "[0.1, 1e30, 0.5]"))
    outcome = run_sweep(sweep, tmp_path / "out")
    assert outcome.finished == 4
    assert [name.split(",")[0] for name in outcome.failed] == ["local.learning_rate = 1e+30"] * 2
    assert all("lower 'learning_rate'" in reason for reason in outcome.failed.values())
    page = outcome.report.read_text()
    assert "1e+30" in page
    assert "learning_rate" in page
    kept = pd.read_csv(tmp_path / "out" / "results.csv")
    pd.testing.assert_frame_equal(kept, pd.read_csv(finished / "results.csv"))


@pytest.mark.usefixtures("_no_run_pages")
def test_a_defect_leaves_its_traceback_until_the_run_succeeds(two_runs, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("of all things")

    out = tmp_path / "out"
    monkeypatch.setattr(runner, "run", broken)
    outcome = run_sweep(read_sweep(two_runs), out)
    assert (outcome.finished, set(outcome.failed.values())) == (0, {"ZeroDivisionError: of all things"})
    tracebacks = sorted(out.glob("runs/*.error.txt"))
    assert len(tracebacks) == 2
    assert all("in broken" in path.read_text() for path in tracebacks)
    monkeypatch.setattr(runner, "run", run)
    assert run_sweep(read_sweep(two_runs), out).finished == 2
    assert not list(out.glob("runs/*.error.txt"))


@pytest.mark.usefixtures("_no_run_pages")
def test_a_damaged_run_is_told_and_the_others_are_shown(written, finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    first, second = sorted((copy / "runs").glob("*/"))[:2]
    (first / "clients.csv").unlink()
    (second / "summary.json").write_text("{")
    outcome = run_sweep(read_sweep(written), copy)
    assert outcome.finished == 2
    assert len(outcome.failed) == 2
    reasons = " ".join(outcome.failed.values())
    for damaged, name in ((first, "clients.csv"), (second, "summary.json")):
        assert f"{damaged / name}: cannot be read" in reasons
        assert f"remove {damaged}" in reasons
        shutil.rmtree(damaged)
    assert len(pd.read_csv(copy / "results.csv")) == 2
    assert run_sweep(read_sweep(written), copy).finished == 4
    assert content(copy) == content(finished)


@pytest.mark.usefixtures("_no_run_pages")
def test_a_sweep_killed_before_its_first_run_goes_on(two_runs, finished, tmp_path):
    (tmp_path / "out/runs").mkdir(parents=True)
    shutil.copy(two_runs.parent / "base.toml", tmp_path / "out")
    assert run_sweep(read_sweep(two_runs), tmp_path / "out").finished == 2
    done = pd.read_csv(finished / "results.csv")
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "out/results.csv"), done[done["seed"] == 0].reset_index(drop=True)
    )


def test_of_two_sweeps_at_once_the_last_to_write_is_shown(written, finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    fewer = read_sweep(change(written, tmp_path, "seeds = [0, 1]", "seeds = [1]"))
    # The other starts, and ends, while the first is at work.
    watch = SimpleNamespace(started=lambda _: run_sweep(fewer, copy), run_ended=lambda _: None)
    run_sweep(read_sweep(written), copy, watch=watch)
    assert read_sweep(copy / "sweep.toml").seeds == (0, 1)
    assert report_of_sweep(copy)
    assert content(copy) == content(finished)


def test_other_people_s_directories_are_left_alone(written, finished, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"foreign: exists already and is not the directory of a sweep"):
        run_sweep(read_sweep(written), foreign)
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a directory"):
        run_sweep(read_sweep(written), tmp_path / "file")
    other = change(written, tmp_path, "A try", "Another try")
    base = tmp_path / "base.toml"
    base.write_text(base.read_text().replace("hidden = 16", "hidden = 17"))
    with pytest.raises(InputError, match="is not the directory of a sweep"):
        run_sweep(read_sweep(other), tmp_path)
    assert "Another try" in other.read_text()
    before = content(finished)
    with pytest.raises(InputError, match="has a sweep with another base"):
        run_sweep(read_sweep(other), finished)
    assert content(finished) == before


def test_a_sweep_is_shown_again_without_its_data(finished, tmp_path, monkeypatch):
    """With its figures, which the other tests leave empty."""
    monkeypatch.setattr("shoal.config.build.load_dataset", None)
    monkeypatch.setattr(plotting, "_render", RENDER)
    shown = []
    for name in ("one", "other"):
        copy = shutil.copytree(finished, tmp_path / name)
        for path in (*(copy / "tables").iterdir(), *(copy / "figures").iterdir(), copy / "report.html"):
            path.unlink()
        assert report_of_sweep(copy) == copy / "report.html"
        shown.append(content(copy) | {"report.html": (copy / "report.html").read_bytes()})
    assert shown[0] == shown[1]
    empty = content(finished)
    assert shown[0].keys() == empty.keys() | {"report.html"}
    for path, made in empty.items():
        assert (shown[0][path] == made) == (not path.startswith("figures"))
        assert not path.endswith(".pdf") or shown[0][path].startswith(b"%PDF")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda out: (out / "results.csv").write_text("run,seed\nx,1\n"), "missing columns: local.learning_rate"),
        (lambda out: (out / "results.csv").unlink(), "has no results.csv"),
        (lambda out: (out / "timings.json").write_text("{"), "cannot be read"),
        (lambda out: (out / "timings.json").write_text("[5]"), "one table per run"),
        (lambda out: (out / "results.csv").write_text("run,local.learning_rate,seed\nx,7,1\n"), "got 7"),
    ],
)
def test_a_damaged_sweep_is_told(finished, tmp_path, damage, said):
    copy = shutil.copytree(finished, tmp_path / "copy")
    damage(copy)
    with pytest.raises(InputError, match=said):
        report_of_sweep(copy)


RAY = """
import os, pathlib, sys
os.environ["RAY_AUTH_MODE"] = "disabled"
import ray
from shoal.runs.audits.audit_run import audit_run
from shoal.sweeps import Workers, read_sweep, run_sweep
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
import shoal
audited = shoal.audit_run(sys.argv[2], references=2, jobs=2, cluster="auto")
sweep = read_sweep(pathlib.Path(sys.argv[1]))
print("finished:", run_sweep(sweep, pathlib.Path("swept"), workers=Workers(2, "auto")).finished)
"""


@pytest.mark.processes
def test_on_a_ray_cluster_of_two_workers_it_gives_the_same_bytes(two_runs, finished, tmp_path):
    run = shutil.copytree(sorted(finished.glob("runs/*/"))[0], tmp_path / "audited")
    here = audit_run(shutil.copytree(run, tmp_path / "here"), references=2)
    # A process of its own, since a cluster's threads and warnings outlive it. Its directory is relative, and the
    # workers are elsewhere.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RAY, str(two_runs), str(run)], cwd=tmp_path, capture_output=True,
        text=True, check=False, timeout=300, env=os.environ | {"RAY_AUTH_MODE": "disabled"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Ray says on standard output, too, that a worker ended while it was shut down.
    assert "finished: 2" in done.stdout.splitlines(), done.stdout[:1500]
    swept = sorted((tmp_path / "swept").glob("runs/*/"))
    assert len(swept) == 2
    for out in swept:
        assert run_files.content(out) == run_files.content(finished / "runs" / out.name)
        assert (out / "report.html").read_text().startswith("<!DOCTYPE html>")
    whole, part = (pd.read_csv(out / "results.csv", dtype=str) for out in (finished, tmp_path / "swept"))
    pd.testing.assert_frame_equal(part, whole[whole["seed"] == "0"].reset_index(drop=True))
    flat = json.loads((run / "audit.json").read_text())
    assert {key: flat[key] for key in flat if not key.startswith("seconds.")} == {
        key: value for key, value in here.flat.items() if not key.startswith("seconds.")
    }
    assert len(workers_of(tmp_path / "swept")) == 2
    assert os.getpid() not in workers_of(tmp_path / "swept")


@pytest.mark.usefixtures("_no_run_pages")
def test_the_work_that_is_done_counts_images_and_not_runs(two_runs, tmp_path):
    # A round of the first run has a twelfth of the second's images.
    path = change(two_runs, tmp_path, '"local.learning_rate" = [0.1, 0.5]', '"data.examples_per_client" = [1, 12]')
    states = []
    watch = SimpleNamespace(started=lambda now: states.append(now()), run_ended=states.append)
    run_sweep(read_sweep(path), tmp_path / "out", watch=watch)
    assert [(now.finished, now.failed) for now in states] == [(0, 0), (1, 0), (2, 0)]
    assert states[0].done == 0
    assert states[1].done == pytest.approx(1 / 13, abs=0.02)
    assert states[2].done == 1


def test_progress_counts_the_rounds_of_reference_federations(toy_config, tmp_path):
    config = toy_config(algorithm__rounds=4, evaluation__reference_federations=3)
    planned = [plan.PlannedRun(SweepPoint({}, 0, config), config, "run", 120)]
    assert progress_of(planned, tmp_path, 0).done == 0
    out = tmp_path / "run"
    (out / "checkpoint").mkdir(parents=True)
    (out / "checkpoint" / "round-000004-0.safetensors").touch()
    assert progress_of(planned, tmp_path, 0).done == pytest.approx(1 / 4)
    (out / "references").mkdir()
    for name in ("000", "001", "003", "attacked"):
        (out / "references" / f"{name}.safetensors").touch()
    assert progress_of(planned, tmp_path, 0).done == pytest.approx(3 / 4), "a fourth was not asked for"
    (out / "summary.json").touch()
    assert progress_of(planned, tmp_path, 0).done == 1
