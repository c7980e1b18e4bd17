"""The command line: ``shoal run``, ``sweep``, ``audit``, ``compare``, ``report``, ``data``.

Exit codes: 0 done; 2 bad input, one sentence on stderr; 3 an audit's gate is broken; 1 failed; 130 interrupted.
"""

import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, cast

import pandas as pd
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal.cli.audit import AuditDisplay, gate_in_words, in_words
from shoal.cli.interrupt import end_interrupted, end_soon_after_interrupt, say_interrupted
from shoal.cli.progress import Display
from shoal.cli.sweep import SweepDisplay
from shoal.config.build import load_data, resolve
from shoal.config.schema import read_config
from shoal.core.errors import InputError, require
from shoal.data.sources.catalog import availability, user_cache
from shoal.data.sources.hub import fetch
from shoal.reports.summary_text import verdict
from shoal.runs.audit import audit_run, audit_scores, audit_trace
from shoal.runs.comparison import compare as compare_runs
from shoal.runs.files import read_summary
from shoal.runs.gate import Gate
from shoal.runs.record import read_description
from shoal.runs.report import report_of
from shoal.runs.run import run as run_config
from shoal.sweeps import Workers, is_sweep, read_sweep, report_of_sweep, run_sweep

app = typer.Typer(
    help="Clustered federated learning with a red team in the loop.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# Typer keeps its parser private; this is the public way to the base of all wrong-usage errors.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", envvar="SHOAL_DATA", help="Where to look for data first.", show_default=False),
]

Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress; warnings and errors remain.")]


@app.callback(invoke_without_command=True)
def _root(
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if show_version:
        typer.echo(f"shoal {version('shoal')}")
        raise typer.Exit


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="The run's TOML file.")],
    out: Annotated[Path | None, typer.Option("--out", help="Run directory; runs/NAME of the file by default.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; can be repeated.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in an existing run directory.")] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Train one federation, attack it, and measure both: one run, one directory."""
    given = read_config(config, changes or ())
    directory = out if out is not None else Path("runs") / config.stem
    notice = (
        f"{directory}: there is nothing to resume; the run starts anew" if resume and not directory.exists() else ""
    )
    with Display(Console(stderr=True, quiet=quiet), notice) as display:
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


@app.command()
def sweep(
    sweep: Annotated[Path, typer.Argument(help="The sweep's TOML file.")],
    out: Annotated[Path | None, typer.Option("--out", help="Directory; runs/NAME of the file by default.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", help="Runs at a time.")] = 1,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="ADDRESS", help=escape("Do the runs on a Ray cluster (needs the extra shoal[ray]).")
        ),
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Do many runs, and show them in tables and figures; what is finished is never done twice."""
    given = read_sweep(sweep)
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


@app.command()
def audit(
    run: Annotated[
        Path | None, typer.Argument(help="Directory of a finished run, of which reference federations are trained.")
    ] = None,
    *,
    references: Annotated[
        int, typer.Option("--references", metavar="R", help="Reference federations; each costs a run's training.")
    ] = 16,
    scores: Annotated[
        Path | None, typer.Option("--scores", metavar="FILE", help="Audit the records of a score file instead.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="DIR", help="Audit clients' updates of any framework instead.")
    ] = None,
    gate: Annotated[
        list[str] | None,
        typer.Option("--gate", metavar="EXPRESSION", help="Exit with 3 unless it holds; can be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; beside what is audited by default.")
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Attack a run's members with every attack: audit.json and audit.html."""
    gates = [Gate.of(expression) for expression in gate or ()]
    given = [each for each in (run, scores, trace) if each is not None]
    require(len(given) == 1, "shoal audit takes one of a run's directory, --scores FILE and --trace DIR")
    if scores is not None:
        outcome = audit_scores(scores, out=out)
    elif trace is not None:
        outcome = audit_trace(trace, out=out, data_dir=data_dir)
    else:
        assert run is not None
        with AuditDisplay(Console(stderr=True, quiet=quiet)) as display:
            outcome = audit_run(run, references=references, out=out, data_dir=data_dir, watch=display)
    typer.echo(in_words(outcome.audit))
    typer.echo(f"Report: {outcome.page}")
    results = {each: each.broken_by(outcome.flat) for each in gates}
    for each, broken in results.items():
        typer.echo(gate_in_words(each, broken))
    if any(results.values()):
        raise typer.Exit(3)


@app.command()
def compare(runs: Annotated[list[Path], typer.Argument(help="Directories of finished runs.")]) -> None:
    """Show finished runs side by side: what was asked of each, what came out, and the differences in words."""
    comparison = compare_runs(runs)
    for title, frame in (("what differs", comparison.settings), ("", comparison.metrics)):
        if len(frame) > 0:
            _print_frame(title, frame)
        else:
            typer.echo("The configurations are the same.")
        typer.echo()
    typer.echo("\n\n".join(comparison.sentences))


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


@app.command()
def report(directory: Annotated[Path, typer.Argument(help="Directory of a finished run, or of a sweep.")]) -> None:
    """Write the HTML report of a finished run again, or a sweep's tables, figures and page."""
    typer.echo(f"Report: {report_of_sweep(directory) if is_sweep(directory) else report_of(directory)}")


@app.command()
def data(
    config: Annotated[
        Path | None, typer.Argument(help="A run's TOML file, of whose data to show clients, classes and inputs.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; can be repeated.")
    ] = None,
    data_dir: DataDir = None,
    wanted: Annotated[
        str | None,
        typer.Option("--fetch", metavar="NAME", help=escape("Download a data set (needs the extra shoal[hub]).")),
    ] = None,
) -> None:
    """Show which data sets are here, which are missing, and how to get them; or what the data of a run are."""
    if config is not None:
        given = read_config(config, changes or ())
        for line in resolve(given, load_data(given.data, data_dir)).description():
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code. Unexpected errors keep their traceback (and exit with 1)."""
    warnings = logging.StreamHandler()
    warnings.setLevel(logging.WARNING)
    logging.basicConfig(format="shoal: %(message)s", handlers=[warnings])
    try:
        returned = app(args=arguments, standalone_mode=False, prog_name="shoal")
    except InputError as error:
        return _say(str(error), 2)
    except _UsageError as error:
        return _say(error.format_message(), 2)
    except (KeyboardInterrupt, typer.Abort):
        returned = 130
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _say(f"failed: {where}{error.strerror or error}", 1)
    # Some versions of Typer turn Ctrl-C into this code themselves.
    if returned == 130:
        say_interrupted()
        return 130
    return returned if isinstance(returned, int) else 0


def _say(sentence: str, code: int) -> int:
    print(f"shoal: {' '.join(sentence.split())}", file=sys.stderr)  # noqa: T201
    return code


def script() -> None:
    """The console script."""
    end_soon_after_interrupt()
    code = main()
    if code == 130:
        end_interrupted()
    sys.exit(code)
