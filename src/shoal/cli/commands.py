"""What the commands of the command line do; `shoal.cli.app` has what they take.

It is a file of its own because it loads the whole package, which ``shoal --help`` and a wrong option need not wait for.
"""

import sys
from pathlib import Path

import pandas as pd
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal.audit.audit import parse_gates
from shoal.cli.displays import AuditDisplay, SweepDisplay, in_words
from shoal.config.build import load_data, resolve
from shoal.config.kinds import made
from shoal.config.schema import read_config
from shoal.config.starter import write_starter
from shoal.core.errors import require
from shoal.data.paired_records import Duplicates
from shoal.data.sources.catalog import availability, user_cache
from shoal.data.sources.hub import fetch
from shoal.reports.run.run_verdict import verdict
from shoal.runs.audits.audit_members import audit_scores, audit_trace
from shoal.runs.audits.audit_run import audit_run
from shoal.runs.comparison import compare as compare_runs
from shoal.runs.files import read_summary
from shoal.runs.progress import Display
from shoal.runs.record import read_description
from shoal.runs.result import report_of
from shoal.runs.run import run as run_config
from shoal.sweeps import Workers, is_sweep, read_sweep, report_of_sweep, run_sweep


def init(file: Path, source: str, algorithm: str) -> None:
    """See `shoal.cli.app.init`."""
    write_starter(file, source, algorithm)
    typer.echo(f"{file} is written; 'shoal data {file}' shows its data, and 'shoal run {file}' trains")


def run(
    config: Path, *, out: Path | None, changes: list[str], resume: bool, data_dir: Path | None, quiet: bool
) -> None:
    """See `shoal.cli.app.run`."""
    given = read_config(config, changes)
    directory = out if out is not None else Path("runs") / config.stem
    with Display(Console(stderr=True, quiet=quiet)) as display:
        run_config(
            given,
            directory,
            resume=resume,
            data_dir=data_dir,
            watch=display,
            watch_references=display.reference_federations,
        )
    page = report_of(directory)
    typer.echo(verdict(read_summary(directory), read_description(directory).kind))
    typer.echo(f"Report: {page}")


def sweep(
    sweep: Path,
    *,
    changes: list[str],
    out: Path | None,
    jobs: int,
    cluster: str | None,
    data_dir: Path | None,
    quiet: bool,
) -> None:
    """See `shoal.cli.app.sweep`."""
    given = read_sweep(sweep, changes)
    directory = out if out is not None else Path("runs") / sweep.stem
    with SweepDisplay(Console(stderr=True, quiet=quiet)) as display:
        outcome = run_sweep(
            given,
            directory,
            workers=Workers(jobs, cluster),
            data_dir=data_dir,
            on_start=display.started,
            on_run_end=display.run_ended,
        )
    for run, reason in outcome.failed.items():
        typer.echo(f"shoal: {run}: failed: {' '.join(reason.split())}", err=True)
    typer.echo(f"{outcome.finished} of {len(given.runs)} runs are done: {directory / 'results.csv'}")
    typer.echo(f"Report: {outcome.report}")
    if outcome.failed:
        raise typer.Exit(1)


def audit(
    run: Path | None,
    *,
    references: int,
    scores: Path | None,
    trace: Path | None,
    gate: list[str],
    attack: list[str],
    duplicates: Duplicates | None,
    out: Path | None,
    data_dir: Path | None,
    quiet: bool,
) -> None:
    """See `shoal.cli.app.audit`."""
    gates, attacks = parse_gates(gate), [made(name, "--attack") for name in attack]
    given = [each for each in (run, scores, trace) if each is not None]
    require(len(given) == 1, "shoal audit takes one of a run's directory, --scores FILE and --trace DIR")
    require(
        duplicates is None or run is not None,
        "'--leave-out-duplicates' compares the examples of a run; leave it out with --scores and --trace",
    )
    if scores is not None:
        outcome = audit_scores(scores, out=out, gates=gate, attacks=attacks)
    elif trace is not None:
        outcome = audit_trace(trace, out=out, data_dir=data_dir, gates=gate, attacks=attacks)
    else:
        assert run is not None
        with AuditDisplay(Console(stderr=True, quiet=quiet)) as display:
            outcome = audit_run(
                run,
                references=references,
                out=out,
                data_dir=data_dir,
                duplicates=duplicates,
                watch=display,
                gates=gate,
                attacks=attacks,
            )
    typer.echo(in_words(outcome.audit))
    typer.echo(f"Report: {outcome.page}")
    for each in gates:
        typer.echo(each.judged(outcome.flat)[0])
    # A gate on what was not measured is an error, after all gates were judged.
    broken = [each.broken_by(outcome.flat) for each in gates]
    if any(broken):
        raise typer.Exit(3)


def compare(runs: list[Path]) -> None:
    """See `shoal.cli.app.compare`."""
    comparison = compare_runs(runs)
    for title, frame in (("what differs", comparison.settings), ("", comparison.metrics)):
        if len(frame) > 0:
            _print_frame(title, frame)
        else:
            typer.echo("The configurations are the same.")
        typer.echo()
    typer.echo("\n\n".join(comparison.sentences))


def report(directory: Path) -> None:
    """See `shoal.cli.app.report`."""
    typer.echo(f"Report: {report_of_sweep(directory) if is_sweep(directory) else report_of(directory)}")


def data(config: Path | None, changes: list[str], data_dir: Path | None, wanted: str | None) -> None:
    """See `shoal.cli.app.data`."""
    if config is not None:
        given = read_config(config, changes)
        resolved = resolve(given, load_data(given.data, data_dir))
        for line in (*resolved.description(), *resolved.warnings):
            typer.echo(line)
        return
    require(not changes, "--set changes a configuration, which 'shoal data' shows the data of; name its file")
    if wanted is not None:
        typer.echo(f"{wanted}: {fetch(wanted, data_dir if data_dir is not None else user_cache())}")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("data set", "examples", "here", "how to get it"):
        table.add_column(title, overflow="fold")
    for each in availability(data_dir):
        here = str(each.path) if each.path is not None else "missing"
        table.add_row(each.name, each.size, escape(here), "" if each.path is not None else escape(each.instructions))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _print_frame(title: str, frame: pd.DataFrame) -> None:
    """Print a table with one column per run; outside a terminal it is as wide as it needs to be."""
    table = Table(box=None, pad_edge=False)
    table.add_column(escape(title))
    for name in frame.columns:
        table.add_column(escape(str(name)), justify="right", overflow="fold")
    for label, cells in zip(frame.index, frame.to_numpy().tolist(), strict=True):
        table.add_row(escape(str(label)), *map(escape, cells))
    needed = Console(width=10_000).measure(table).maximum
    Console(width=None if sys.stdout.isatty() else needed).print(table)
