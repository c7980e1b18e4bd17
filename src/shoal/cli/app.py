"""The command line: ``shoal init``, ``data``, ``run``, ``audit``, ``compare``, ``report``, ``sweep``.

Exit codes: 0 done; 2 bad input, one sentence on stderr; 3 an audit's gate is broken; 1 failed; 130 interrupted.

Each command loads what it does (`shoal.cli.commands`, and with it PyTorch) when it is called, so that ``--help``,
``--version`` and a wrong option answer at once.
"""

import atexit
import gc
import logging
import sys
from collections.abc import Sequence
from errno import ENAMETOOLONG
from pathlib import Path
from types import ModuleType
from typing import Annotated, cast

import typer
from rich.markup import escape

import shoal
from shoal.cli.interrupt import end_interrupted, end_soon_after_interrupt, say_interrupted
from shoal.core.errors import InputError

_EXIT_CODES = "Exit codes: 0 done; 1 failed; 2 bad input; 3 a gate is broken; 130 interrupted."

app = typer.Typer(
    help="Clustered federated learning with a red team in the loop.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Typer keeps its parser private; this is the public way to the base of all wrong-usage errors.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", envvar="SHOAL_DATA", help="Where to look for data first.", show_default=False),
]

Device = Annotated[
    str | None,
    typer.Option("--device", help="Where to train, as --set engine.device: cpu, cuda or cuda:1.", show_default=False),
]

Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress; warnings and errors remain.")]


def _example(command: str) -> str:
    """The end of a command's help."""
    return f"Example: shoal {command}\n\n{_EXIT_CODES}"


def _commands() -> ModuleType:
    """`shoal.cli.commands`; from then on there is something that an interrupted process can end in good order."""
    from shoal.cli import commands

    end_soon_after_interrupt()
    return commands


@app.callback(invoke_without_command=True)
def _root(
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if show_version:
        typer.echo(f"shoal {shoal.__version__}")
        raise typer.Exit


@app.command(epilog=_example("init mine.toml --data table --algorithm fedavg"))
def init(
    file: Annotated[Path, typer.Argument(help="The TOML file to write; one that exists is left alone.")] = Path(
        "run.toml"
    ),
    data: Annotated[
        str, typer.Option("--data", metavar="SOURCE", help="Which data; folder and table are your own.")
    ] = "digits",
    algorithm: Annotated[str, typer.Option("--algorithm", metavar="NAME", help="Which algorithm.")] = "ifca-mir",
) -> None:
    """Write a configuration to begin with, which says in comments what can be changed."""
    _commands().init(file, data, algorithm)


@app.command(epilog=_example("run experiments/demo/digits.toml --out runs/mir --set algorithm.rounds=20"))
def run(
    config: Annotated[Path, typer.Argument(help="The run's TOML file.")],
    out: Annotated[Path | None, typer.Option("--out", help="Run directory; runs/NAME of the file by default.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key; can be repeated.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in an existing run directory.")] = False,
    device: Device = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Train one federation, attack it, and measure both: one run, one directory."""
    _commands().run(
        config, out=out, changes=_with_device(changes, device), resume=resume, data_dir=data_dir, quiet=quiet
    )


def _with_device(changes: list[str] | None, device: str | None) -> list[str]:
    return [*(changes or []), *([] if device is None else [f"engine.device={device}"])]


@app.command(epilog=_example("sweep experiments/ifca-mir/small/figure-2.toml --jobs 2"))
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
    device: Device = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Do many runs, and show them in tables and figures; what is finished is never done twice."""
    _commands().sweep(
        sweep, changes=_with_device(None, device), out=out, jobs=jobs, cluster=cluster, data_dir=data_dir, quiet=quiet
    )


@app.command(epilog=_example('audit runs/mir --references 8 --gate "tpr_at_fpr_0.01 <= 0.05"'))
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
    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="MODULE:NAME", help="Also ask an attack of yours; can be repeated."),
    ] = None,
    leave_out_duplicates: Annotated[
        bool, typer.Option("--leave-out-duplicates", help="Leave out records of which there are copies.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; beside what is audited by default.")
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Attack a run's members with every attack: audit.json and audit.html."""
    _commands().audit(
        run,
        references=references,
        scores=scores,
        trace=trace,
        gate=gate or [],
        attack=attack or [],
        duplicates="leave-out" if leave_out_duplicates else None,
        out=out,
        data_dir=data_dir,
        quiet=quiet,
    )


@app.command(epilog=_example("compare runs/ifca runs/mir"))
def compare(runs: Annotated[list[Path], typer.Argument(help="Directories of finished runs.")]) -> None:
    """Show finished runs side by side: what was asked of each, what came out, and the differences in words."""
    _commands().compare(runs)


@app.command(epilog=_example("report runs/mir"))
def report(directory: Annotated[Path, typer.Argument(help="Directory of a finished run, or of a sweep.")]) -> None:
    """Write the HTML report of a finished run again, or a sweep's tables, figures and page."""
    _commands().report(directory)


@app.command(epilog=_example("data experiments/demo/digits.toml"))
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
    _commands().data(config, changes or [], data_dir, wanted)


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
        # Without a command the help is all that is said.
        return _say(error.format_message(), 2) if error.format_message() else 2
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
    """The console script, once `end_at_once_on_interrupt` was called."""
    # Each search for reference cycles visits all of PyTorch: 0.9 s while modules load, 1.3 s at the end (measured).
    gc.set_threshold(10_000, 10, 10)
    atexit.register(gc.freeze)
    code = main()
    if code == 130:
        end_interrupted()
    sys.exit(code)
