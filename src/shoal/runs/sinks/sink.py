"""What a run logs to a tracker, after each round and at its end, and how a tracker that fails is left out.

Figures of a round have the names of the columns of `rounds.csv` with ``/cluster K`` behind them, and ``/all`` or
``/GROUP`` where they are of clients, each by its own model. NaN is left out, and so are risks in rounds that estimated
none.
"""

import logging
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar, runtime_checkable

from shoal.audit.records import OUTSIDER
from shoal.core.errors import InputError
from shoal.core.representation import one_line
from shoal.engine import RoundReport
from shoal.metrics.summary import FlatSummary, Metrics
from shoal.reports.run.description import RunDescription
from shoal.runs.hashes import decisive_settings
from shoal.simulation.play import SimulationState
from shoal.simulation.round_metrics import Row
from shoal.simulation.simulation import Simulation

LOG = logging.getLogger("shoal")

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class LoggedRun:
    """The run that a sink is opened for.

    Args:
        title: of its page.
        parameters: the values of its config.toml by dotted key.
        settings: the text of its config.toml.
        out: its directory; None: it has none.
        rounds: rounds that are done, which an earlier process has logged.
    """

    title: str
    parameters: Mapping[str, object]
    settings: str
    out: Path | None
    rounds: int
    __repr__ = one_line


def logged_run(description: RunDescription, out: Path | None, progress: SimulationState) -> LoggedRun:
    """The run of a ``description``, in the directory ``out``, as far as it is."""
    parameters = decisive_settings(tomllib.loads(description.settings))
    return LoggedRun(description.title, parameters, description.settings, out, progress.state.round)


class Writer(Protocol):
    """An open log of one run."""

    def write(self, round_number: int, figures: Metrics, /) -> None:
        """Log the figures of a round."""
        ...

    def close(self, summary: FlatSummary | None, /) -> None:
        """Log the metrics of `summary.json`, None where the run did not finish, and close the log."""
        ...


@runtime_checkable
class Sink(Protocol):
    """A tracker to which a run logs, as `watch` of a `Run`."""

    def open_log(self, run: LoggedRun, /) -> Writer:
        """Open the log of a run, that of its first rounds where there are some already."""
        ...


class OpenSinks:
    """The open logs of a run, a watch of its rounds.

    With checkpoints a round is logged once a checkpoint has it, so that what a killed run repeats is logged once.

    Args:
        sinks: to log to.
        run: that is logged.
        every: rounds between checkpoints.
    """

    def __init__(self, sinks: Sequence[Sink], run: LoggedRun, every: int) -> None:
        self._every = 1 if run.out is None else every
        self._waiting: dict[int, Metrics] = {}
        self._writers: dict[str, Writer] = {}
        for sink in sinks:
            name = type(sink).__name__
            writer = self._asked(name, lambda sink=sink: sink.open_log(run))
            if writer is not None:
                self._writers[f"{name} {len(self._writers)}"] = writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(None)

    def __call__(self, simulation: Simulation, progress: SimulationState, report: RoundReport | None) -> None:
        """Log a round; the signature is `simulation.Watch`."""
        if report is None or not self._writers:
            return
        done = progress.state.round
        rows = progress.rows[-len(progress.state.models) :]
        self._waiting[done] = round_figures(rows, simulation.federation.groups, report)
        if done % self._every == 0 or done == simulation.last_round:
            self._write()

    def end(self, summary: FlatSummary | None) -> None:
        """Log the metrics of a finished run, or None, and close."""
        self._write()
        for name, writer in [*self._writers.items()]:
            self._asked(name, lambda writer=writer: writer.close(summary))
        self._writers.clear()

    def _write(self) -> None:
        for done, figures in self._waiting.items():
            for name, writer in [*self._writers.items()]:
                self._asked(name, lambda writer=writer, at=done, what=figures: writer.write(at, what))
        self._waiting.clear()

    def _asked(self, name: str, action: Callable[[], _Answer]) -> _Answer | None:
        """The answer of a tracker; where it fails it is left out from now on, and training goes on."""
        try:
            return action()
        except InputError:
            raise
        except Exception as error:
            self._writers.pop(name, None)
            reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            LOG.warning("%s fails and is logged to no more: %s", name.split(maxsplit=1)[0], reason)
            return None


def round_figures(rows: Sequence[Row], groups: Sequence[str], report: RoundReport) -> dict[str, float]:
    """The figures of a round, from its rows of `rounds.csv`."""
    figures: dict[str, float] = {}
    clients = [row["clients"] for row in rows]
    for key in ("accuracy", "train_loss"):
        figures[f"{key}/all"] = _mean([row[key] for row in rows], clients)
    for group in groups:
        members = [row[f"clients.{group}"] for row in rows]
        figures[f"accuracy/{group}"] = _mean([row[f"accuracy.{group}"] for row in rows], members)
    for row in rows:
        for key, value in row.items():
            if key.startswith("risk"):
                # The red team's, of the models alone.
                key = f"{key}.{OUTSIDER}"  # noqa: PLW2901
                value = value if report.risks_estimated else math.nan  # noqa: PLW2901
            if key not in {"round", "cluster"}:
                figures[f"{key}/cluster {row['cluster']:.0f}"] = value
    figures |= {f"seconds/{part}": seconds for part, seconds in report.seconds.items()}
    return {key: value for key, value in figures.items() if math.isfinite(value)}


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The mean over clients of what their models have; NaN where one is unknown or there are no clients."""
    weighed = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight > 0]
    total = sum(weight for _, weight in weighed)
    return sum(value * weight for value, weight in weighed) / total if total else math.nan
