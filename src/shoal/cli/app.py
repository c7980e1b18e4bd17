"""The command line: ``shoal run``, ``sweep``, ``audit``, ``compare``, ``report``, ``data``.

Exit codes: 0 done; 2 bad input, one sentence on stderr; 3 an audit's gate is broken; 1 failed; 130 interrupted.

Each command loads what it does (`shoal.cli.commands`, and with it PyTorch) when it is called, so that ``--help``,
``--version`` and a wrong option answer at once.
"""

import logging
import sys
from collections.abc import Sequence
from errno import ENAMETOOLONG
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.markup import escape

import shoal
from shoal.cli.interrupt import end_interrupted, end_soon_after_interrupt, say_interrupted
from shoal.core.errors import InputError
from shoal.core.garbage_collection import collect_garbage_rarely

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
        typer.echo(f"shoal {shoal.__version__}")
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
    from shoal.cli import commands

    commands.run(config, out=out, changes=changes or [], resume=resume, data_dir=data_dir, quiet=quiet)


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
    from shoal.cli import commands

    commands.sweep(sweep, out=out, jobs=jobs, cluster=cluster, data_dir=data_dir, quiet=quiet)


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
    leave_out_duplicates: Annotated[
        bool, typer.Option("--leave-out-duplicates", help="Ask about no record of which there are copies.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; beside what is audited by default.")
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Attack a run's members with every attack: audit.json and audit.html."""
    from shoal.cli import commands

    commands.audit(
        run,
        references=references,
        scores=scores,
        trace=trace,
        gate=gate or [],
        duplicates="leave-out" if leave_out_duplicates else None,
        out=out,
        data_dir=data_dir,
        quiet=quiet,
    )


@app.command()
def compare(runs: Annotated[list[Path], typer.Argument(help="Directories of finished runs.")]) -> None:
    """Show finished runs side by side: what was asked of each, what came out, and the differences in words."""
    from shoal.cli import commands

    commands.compare(runs)


@app.command()
def report(directory: Annotated[Path, typer.Argument(help="Directory of a finished run, or of a sweep.")]) -> None:
    """Write the HTML report of a finished run again, or a sweep's tables, figures and page."""
    from shoal.cli import commands

    commands.report(directory)


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
    from shoal.cli import commands

    commands.data(config, changes or [], data_dir, wanted)


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
        if error.errno == ENAMETOOLONG:
            return _say(f"{error.filename}: is too long a name for a file; choose another", 2)
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
    collect_garbage_rarely()
    end_soon_after_interrupt()
    code = main()
    if code == 130:
        end_interrupted()
    sys.exit(code)
