"""A run directory while somebody runs in it: made or opened again, locked, logged, and finished."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from shoal.core.atomic_files import remove_unfinished, write_text
from shoal.core.errors import InputError, require
from shoal.engine import Engine, RoundReport, Tensors
from shoal.runs.checkpoint import keep_last_checkpoint, save_checkpoint
from shoal.runs.hashes import NAME, write_hashes
from shoal.runs.lock import locked
from shoal.runs.result import Result, write_files
from shoal.runs.updates import FOLDER, megabytes, write_updates
from shoal.simulation.coordination import changed_directives
from shoal.simulation.simulation import Simulation, SimulationState, Watch, run_rounds

LOG = logging.getLogger("shoal")


def is_finished(out: Path) -> bool:
    """Whether the directory holds a run that is done: its summary is written last."""
    return (out / "summary.json").exists()


def is_begun(out: Path) -> bool:
    """Whether the existing ``out`` has its config.toml; not if the run was killed before it wrote its first file.

    Raises:
        InputError: ``out`` is somebody else's directory.
    """
    require(out.is_dir(), f"{out}: is not a directory; choose another --out")
    if (out / "config.toml").exists():
        return True
    others = [path for path in out.iterdir() if not _is_first(path)]
    require(not others, f"{out}: is not a run directory (no config.toml); choose another --out")
    return False


def _is_first(path: Path) -> bool:
    """Whether a run may have made this before its config.toml."""
    if path.name == "run.log":
        return path.stat().st_size == 0
    return path.name == "checkpoint" or path.name.startswith(".config.toml.")


def taken(out: Path) -> InputError:
    """The error of a new run in a directory that exists."""
    return InputError(
        f"{out}: exists already; choose another directory, or go on in it with --resume (in Python: resume=True)"
    )


@contextmanager
def opened(
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
            held.enter_context(locked(out))
            require_same()
            checkpoints.mkdir(exist_ok=True)
            for folder in (out, checkpoints, out / FOLDER):
                remove_unfinished(folder)
            if not (out / "config.toml").exists():
                write_text(out / "config.toml", config)
            if examples is not None and not (out / NAME).exists():
                write_hashes(out, examples)
        except FileExistsError as error:
            raise taken(out) from error
        except OSError as error:
            raise InputError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
        if new and resume:
            LOG.warning("%s: there is nothing to resume; the run starts anew", out)
        yield checkpoints


def train(
    simulation: Simulation,
    engine: Engine,
    progress: SimulationState,
    checkpoints: Path,
    *,
    every: int,
    watch: Watch | None,
) -> SimulationState:
    """Run the rounds that are left, with a checkpoint after each ``every`` of them and after the last.

    The updates of recorded rounds are written beside the folder of checkpoints, and personal models into it where they
    are kept on disk.
    """
    if simulation.record_updates:
        LOG.info("updates: %s MB in %s/ at the end", f"{megabytes(simulation):,.1f}", FOLDER)
    state = progress.state
    progress = replace(progress, state=replace(state, personal=engine.stored(state.personal, checkpoints)))
    saved = state.round
    fresh: dict[int, Tensors] = {}
    try:
        for after, report in run_rounds(simulation, engine, progress):
            progress = after
            fresh |= {} if progress.observation is None else {progress.state.round: progress.observation}
            done = progress.state.round
            if report.updates is not None:
                # Before the checkpoint: a round that is done has its updates.
                write_updates(checkpoints.parent, report.updates)
            LOG.info("%s", _line(progress, report))
            if done % every == 0 or done == simulation.rounds:
                save_checkpoint(checkpoints, progress, fresh)
                saved = done
                fresh.clear()
            if watch is not None:
                watch(simulation, progress, report)
    finally:
        # Interrupted or diverged: keep the last good round, whatever the interval.
        if progress.state.round > saved:
            save_checkpoint(checkpoints, progress, fresh)
    return progress


def finish(out: Path, result: Result) -> None:
    """Write the files of a finished run, and keep its last checkpoint, from which it can be prolonged."""
    write_files(out, result)
    keep_last_checkpoint(out / "checkpoint")
    LOG.info("done in %.1f s", result.summary.overall["seconds.total"])


def _line(progress: SimulationState, report: RoundReport) -> str:
    """What run.log says of a round."""
    state = progress.state
    sizes = torch.bincount(report.assignment, minlength=len(state.models)).tolist()
    risks = ", ".join(f"{risk:.3f}" for risk in state.risks.tolist()) if report.risks_estimated else "not estimated"
    changed = changed_directives(progress.rows)
    given = "".join(f"; {name} {', '.join(f'{each:.2f}' for each in values)}" for name, values in changed.items())
    directives = f"; directives{given[1:]}" if changed else ""
    about = f"clients by cluster {sizes}; risks {risks}{directives}"
    return f"round {state.round}: {about}; {progress.seconds['total']:.1f} s"


class _RunLog(logging.FileHandler):
    """A file that the run ends with if it cannot be written, as with any other; logging prints a traceback instead."""

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
def warned() -> Iterator[list[str]]:
    """The warnings that Shoal logs meanwhile."""
    handler = _Warnings()
    LOG.addHandler(handler)
    try:
        yield handler.sentences
    finally:
        LOG.removeHandler(handler)


@contextmanager
def logged(path: Path) -> Iterator[None]:
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
