"""The command line: ``shoal init``, ``data``, ``preflight``, ``run``, ``audit``, ``protect``, ``sweep`` and others.

Exit codes: 0 success; 2 bad input, with one sentence on stderr; 3 a --gate limit is broken; 1 failure; 130 interrupted.

Each command imports PyTorch and other modules when it is called, because ``--help`` should answer immediately.
"""

import atexit
import gc
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from errno import ENAMETOOLONG
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.markup import escape

import shoal
from shoal.cli.answers import EXIT_CODES, CommandResult, command
from shoal.cli.interrupt import end_interrupted, end_soon_after_interrupt, say_interrupted
from shoal.core.errors import InputError, ShoalError, require

app = typer.Typer(
    help="Clustered federated learning with a red team in the loop.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Typer keeps its parser private; this is the public way to the base of all wrong-usage errors.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", envvar="SHOAL_DATA", help="Folder to search first for data.", show_default=False),
]

DeviceOption = Annotated[
    str | None,
    typer.Option("--device", help="Device for training, such as cpu, cuda or cuda:1.", show_default=False),
]

AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Import and execute the code that a run's files name (MODULE:NAME).")
]

Jobs = Annotated[
    int, typer.Option("--jobs", metavar="N", help="Number of processes for runs or reference federations.")
]

Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="ADDRESS", help=escape("Ray cluster for the processes (needs shoal[ray]).")),
]

ChangesOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a configuration key; can be repeated.")
]

Gates = Annotated[
    list[str] | None,
    typer.Option("--gate", metavar="EXPRESSION", help="Exit with code 3 unless this limit holds; can be repeated."),
]

Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress; warnings and errors remain.")]


@app.callback(invoke_without_command=True)
def _root(show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if show_version:
        typer.echo(f"shoal {shoal.__version__}")
        raise typer.Exit


@command(app, "init mine.toml --data table --algorithm fedavg")
def init(
    file: Annotated[Path, typer.Argument(help="The new TOML file.")] = Path("run.toml"),
    data: Annotated[
        str, typer.Option("--data", metavar="SOURCE", help="Data source; 'folder' or 'table' for your own data.")
    ] = "digits",
    algorithm: Annotated[str, typer.Option("--algorithm", metavar="NAME", help="Algorithm's name.")] = "ifca-mir",
) -> CommandResult:
    """Write a first configuration, with comments that explain the keys."""
    from shoal.config.starter import write_starter

    write_starter(file, data, algorithm)
    said = f"Wrote {file}; see its data with 'shoal data {file}', train with 'shoal run {file}'"
    return CommandResult({"configuration": file}, said)


@command(app, "run experiments/demo/digits.toml --out runs/mir --set algorithm.rounds=20")
def run(
    config: Annotated[Path, typer.Argument(help="The run's TOML file.")],
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Run directory; the default is runs/FILE-NAME.")] = None,
    changes: ChangesOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in an existing directory.")] = False,
    jobs: Jobs = 1,
    cluster: Cluster = None,
    device: DeviceOption = None,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="TRACKER", help="Experiment tracker: tensorboard."),
    ] = None,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
) -> CommandResult:
    """Train one federation, attack its models, and write the results into one directory."""
    from shoal.config.schema import read_config
    from shoal.core.processes import Workers
    from shoal.reports.run.run_verdict import answer
    from shoal.runs.files import read_summary
    from shoal.runs.progress import Display
    from shoal.runs.result import report_of
    from shoal.runs.run import run as run_config
    from shoal.runs.run_description import read_description
    from shoal.runs.sinks import TensorBoard

    directory = out if out is not None else Path("runs") / config.stem
    end_soon_after_interrupt(directory / "config.toml", "rerun the command with --resume")
    for name in log or []:
        elsewhere = "for MLflow or W&B, see docs/use.md"
        require(name == "tensorboard", f"'--log' must be 'tensorboard' (got '{name}'); {elsewhere}")
    sinks = [TensorBoard()] if log else []
    settings = read_config(config, _with_device(changes, device), allow_code=allow_code or None)
    with Display(Console(stderr=True, quiet=quiet)) as display:
        run_config(
            settings,
            directory,
            resume=resume,
            data_dir=data_dir,
            watch=[display, *sinks],
            watch_references=display.reference_federations,
            workers=Workers(jobs, cluster),
        )
    page = report_of(directory, allow_code=True)
    about = read_description(directory, allow_code=True)
    summary = read_summary(directory)
    said = answer(summary, about.kind, about.metric)
    return CommandResult({**summary, "directory": directory, "report": page}, f"{said}\nReport: {page}")


def _with_device(changes: list[str] | None, device: str | None) -> list[str]:
    return [*(changes or []), *([] if device is None else [f"engine.device={device}"])]


@command(app, "sweep experiments/ifca-mir/small/figure-2.toml --jobs 2")
def sweep(
    sweep: Annotated[Path, typer.Argument(help="The sweep's TOML file.")],
    out: Annotated[Path | None, typer.Option("--out", help="Directory; the default is runs/FILE-NAME.")] = None,
    jobs: Jobs = 1,
    cluster: Cluster = None,
    device: DeviceOption = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> CommandResult:
    """Carry out many runs, and show their results in tables and figures; finished runs are not repeated."""
    from shoal.cli.displays import SweepDisplay
    from shoal.core.processes import Workers
    from shoal.sweeps import read_sweep, run_sweep
    from shoal.sweeps.results_table import read_results

    directory = out if out is not None else Path("runs") / sweep.stem
    end_soon_after_interrupt(directory)
    runs = read_sweep(sweep, _with_device(None, device))
    with SweepDisplay(Console(stderr=True, quiet=quiet)) as display:
        outcome = run_sweep(runs, directory, workers=Workers(jobs, cluster), data_dir=data_dir, watch=display)
    for run, reason in outcome.failed.items():
        typer.echo(f"shoal: {run}: failed: {' '.join(reason.split())}", err=True)
    document = {
        "runs": len(runs.runs),
        "finished": outcome.finished,
        "failed": outcome.failed,
        "results": read_results(directory, {}).to_dict("records"),
        "directory": directory,
        "report": outcome.report,
    }
    said = f"{outcome.finished} of {len(runs.runs)} runs are done: {directory / 'results.csv'}"
    return CommandResult(document, f"{said}\nReport: {outcome.report}", code=1 if outcome.failed else 0)


@command(app, "protect run.toml --limit 0.55 --max-cost 0.02 --jobs 2")
def protect(
    config: Annotated[Path, typer.Argument(help="The TOML file of the run to protect.")],
    *,
    limit: Annotated[float, typer.Option("--limit", help="Largest exposure of any group, 0.5 (chance) to 1.")] = 0.55,
    max_cost: Annotated[
        float,
        typer.Option(
            "--max-cost", help="Largest loss of accuracy (a fraction), or in a regression rise of the squared error."
        ),
    ] = 0.02,
    view: Annotated[str, typer.Option("--view", help="Attacker's view: outsider, client or server.")] = "outsider",
    references: Annotated[int, typer.Option("--references", metavar="R", help="Reference federations per run.")] = 2,
    choosing: Annotated[int, typer.Option("--choosing", metavar="N", help="Seeds for choosing protections.")] = 2,
    judging: Annotated[int, typer.Option("--judging", metavar="N", help="Largest number of seeds for the test.")] = 16,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Largest epsilon, if differential privacy is required.")
    ] = None,
    promise: Annotated[
        bool,
        typer.Option("--promise", help="Require that differential privacy guarantees the limit for every attack."),
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Directory; the default is runs/protect-FILE-NAME.")] = None,
    jobs: Jobs = 1,
    cluster: Cluster = None,
    changes: ChangesOption = None,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
) -> CommandResult:
    """Find the cheapest protection that keeps the exposure within a limit; to resume a search, run the same command."""
    from shoal.cli.displays import SweepDisplay
    from shoal.config.schema import read_config
    from shoal.core.processes import Workers, Workplace
    from shoal.data.preferences import View
    from shoal.protection import Demand, protect as search, sentences

    directory = out if out is not None else Path("runs") / f"protect-{config.stem}"
    end_soon_after_interrupt(directory)
    settings = read_config(config, changes or [], allow_code=allow_code or None)
    demand = Demand(limit, max_cost, cast("View", view), references, choosing, judging, epsilon, promise)
    with SweepDisplay(Console(stderr=True, quiet=quiet), steps=True) as display:
        protection = search(settings, Workplace(directory, Workers(jobs, cluster), data_dir, display), demand)
    protected, page = directory / "protected.toml", directory / "protection.html"
    document = {**protection.json, **asdict(demand), "configuration": protected, "report": page}
    lines = [*sentences(protection, demand), f"Configuration: {protected}", f"Report: {page}"]
    return CommandResult(document, "\n".join(lines))


@command(app, 'audit runs/mir --references 8 --gate "tpr_at_fpr_0.01 <= 0.05"')
def audit(
    run: Annotated[Path | None, typer.Argument(help="Directory of a finished run.")] = None,
    *,
    references: Annotated[
        int,
        typer.Option(
            "--references", metavar="R", help="Number of reference federations; with --gate, the largest number."
        ),
    ] = 16,
    scores: Annotated[
        Path | None, typer.Option("--scores", metavar="FILE", help="Audit the records of a score file.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="DIR", help="Audit recorded client updates of any framework.")
    ] = None,
    left: Annotated[
        str | None,
        typer.Option("--left", metavar="CLIENT", help="Audit whether the run forgot this former client."),
    ] = None,
    gate: Gates = None,
    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="MODULE:NAME", help="Also run your own attack; can be repeated."),
    ] = None,
    leave_out_duplicates: Annotated[
        bool, typer.Option("--leave-out-duplicates", help="Exclude records that have copies elsewhere.")
    ] = False,
    queries: Annotated[
        int, typer.Option("--queries", metavar="Q", help="Copies to query per image, shifted or flipped; at most 18.")
    ] = 1,
    site: Annotated[
        bool,
        typer.Option("--site", help="Also infer which client a held-out example comes from."),
    ] = False,
    jobs: Jobs = 1,
    cluster: Cluster = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Directory of the audit; the default is the audited directory.")
    ] = None,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
) -> CommandResult:
    """Run every attack on the training records of a finished run, and write audit.json and audit.html."""
    from shoal.cli.displays import format_audit
    from shoal.config.kinds import create_from_table
    from shoal.runs.audits.audit_members import audit_scores, audit_trace
    from shoal.runs.audits.audit_run import audit_run
    from shoal.runs.progress import LiveBar

    end_soon_after_interrupt("" if run is None else run / "references")
    asked = {"gates": gate or [], "attacks": [create_from_table(name, "--attack") for name in attack or []], "out": out}
    require(
        [run, scores, trace].count(None) == 2,
        "shoal audit needs exactly one of these: a run's directory, --scores FILE, --trace DIR",
    )
    require(
        run is not None or not leave_out_duplicates,
        "'--leave-out-duplicates' needs a run's directory; remove the option, --scores or --trace",
    )
    require(run is not None or not site, "'--site' needs a run's directory; remove the option, --scores or --trace")
    require(run is not None or queries == 1, "'--queries' needs a run's directory; remove --scores or --trace")
    if left is not None:
        from shoal.runs.audits.audit_leaver import audit_leaver

        given = {"--attack": attack, "--leave-out-duplicates": leave_out_duplicates, "--queries": queries != 1}
        others = [name for name, value in (given | {"--site": site, "no run": run is None}).items() if value]
        if run is None or others:
            raise InputError(f"'--left' needs a run's directory and no other attack options (got {', '.join(others)})")
        asked = {"gates": gate or [], "out": out, "references": references, "jobs": jobs, "cluster": cluster}
        with LiveBar(Console(stderr=True, quiet=quiet), "federation") as display:
            asked |= {"data_dir": data_dir, "allow_code": allow_code, "watch": display.reference_federations}
            found = audit_leaver(run, left, **asked)
        return CommandResult(
            {**found.flat, "report": found.page}, "\n".join([*found.answer, f"Report: {found.page}"]), found.gates
        )
    if scores is not None:
        outcome = audit_scores(scores, **asked)
    elif trace is not None:
        outcome = audit_trace(trace, **asked, data_dir=data_dir, allow_code=allow_code)
    else:
        assert run is not None
        with LiveBar(Console(stderr=True, quiet=quiet), "reference federation") as display:
            outcome = audit_run(
                run,
                **asked,
                references=references,
                data_dir=data_dir,
                duplicates="leave-out" if leave_out_duplicates else None,
                queries=queries,
                site=site,
                jobs=jobs,
                cluster=cluster,
                watch=display.reference_federations,
                allow_code=allow_code,
            )
    said = f"{format_audit(outcome.audit, outcome.flat)}\nReport: {outcome.page}"
    return CommandResult({**outcome.flat, "report": outcome.page}, said, outcome.gates)


@command(app, 'preflight experiments/control/bar-base.toml --gate "auc <= 0.6"')
def preflight(
    config: Annotated[Path, typer.Argument(help="The TOML file of a planned run.")],
    changes: ChangesOption = None,
    gate: Gates = None,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
) -> CommandResult:
    """Estimate before training which records an attacker could recognise, and list protective settings."""
    from shoal.cli.displays import print_sections
    from shoal.config.build import build
    from shoal.config.schema import read_config
    from shoal.runs.audits.gate import parse_gates

    end_soon_after_interrupt()
    gates = parse_gates(gate or [])
    _, simulation = build(read_config(config, changes or [], allow_code=allow_code or None), data_dir)
    report = simulation.preflight()
    said: str | Callable[[], None] = str(report)
    if sys.stdout.isatty():
        said = lambda: print_sections(report.parts())  # noqa: E731
    return CommandResult(report.flat(), said, gates)


@command(app, "compare runs/ifca runs/mir")
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Directories of finished runs.")], allow_code: AllowCode = False
) -> CommandResult:
    """Compare finished runs: their settings, their results, and the differences in sentences."""
    from shoal.cli.displays import print_comparison
    from shoal.runs.comparison import compare as compare_runs

    end_soon_after_interrupt()
    found = compare_runs(runs, allow_code=allow_code)
    document = {"runs": found.summaries, "settings": found.settings.T.to_dict(), "sentences": found.sentences}
    return CommandResult(document, lambda: print_comparison(found))


@command(app, "report runs/mir")
def report(
    directory: Annotated[Path, typer.Argument(help="Directory of a finished run or of a sweep.")],
    allow_code: AllowCode = False,
) -> CommandResult:
    """Rewrite the HTML report of a finished run, or the tables, figures and page of a sweep."""
    from shoal.runs.result import report_of
    from shoal.sweeps import is_sweep, report_of_sweep

    end_soon_after_interrupt()
    page = (report_of_sweep if is_sweep(directory) else report_of)(directory, allow_code=allow_code)
    return CommandResult({"report": page}, f"Report: {page}")


@command(app, "card runs/mir")
def card(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Directory of the card; the default is the run's directory.")
    ] = None,
    allow_code: AllowCode = False,
) -> CommandResult:
    """Write the privacy card of a finished run: the attacks, their findings, the guarantees, and the open questions."""
    from shoal.runs.audits.card import write_card

    end_soon_after_interrupt()
    card = write_card(run, out, allow_code=allow_code)
    missing = [question["question"] for question in card.document["questions"] if not question["covered"]]
    shown = f"Not covered: {'; '.join(missing)}\nCard: {card.page}"
    return CommandResult({**card.document, "file": card.file, "page": card.page}, shown)


@command(app, "data experiments/demo/digits.toml")
def data(
    config: Annotated[
        Path | None, typer.Argument(help="A run's TOML file, to show its clients, classes and inputs.")
    ] = None,
    changes: ChangesOption = None,
    data_dir: DataDir = None,
    wanted: Annotated[
        str | None,
        typer.Option("--fetch", metavar="NAME", help=escape("Download a data set (needs the extra shoal[hub]).")),
    ] = None,
    allow_code: AllowCode = False,
) -> CommandResult:
    """List the data sets that are present or missing, with instructions to get them, or describe the data of a run."""
    from shoal.cli.displays import print_sources
    from shoal.config.build import load_data, resolve
    from shoal.config.schema import read_config
    from shoal.data.sources.catalog import availability, fetch, user_cache

    end_soon_after_interrupt()
    if config is not None:
        settings = read_config(config, changes or [], allow_code=allow_code or None)
        resolved = resolve(settings, load_data(settings.data, data_dir), draft=True)
        description, warnings = [*resolved.description()], [*resolved.warnings]
        said = "\n".join([*description, *warnings])
        return CommandResult({"description": description, "warnings": warnings}, said)
    require(not changes, "'--set' needs the file of a configuration, as in 'shoal data FILE --set KEY=VALUE'")
    if wanted is not None:
        path = fetch(wanted, data_dir if data_dir is not None else user_cache())
        return CommandResult({"name": wanted, "path": path}, f"{wanted}: {path}")
    sources = [*availability(data_dir)]
    return CommandResult({"data_sets": [asdict(source) for source in sources]}, lambda: print_sources(sources))


def _first_with_its_message() -> Callable[[logging.LogRecord], bool]:
    """Return a filter that drops repeated messages, because the runs of a sweep have many warnings in common."""
    seen = set[str]()

    def is_first(record: logging.LogRecord) -> bool:
        before = len(seen)
        seen.add(record.getMessage())
        return len(seen) > before

    return is_first


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, and return the exit code. Unexpected errors keep their traceback, with exit code 1."""
    warnings = logging.StreamHandler()
    warnings.setLevel(logging.WARNING)
    warnings.addFilter(_first_with_its_message())
    logging.basicConfig(format="shoal: %(message)s", handlers=[warnings])
    try:
        returned = app(args=arguments, standalone_mode=False, prog_name="shoal")
    except ShoalError as error:
        return _say(str(error), 2 if isinstance(error, InputError) else 1)
    except _UsageError as error:
        # Without a command, only the help is shown.
        return _say(error.format_message(), 2) if error.format_message() else 2
    except (KeyboardInterrupt, typer.Abort):
        returned = 130
    except OSError as error:
        if error.errno == ENAMETOOLONG:
            return _say(f"{error.filename}: the file name is too long; choose a shorter name", 2)
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
    """Run the console script; call `end_at_once_on_interrupt` first."""
    # Each search for reference cycles visits all of PyTorch: 0.9 s while modules load, 1.3 s at the end (measured).
    gc.set_threshold(10_000, 10, 10)
    atexit.register(gc.freeze)
    code = main()
    if code == 130:
        end_interrupted()
    sys.exit(code)
