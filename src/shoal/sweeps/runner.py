"""The execution of a sweep in a directory: finished runs stay, interrupted runs resume, and a page shows the results.

docs/sweeps.md lists the files.
"""

import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import tomli_w
from filelock import FileLock

from shoal.audit.measurement import declared_metrics
from shoal.config.kinds import title_of
from shoal.config.schema import Config
from shoal.config.toml_files import read_toml
from shoal.core.atomic_files import remove_unfinished, write_text
from shoal.core.errors import InputError, ShoalError, file_errors, require
from shoal.core.processes import SEQUENTIAL, Workers, Workplace
from shoal.reports.sweep.report_spec import require_shown, said_of
from shoal.runs.directory import is_finished
from shoal.runs.result import report_of
from shoal.runs.run import run
from shoal.simulation.play import Watch
from shoal.sweeps.plan import PlannedRun, SweepProgress, dataset_of, forget_datasets, plan_runs, progress_of
from shoal.sweeps.results_table import read_results, row_of, write_results
from shoal.sweeps.sweep_file import Sweep, read_sweep

UNFINISHED = "not finished"


@dataclass(frozen=True)
class SweepResult:
    """The outcome of a sweep.

    Args:
        failed: the reason for each failed run, by the run's settings and seed in words.
    """

    report: Path
    finished: int
    failed: Mapping[str, str]


class SweepWatch(Protocol):
    """A display of a sweep's progress."""

    def started(self, progress: Callable[[], SweepProgress], /) -> None:
        """Show the sweep before its first run; ``progress`` returns the present progress at each call."""
        ...

    def run_ended(self, now: SweepProgress, /) -> None:
        """Show that a run ended."""
        ...


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    workers: Workers = SEQUENTIAL,
    data_dir: Path | None = None,
    watch: SweepWatch | None = None,
) -> SweepResult:
    """Carry out the unfinished runs of a sweep in the directory ``out``, and write the tables, figures and page.

    Args:
        out: the sweep's directory; finished runs in an existing directory stay.
        workers: the processes that carry out the runs; the default is this process, one run at a time.
        data_dir: the folder that is searched first for data.

    Raises:
        InputError: a run's settings do not fit together; no file is written.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import tomli_w
        >>> import pandas as pd
        >>> from shoal.sweeps import Workers, read_sweep, run_sweep
        >>> data = {"source": "digits", "clients": 4, "examples_per_client": 10, "test_examples": 20}
        >>> base = {"data": data, "model": {"name": "logistic"}, "algorithm": {"name": "fedavg", "rounds": 1}}
        >>> base["red_team"] = {"every": 0, "attack": "gap"}
        >>> asked = {"base": "base.toml", "seeds": [0], "grid": {"local.epochs": [5]}}
        >>> with TemporaryDirectory() as folder:
        ...     _ = Path(folder, "base.toml").write_text(tomli_w.dumps(base))
        ...     _ = Path(folder, "epochs.toml").write_text(tomli_w.dumps(asked))
        ...     sweep, workers = read_sweep(Path(folder, "epochs.toml")), Workers(jobs=1)
        ...     outcome = run_sweep(sweep, Path(folder, "out"), workers=workers)
        ...     pd.read_csv(Path(folder, "out", "results.csv"))["local.epochs"].tolist()
        ...
        [5]
        >>> outcome.finished, outcome.failed
        (1, {})
    """
    planned = plan_runs(sweep, data_dir)
    with said_of(sweep.name):
        declared = {metric.key for job in planned for metric in declared_metrics(job.config.evaluation.own_metrics())}
        require_shown(sweep.shown, {name for job in planned for name in job.config.data.groups}, declared)
    runs = _open(out, sweep)
    finished = finish_runs(planned, Workplace(runs, workers, data_dir, watch))
    with _lock(out):
        _write_sweep(out, sweep)
        write_results(out, finished.rows)
        report = _write_outputs(out, sweep, finished.missing)
    return SweepResult(report, len(finished.rows), finished.failed)


@dataclass(frozen=True)
class FinishedRuns:
    """The finished and the unfinished runs of a plan.

    Args:
        rows: the rows of results.csv, one per finished run.
        missing: the settings and seed of each unfinished run, and the reason.
    """

    rows: Sequence[Mapping[str, Any]]
    missing: Sequence[tuple[Mapping[str, Any], str]]
    failed: Mapping[str, str]

    def require_all(self) -> None:
        """Raise `ShoalError` for the first failed run."""
        for name, reason in self.failed.items():
            raise ShoalError(f"{name}: failed: {' '.join(reason.split())}")


_Work = Callable[[Workplace[Watch], tuple[Config, str]], tuple[str, str | None]]


def finish_runs(
    planned: Sequence[PlannedRun], place: Workplace[SweepWatch], *, work: _Work | None = None
) -> FinishedRuns:
    """Carry out the unfinished runs of ``planned`` in the folder of a workplace.

    Args:
        place: the folder, the workers and the display.
        work: the function that carries out one run without a page. ``None`` uses `run_one` with pages. Calls with the
            same ``work`` share worker processes.
    """
    pages = work is None
    failed, runs, watch = dict[str, str](), place.out, place.watch

    def now() -> SweepProgress:
        return progress_of(planned, runs, len(failed))

    if watch is not None:
        watch.started(now)
    left = [job for job in planned if not _is_complete(runs / job.digest, pages=pages)]
    for digest, reason in run_all(left, place, work or run_one):
        if reason is not None:
            failed[digest] = reason
        if watch is not None:
            watch.run_ended(now())
    forget_datasets()
    rows, missing = [], []
    for job in planned:
        settings, directory = job.run.settings, runs / job.digest
        if is_finished(directory):
            try:
                rows.append(row_of(directory, settings, job.run.seed))
                continue
            except InputError as error:
                failed[job.digest] = f"{error}; remove {directory} to repeat the run"
        missing.append(({**settings, "seed": job.run.seed}, failed.get(job.digest, UNFINISHED)))
    names = {job.digest: str(job.run) for job in planned}
    return FinishedRuns(rows, missing, {names[digest]: reason for digest, reason in failed.items()})


def run_all(
    planned: Sequence[PlannedRun], place: Workplace[SweepWatch], work: _Work
) -> Iterator[tuple[str, str | None]]:
    """Carry out runs in the folder of ``place``.

    Yields:
        Each run's digest as the run ends, with the reason of a failure or None.
    """
    workers, runs, data_dir = place.workers.at_most(len(planned)), place.out, place.data_dir
    items = [(job.config, job.digest) for job in planned]
    # All workers train the reference federations of a run that is alone.
    references = place.workers if workers.here and len(planned) == 1 else SEQUENTIAL
    if not workers.here:
        # The workers load their own.
        forget_datasets()
        runs, data_dir = runs.resolve(), None if data_dir is None else data_dir.resolve()
        items = [(_threads(config, workers.threads), digest) for config, digest in items]
    yield from workers.unordered(work, Workplace(runs, references, data_dir), items)


def run_one(place: Workplace[Watch], item: tuple[Config, str], *, pages: bool = True) -> tuple[str, str | None]:
    """Carry out or resume one run in the folder of ``place``, and write its page.

    A lock keeps other processes out of the run's directory.

    Returns:
        The digest, and the reason of a failure or None.
    """
    (config, digest), runs = item, place.out
    out = runs / digest
    with FileLock(runs / f".{digest}.lock"):
        try:
            dataset = dataset_of(config, place.data_dir)
            run(config, out, resume=out.exists(), dataset=dataset, watch=place.watch, workers=place.workers)
            if pages:
                report_of(out, allow_code=True)
        except InputError as error:
            foreign = out.exists() and not (out / "config.toml").exists()
            return digest, f"{error}; or remove {out} to repeat the run" if foreign else str(error)
        except Exception as error:
            # The other runs go on.
            write_text(runs / f"{digest}.error.txt", traceback.format_exc())
            return digest, f"{type(error).__name__}: {error}"
    (runs / f"{digest}.error.txt").unlink(missing_ok=True)
    return digest, None


def _threads(config: Config, most: int) -> Config:
    return replace(config, engine=replace(config.engine, threads=min(config.engine.threads or most, most)))


def report_of_sweep(out: Path, *, allow_code: bool = False) -> Path:
    """Rewrite the tables, figures and page of a sweep from its directory, and return the page's path.

    Args:
        out: the sweep's directory.
        allow_code: see `shoal.load`.

    Raises:
        InputError: ``out`` is not a sweep's directory, or a file is missing or damaged.
    """
    with _lock(out):
        sweep = read_sweep(out / "sweep.toml", allow_code=allow_code)
        done = read_results(out, sweep.axes)
        finished = set(done[[*sweep.axes, "seed"]].itertuples(index=False, name=None))
        missing = [
            ({**run.settings, "seed": run.seed}, UNFINISHED)
            for run in sweep.runs
            if (*run.settings.values(), run.seed) not in finished
        ]
        return _write_outputs(out, sweep, missing)


def is_sweep(out: Path) -> bool:
    """Return whether ``out`` is the directory of a sweep."""
    return (out / "sweep.toml").exists()


def _is_complete(out: Path, *, pages: bool) -> bool:
    """Return whether a run is finished and, with ``pages``, has its page, which is written last."""
    return is_finished(out) and (not pages or (out / "report.html").exists())


def _write_outputs(out: Path, sweep: Sweep, missing: Sequence[tuple[Mapping[str, Any], str]]) -> Path:
    # Here, so that the command line does not load matplotlib and jinja2 before it needs them.
    from shoal.reports.sweep.sweep_page import write_sweep_report  # noqa: PLC0415

    algorithms = [run.config.algorithm for run in sweep.runs]
    titles = {algorithm.name: title_of(algorithm.value) for algorithm in algorithms if ":" in algorithm.name}
    return write_sweep_report(
        out,
        title=sweep.title,
        spec=replace(sweep.shown, labels=titles | sweep.shown.labels),
        axes=sweep.axes,
        seeds=sweep.seeds,
        results=read_results(out, sweep.axes),
        missing=missing,
        source=sweep.toml("base.toml"),
    )


def _open(out: Path, sweep: Sweep) -> Path:
    """Create the sweep's directory if missing, and return the folder of runs."""
    base = out / "base.toml"
    if out.exists():
        require(out.is_dir(), f"{out}: is not a directory; choose another --out")
        # A sweep that was killed at its start may have written base.toml alone.
        ours = base.exists() and (out / "runs").is_dir()
        foreign = [path for path in out.iterdir() if path.name != "runs" and not path.name.startswith(".")]
        require(ours or not foreign, f"{out}: exists already and is not the directory of a sweep; choose another --out")
        require(
            not ours or read_toml(base) == sweep.base,
            f"{out}: has a sweep with another base configuration; choose another --out",
        )
    runs = out / "runs"
    with file_errors(out, "; choose another --out", action="written"):
        runs.mkdir(parents=True, exist_ok=True)
        with _lock(out):
            remove_unfinished(out)
            _write_sweep(out, sweep)
    return runs


def _write_sweep(out: Path, sweep: Sweep) -> None:
    """Write base.toml and sweep.toml, unless unchanged, because existing files may be the originals."""
    for name, text in (("base.toml", tomli_w.dumps(dict(sweep.base))), ("sweep.toml", sweep.toml("base.toml"))):
        path = out / name
        if not path.exists() or read_toml(path) != tomllib.loads(text):
            write_text(path, text)


def _lock(out: Path) -> FileLock:
    """Return a lock against simultaneous sweeps in the same directory."""
    return FileLock(out / "runs" / ".sweep.lock")
