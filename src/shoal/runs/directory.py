"""A run directory while somebody runs in it: made or opened again, locked, logged, prolonged, and finished."""

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
from shoal.runs.files import (
    HASHES,
    differences,
    require_same_examples,
    require_unchanged,
    write_hashes,
)
from shoal.runs.updates import FOLDER
from shoal.simulation.play import SimulationState
from shoal.simulation.round_metrics import not_evaluated

try:
    import fcntl
except ImportError:  # Windows has none; runs there go unlocked.
    fcntl = None

LOG = logging.getLogger("shoal")

OUTCOME = (
    "summary.json", "clients.csv", "rounds.csv", "roc.csv", "canaries.csv", "presence.csv", "models.safetensors",
    "samples.safetensors", "report.html",
)  # fmt: skip
"""Files that a run writes at its end. The summary, without which a run is one that was killed, is removed first."""


def is_finished(out: Path) -> bool:
    """Return whether the directory holds a finished run: its summary is written last."""
    return (out / "summary.json").exists()


def is_begun(out: Path) -> bool:
    """Return whether the existing ``out`` has its config.toml, which is the first file that a run writes.

    Raises:
        InputError: ``out`` is somebody else's directory.
    """
    require(out.is_dir(), f"{out}: is not a directory; choose another --out")
    if (out / "config.toml").exists():
        return True
    foreign = [path for path in out.iterdir() if not _is_first(path)]
    require(not foreign, f"{out}: is not a run directory (no config.toml); choose another --out")
    return False


def _is_first(path: Path) -> bool:
    """Return whether a run may have made this before its config.toml."""
    if path.name == "run.log":
        return path.stat().st_size == 0
    return path.name == "checkpoint" or path.name.startswith(".config.toml.")


def existing_directory_error(out: Path) -> InputError:
    """The error of a new run in a directory that exists."""
    return InputError(
        f"{out}: exists already; choose another directory, or go on in it with --resume (in Python: resume=True)"
    )


@contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Keep every other process, and every other run of this one, out of the run directory ``out``.

    What is locked is run.log: the directory needs no file for it, and the kernel unlocks the file of a killed process.

    Raises:
        InputError: another run is going on in it.
    """
    if fcntl is None:
        yield
        return
    with open_to_append(out / "run.log") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{out}: another run is going on in it; wait until it ends, or choose another --out"
            ) from error
        except OSError as error:
            # Some network file systems have no locks; a run there is still worth having.
            LOG.warning("%s: cannot be locked (%s); start no second run in it", out, error.strerror)
        yield


@contextmanager
def open_run_dir(
    out: Path, config: str, require_same: Callable[[], object], *, resume: bool, examples: str | None = None
) -> Iterator[Path]:
    """Make the run directory, or open it again, and lock it; gives its folder of checkpoints.

    Args:
        out: the directory.
        config: the text of its config.toml.
        require_same: raises unless ``out`` holds the same run; asked once the directory is locked, since it may have
            become another run's since it was looked at first.
        resume: whether it may exist.
        examples: the hash of the federation; None: its examples are on other machines.
    """
    checkpoints = out / "checkpoint"
    with ExitStack() as held:
        new = not out.exists()
        try:
            out.mkdir(parents=True, exist_ok=resume)
            held.enter_context(lock_folder(out))
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
            LOG.warning("%s: there is nothing to resume; the run starts anew", out)
        yield checkpoints


def rounds_before(out: Path, description: RunDescription, rounds: int) -> int:
    """The rounds that the run in the existing ``out`` was asked for last; ``rounds`` where it was not begun.

    Raises:
        InputError: it holds no run that ``description`` describes, or its files were changed since it was finished.
            What only decides how fast it goes may differ, the data may have moved, and the run may be one of fewer
            rounds: nothing in a round depends on how many follow.
    """
    if not is_begun(out):
        return rounds
    before, now = read_toml(out / "config.toml"), tomllib.loads(description.settings)
    kinds = ["a simulation in Python" if SIMULATION in table else "a configuration" for table in (before, now)]
    require(kinds[0] == kinds[1], f"{out}: holds a run of {kinds[0]}, not of {kinds[1]}; choose another --out")
    for key, (old, new) in differences(before, now).items():
        if key == "data.path" or (key == "algorithm.rounds" and isinstance(old, int) and old < rounds):
            continue
        if _concerns_later_rounds(key, before, now):
            continue
        require(
            key != "algorithm.rounds",
            f"{out}: holds a run of {old} rounds, which can be prolonged but not shortened: 'algorithm.rounds' must be "
            f"at least {old}; got {new}",
        )
        short = len(f"{old}{new}") <= 120 and "\n" not in f"{old}{new}"
        other = f"{key} = {old!r}, but this one has {new!r}" if short else f"another '{key}'"
        raise InputError(f"{out}: holds a run with {other}; choose another --out")
    require_same_examples(out, description.examples)
    if is_finished(out):
        require_unchanged(out)
    return before["algorithm"]["rounds"]


def _concerns_later_rounds(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a key says of rounds after those of the run ``before`` alone: who leaves or joins then, and how models
    forget, where nobody left before.
    """
    done = before["algorithm"]["rounds"]
    old, new = ([event for event in table.get("events", ()) if event["round"] <= done] for table in (before, now))
    if key == "events":
        return old == new
    return key.startswith("forgetting.") and not any(event["leave"] for event in old)


def extend_rounds(
    out: Path, description: RunDescription, progress: SimulationState | None, before: int, every: int
) -> SimulationState | None:
    """Make a run of ``before`` rounds one of more; returns its progress as if it had been that from the start.

    Args:
        out: its directory.
        description: of the longer run.
        progress: of the shorter one; None: it has no checkpoint.
        before: its rounds.
        every: rounds between evaluations.

    Raises:
        InputError: the run is finished and its last checkpoint is gone.
    """
    if is_finished(out):
        require(
            progress is not None and progress.state.round == before,
            f"{out}: cannot be prolonged, since the checkpoint of its last round is gone; choose another --out",
        )
        attack = () if description.attack_table is None else (f"{description.attack_table[0]}.csv",)
        for name in (*OUTCOME, *attack):
            (out / name).unlink(missing_ok=True)
    write_text(out / "config.toml", description.settings)
    write_hashes(out, description.examples)
    LOG.info("prolonged from %d rounds to %d", before, tomllib.loads(description.settings)["algorithm"]["rounds"])
    if progress is None or before % every == 0:
        return progress
    # The last round is always evaluated, but this one is the last no longer.
    return replace(progress, rows=tuple(not_evaluated(row) if row["round"] == before else row for row in progress.rows))


class _RunLog(logging.FileHandler):
    """A file that the run ends with if it cannot be written, as with any other; logging prints a traceback instead."""

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
    """Keeps the sentences of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.sentences.append(record.getMessage())
        # As logging does where nobody listens: that this does must not silence a warning.
        if logging.lastResort is not None and LOG.handlers == [self] and not logging.getLogger().handlers:
            logging.lastResort.handle(record)


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """The warnings that Shoal logs meanwhile."""
    handler = _Warnings()
    LOG.addHandler(handler)
    try:
        yield handler.sentences
    finally:
        LOG.removeHandler(handler)


@contextmanager
def repeated_warnings_dropped() -> Iterator[None]:
    """Print a warning of many runs once, whatever its numbers; the log of each run has it all the same."""
    filters = [(handler, _NewWarnings()) for handler in logging.getLogger().handlers]
    for handler, new in filters:
        handler.addFilter(new)
    try:
        yield
    finally:
        for handler, new in filters:
            handler.removeFilter(new)


class _NewWarnings(logging.Filter):
    """Drops warnings that differ from an earlier one in numbers alone."""

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
    """Append what Shoal logs to ``path``."""
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
