"""Run directories: creation, locks, logs, and the extension of a finished run to more rounds."""

import logging
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from re import sub
from typing import Any, cast

from shoal.config.schema import SIMULATION
from shoal.config.toml_files import read_toml
from shoal.core.atomic_files import open_to_append, remove_unfinished, write_text
from shoal.core.errors import InputError, require
from shoal.reports.run.description import RunDescription
from shoal.runs.files import HASHES, differences, require_same_examples, require_unchanged, write_hashes
from shoal.runs.updates import FOLDER
from shoal.simulation.play import SimulationState
from shoal.simulation.round_metrics import not_evaluated

try:
    import fcntl
except ImportError:  # Windows has none; runs there go unlocked.
    fcntl = None

LOG = logging.getLogger("shoal")

RESULT_FILES = (
    "summary.json", "clients.csv", "rounds.csv", "roc.csv", "canaries.csv", "presence.csv", "models.safetensors",
    "samples.safetensors", "report.html",
)  # fmt: skip
"""The files that a run writes at its end, in order of removal; summary.json marks a finished run."""


def is_finished(out: Path) -> bool:
    """Return whether the directory has a summary, the last file that a run writes."""
    return (out / "summary.json").exists()


def is_begun(out: Path) -> bool:
    """Return whether ``out`` has a config.toml, the first file that a run writes.

    Raises:
        InputError: ``out`` is not the directory of a run.
    """
    require(out.is_dir(), f"{out}: is not a directory; choose another --out")
    if (out / "config.toml").exists():
        return True
    for path in out.iterdir():
        early = path.name == "checkpoint" or path.name.startswith(".config.toml.")
        early = path.stat().st_size == 0 if path.name == "run.log" else early
        require(early, f"{out}: is not a run directory (no config.toml); choose another --out")
    return False


def existing_directory_error(out: Path) -> InputError:
    """Return the error for a new run in an existing directory."""
    return InputError(
        f"{out}: exists already; choose another directory, or resume the run with --resume (in Python: resume=True)"
    )


@contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Lock the run directory ``out`` against other runs.

    The locked file is run.log. The kernel releases the lock of a killed process.

    Raises:
        InputError: another run has the lock.
    """
    if fcntl is None:
        yield
        return
    with open_to_append(out / "run.log") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"{out}: is in use by another run; wait for its end, or choose another --out") from error
        except OSError as error:
            # Some network file systems have no locks; runs there are allowed.
            LOG.warning("%s: cannot be locked (%s); do not start a second run there", out, error.strerror)
        yield


@contextmanager
def open_run_dir(
    out: Path, config: str, require_same: Callable[[], object], *, resume: bool, examples: str | None = None
) -> Iterator[Path]:
    """Make or reopen a run directory, lock it, and yield its folder of checkpoints.

    Args:
        require_same: a function that raises an error if ``out`` has a different run; called under the lock.
        resume: whether the directory may exist.
        examples: the hash of the federation, or ``None`` if the examples are on other machines.
    """
    checkpoints = out / "checkpoint"
    with ExitStack() as stack:
        new = not out.exists()
        try:
            out.mkdir(parents=True, exist_ok=resume)
            stack.enter_context(lock_folder(out))
            require_same()
            checkpoints.mkdir(exist_ok=True)
            for folder in (out, checkpoints, out / FOLDER):
                remove_unfinished(folder)
            if not (out / "config.toml").exists():
                write_text(out / "config.toml", config)
            if examples is not None and not (out / HASHES).exists():
                write_hashes(out, examples)
        except FileExistsError as error:
            raise existing_directory_error(out) from error
        except OSError as error:
            raise InputError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
        if new and resume:
            LOG.warning("%s: nothing to resume; the run starts from the beginning", out)
        yield checkpoints


def rounds_before(out: Path, description: RunDescription, rounds: int) -> int:
    """Return the configured number of rounds of the run in ``out``, or ``rounds`` if ``out`` has no config.toml.

    The run in ``out`` may have fewer rounds than ``description``, another data path, and other settings for speed.

    Raises:
        InputError: ``out`` has a different run than ``description``, or a finished run with changed files.
    """
    if not is_begun(out):
        return rounds
    before, now = read_toml(out / "config.toml"), tomllib.loads(description.settings)
    kinds = ["a simulation in Python" if SIMULATION in table else "a configuration" for table in (before, now)]
    require(kinds[0] == kinds[1], f"{out}: has a run of {kinds[0]} (got {kinds[1]}); choose another --out")
    for key, (old, new) in differences(before, now).items():
        if key == "data.path" or (key == "algorithm.rounds" and isinstance(old, int) and old < rounds):
            continue
        if _concerns_later_rounds(key, before, now):
            continue
        require(key != "algorithm.rounds", f"{out}: 'algorithm.rounds' must be at least {old} to resume (got {new})")
        short = len(f"{old}{new}") <= 120 and "\n" not in f"{old}{new}"
        change = f"with {key} = {old!r} (got {new!r})" if short else f"with another value of '{key}'"
        raise InputError(f"{out}: has a run {change}; choose another --out")
    require_same_examples(out, description.examples)
    if is_finished(out):
        require_unchanged(out)
    return before["algorithm"]["rounds"]


def _concerns_later_rounds(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a key affects no finished round: later events, or the forgetting method if no client left."""
    done = before["algorithm"]["rounds"]
    old, new = ([event for event in table.get("events", ()) if event["round"] <= done] for table in (before, now))
    if key == "events":
        return old == new
    return key.startswith("forgetting.") and not any(event["leave"] for event in old)


def extend_rounds(
    out: Path, description: RunDescription, progress: SimulationState | None, before: int, every: int
) -> SimulationState | None:
    """Extend a run to more rounds, and return the longer run's state after ``before`` rounds.

    Args:
        before: the number of rounds of the shorter run.
        every: the number of rounds between evaluations.

    Raises:
        InputError: the run is finished and its last checkpoint is missing.
    """
    if is_finished(out):
        require(
            progress is not None and progress.state.round == before,
            f"{out}: cannot resume without the checkpoint of the last round; choose another --out",
        )
        attack = () if description.attack_table is None else (f"{description.attack_table[0]}.csv",)
        for name in (*RESULT_FILES, *attack):
            (out / name).unlink(missing_ok=True)
    write_text(out / "config.toml", description.settings)
    write_hashes(out, description.examples)
    LOG.info("extended from %d rounds to %d", before, tomllib.loads(description.settings)["algorithm"]["rounds"])
    if progress is None or before % every == 0:
        return progress
    # The shorter run evaluated this round as its last.
    return replace(progress, rows=tuple(not_evaluated(row) if row["round"] == before else row for row in progress.rows))


class _RunLog(logging.FileHandler):
    """A log file that ends the run on a write error; `logging` would only print a traceback."""

    def _open(self) -> TextIOWrapper:
        return cast("TextIOWrapper", open_to_append(self.baseFilename))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        error.filename = self.baseFilename
        raise error

    def close(self) -> None:
        try:
            super().close()
        except OSError as error:
            error.filename = self.baseFilename
            raise


class _Warnings(logging.Handler):
    """A handler that collects the sentences of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.sentences.append(record.getMessage())
        # Without another handler, logging prints warnings by its last resort; this handler must not silence them.
        if logging.lastResort is not None and LOG.handlers == [self] and not logging.getLogger().handlers:
            logging.lastResort.handle(record)


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect the warnings that Shoal logs inside the block."""
    handler = _Warnings()
    LOG.addHandler(handler)
    try:
        yield handler.sentences
    finally:
        LOG.removeHandler(handler)


@contextmanager
def drop_repeated_warnings() -> Iterator[None]:
    """Print each warning only once, even if several runs repeat the warning with other numbers."""
    filters = [(handler, _NewWarnings()) for handler in logging.getLogger().handlers]
    for handler, new in filters:
        handler.addFilter(new)
    try:
        yield
    finally:
        for handler, new in filters:
            handler.removeFilter(new)


class _NewWarnings(logging.Filter):
    """A filter that drops repeated warnings and ignores numbers in the comparison."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = set[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        text = sub(r"[\d.,]*\d", "#", record.getMessage())
        is_new = record.levelno < logging.WARNING or text not in self.seen
        self.seen.add(text)
        return is_new


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Append Shoal's log to ``path`` inside the block."""
    handler = _RunLog(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    level = LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)
        handler.close()
