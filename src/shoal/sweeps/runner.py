"""A sweep is a directory of runs: what is finished stays, what is broken goes on, and then it is all shown.

sweep.toml, base.toml   what was asked; `shoal sweep` goes on from them as from the originals
runs/DIGEST/            a run's directory, named by what it runs
results.csv             a row a finished run; timings.json its wall times
tables/, figures/       what the sweep's file asks for
report.html             all of it, to look at
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w
from filelock import FileLock

from shoal.config.validation import read_toml
from shoal.core.atomic_files import remove_unfinished, write_text
from shoal.core.errors import InputError, require
from shoal.reports.run.page import ROUND_COLUMNS
from shoal.reports.sweep import write_sweep_report
from shoal.runs.files import read_table
from shoal.runs.run import is_finished
from shoal.sweeps.plan import plan
from shoal.sweeps.progress import SweepProgress, standing
from shoal.sweeps.results import read_results, row_of, write_results
from shoal.sweeps.spec import Sweep, read_sweep
from shoal.sweeps.workers import Workers

UNFINISHED = "not finished"


@dataclass(frozen=True)
class Outcome:
    """A sweep that ended.

    Args:
        report: its page.
        finished: how many runs are done.
        failed: the runs that failed, as people call them, with the reasons.
    """

    report: Path
    finished: int
    failed: Mapping[str, str]


Begun = Callable[[Callable[[], SweepProgress]], None]
"""Called before the first run with a function that tells how far the sweep is, at any time."""


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    workers: Workers | None = None,
    data_dir: Path | None = None,
    begun: Begun | None = None,
    ended: Callable[[SweepProgress], None] | None = None,
) -> Outcome:
    """Do what is left of a sweep in the directory ``out``, and show what came out.

    Args:
        sweep: what to run.
        out: its directory; one that holds runs of the sweep already is gone on with.
        workers: where runs are done; by default one after the other in this process.
        data_dir: where to look for data first.
        begun: see `Begun`.
        ended: called after each run.

    Raises:
        InputError: a sweep that cannot be run; nothing has been written then.
    """
    planned = plan(sweep, data_dir)
    runs = _open(out, sweep)
    failed: dict[str, str] = {}

    def now() -> SweepProgress:
        return standing(planned, runs, len(failed))

    if begun is not None:
        begun(now)
    left = [each for each in planned if not is_finished(runs / each.digest)]
    names = {each.digest: str(each.run) for each in planned}
    for digest, reason in (workers or Workers()).play(left, runs, data_dir):
        if reason is not None:
            failed[digest] = reason
        if ended is not None:
            ended(now())
    rows, missing = [], []
    for each in planned:
        settings, directory = each.run.settings, runs / each.digest
        if is_finished(directory):
            try:
                rows.append(row_of(directory, settings, each.run.seed))
                continue
            except InputError as error:
                failed[each.digest] = f"{error}; remove {directory} to do the run again"
        missing.append(({**settings, "seed": each.run.seed}, failed.get(each.digest, UNFINISHED)))
    with _alone(out):
        _write_asked(out, sweep)
        write_results(out, rows)
        report = _show(out, sweep, missing)
    return Outcome(report, len(rows), {names[digest]: reason for digest, reason in failed.items()})


def report_of_sweep(out: Path) -> Path:
    """Show a sweep again from its directory, without its data; returns the path of its page.

    Raises:
        InputError: ``out`` holds no sweep, or one of its files is missing or damaged.
    """
    with _alone(out):
        sweep = read_sweep(out / "sweep.toml")
        done = read_results(out, sweep.axes)
        known = set(done[[*sweep.axes, "seed"]].itertuples(index=False, name=None))
        missing = [
            ({**run.settings, "seed": run.seed}, UNFINISHED)
            for run in sweep.runs
            if (*run.settings.values(), run.seed) not in known
        ]
        return _show(out, sweep, missing)


def is_sweep(out: Path) -> bool:
    """Whether a directory is a sweep's."""
    return (out / "sweep.toml").exists()


def _show(out: Path, sweep: Sweep, missing: Sequence[tuple[Mapping[str, Any], str]]) -> Path:
    # Several figures draw the same runs.
    @cache
    def read_rounds(digest: str) -> pd.DataFrame:
        return read_table(out / "runs" / digest / "rounds.csv", ROUND_COLUMNS)

    return write_sweep_report(
        out,
        title=sweep.title,
        spec=sweep.shown,
        axes=sweep.axes,
        seeds=sweep.seeds,
        results=read_results(out, sweep.axes),
        missing=missing,
        read_rounds=read_rounds,
        source=sweep.toml("base.toml"),
    )


def _open(out: Path, sweep: Sweep) -> Path:
    """Make the sweep's directory, or find it; returns the folder of its runs."""
    base = out / "base.toml"
    if out.exists():
        require(out.is_dir(), f"{out}: is not a directory; choose another --out")
        # One killed at its start may have its base alone.
        known = base.exists() and (out / "runs").is_dir()
        others = [path for path in out.iterdir() if path.name != "runs" and not path.name.startswith(".")]
        require(known or not others, f"{out}: exists already and is not a sweep's; choose another --out")
        require(
            not known or read_toml(base) == sweep.base,
            f"{out}: holds a sweep of another base; choose another --out",
        )
    runs = out / "runs"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with _alone(out):
            remove_unfinished(out)
            _write_asked(out, sweep)
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    return runs


def _write_asked(out: Path, sweep: Sweep) -> None:
    """Write base.toml and sweep.toml, but where they say the same already: they may be somebody's originals."""
    for name, text in (("base.toml", tomli_w.dumps(dict(sweep.base))), ("sweep.toml", sweep.toml("base.toml"))):
        path = out / name
        if not path.exists() or read_toml(path) != tomllib.loads(text):
            write_text(path, text)


def _alone(out: Path) -> FileLock:
    """Keeps sweeps that share a directory from writing their results and pages into each other's."""
    return FileLock(out / "runs" / ".sweep.lock")
