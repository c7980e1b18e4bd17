"""Experiment trackers, such as TensorBoard, that log a run after each round and at its end.

A round's figures have the column names of `rounds.csv` and a suffix: ``/cluster K``, or ``/all`` and ``/GROUP`` for
means over clients. Figures that are NaN, and risks in rounds without a risk estimate, are not logged.
"""

import logging
import math
import socket
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from shoal.audit.record_table import OUTSIDER
from shoal.core.errors import InputError, require
from shoal.core.formats import one_line
from shoal.core.settings import settings
from shoal.engine import RoundReport
from shoal.metrics.summary import FlatSummary, Metrics
from shoal.runs.files import decisive_settings
from shoal.simulation.play import SimulationState
from shoal.simulation.round_metrics import RoundRow
from shoal.simulation.simulation import Simulation

LOG = logging.getLogger("shoal")

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class LoggedRun:
    """The run that a tracker logs.

    Args:
        out: the run's directory, or ``None`` without a directory.
        rounds: the number of rounds that an earlier process finished and logged.
    """

    title: str
    settings: str
    out: Path | None
    rounds: int
    __repr__ = one_line

    @property
    def parameters(self) -> Mapping[str, object]:
        """The values of the run's config.toml that can change the result, by dotted key."""
        return decisive_settings(tomllib.loads(self.settings))


class Writer(Protocol):
    """An open log of one run."""

    def write(self, round_number: int, figures: Metrics, /) -> None:
        """Log the figures of a round."""
        ...

    def close(self, summary: FlatSummary | None, /) -> None:
        """Log the metrics of `summary.json`, and close the log. ``summary`` is None for an unfinished run."""
        ...


@runtime_checkable
class Sink(Protocol):
    """A tracker for the argument `watch` of a `Run`."""

    def open_log(self, run: LoggedRun, /) -> Writer:
        """Open the log of a run, or continue the log of its earlier rounds."""
        ...


class OpenSinks:
    """The open logs of a run, used as the watch of a `Run`.

    A round is logged after its checkpoint, so a resumed run logs no round twice. A failing tracker is dropped.
    """

    def __init__(self, sinks: Sequence[Sink], run: LoggedRun, every: int) -> None:
        self._every = 1 if run.out is None else every
        self._waiting: dict[int, Metrics] = {}
        self._writers: dict[str, Writer] = {}
        for sink in sinks:
            name = type(sink).__name__
            writer = self._try(name, lambda sink=sink: sink.open_log(run))
            if writer is not None:
                self._writers[f"{name} {len(self._writers)}"] = writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(None)

    def __call__(self, simulation: Simulation, progress: SimulationState, report: RoundReport | None) -> None:
        """Log a round."""
        if report is None or not self._writers:
            return
        done = progress.state.round
        rows = progress.rows[-len(progress.state.models) :]
        self._waiting[done] = round_figures(rows, simulation.federation.groups, report)
        if done % self._every == 0 or done == simulation.last_round:
            self._write()

    def end(self, summary: FlatSummary | None) -> None:
        """Log the metrics of a finished run, and close the logs. ``summary`` is None for an unfinished run."""
        self._write()
        for name, writer in [*self._writers.items()]:
            self._try(name, lambda writer=writer: writer.close(summary))
        self._writers.clear()

    def _write(self) -> None:
        for done, figures in self._waiting.items():
            for name, writer in [*self._writers.items()]:
                self._try(name, lambda writer=writer, at=done, what=figures: writer.write(at, what))
        self._waiting.clear()

    def _try(self, name: str, action: Callable[[], _Value]) -> _Value | None:
        """Call a tracker; drop a tracker that fails, and continue training."""
        try:
            return action()
        except InputError:
            raise
        except Exception as error:
            self._writers.pop(name, None)
            reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            LOG.warning("%s failed, and logging to it stops: %s", name.split(maxsplit=1)[0], reason)
            return None


def round_figures(rows: Sequence[RoundRow], groups: Sequence[str], report: RoundReport) -> dict[str, float]:
    """Return the figures of a round, from its rows of `rounds.csv`."""
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
                # The red team reads the models alone.
                key = f"{key}.{OUTSIDER}"  # noqa: PLW2901
                value = value if report.risks_estimated else math.nan  # noqa: PLW2901
            if key not in {"round", "cluster"}:
                figures[f"{key}/cluster {row['cluster']:.0f}"] = value
    figures |= {f"seconds/{part}": seconds for part, seconds in report.seconds.items()}
    return {key: value for key, value in figures.items() if math.isfinite(value)}


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the mean of the models' values over their clients; NaN if a value is unknown or no client is left."""
    pairs = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight > 0]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else math.nan


@settings
class TensorBoard:
    """A TensorBoard log, shown by ``tensorboard --logdir FOLDER`` (``pip install 'shoal[tensorboard]'``).

    A step is a round. The last step has the metrics of `summary.json` under ``summary/``. TensorBoard shows the
    configuration as text and on its page HPARAMS.

    Args:
        folder: the folder of the event files. ``None`` means ``tensorboard`` in the run's directory.

    Raises:
        InputError: TensorBoard is not installed.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> simulation = shoal.Simulation(federation, model, shoal.FedAvg(), local, rounds=2)
        >>> with TemporaryDirectory() as folder:
        ...     result = shoal.Run(simulation, watch=shoal.TensorBoard(folder)).train()
        ...     len([*Path(folder).glob("events.out.tfevents.*")])
        ...
        1
    """

    folder: str | Path | None = None

    def __post_init__(self) -> None:
        spec = find_spec("tensorboard")
        # Python also imports a folder of logs with that name; it has no origin.
        installed = spec is not None and spec.origin is not None
        require(installed, "TensorBoard: the package is missing; run pip install 'shoal[tensorboard]'")

    def open_log(self, run: LoggedRun) -> "_EventFile":
        """Open an event file. A resumed run writes a new event file."""
        folder = self.folder or (None if run.out is None else run.out / "tensorboard")
        require(folder is not None, "TensorBoard needs a folder; set its 'folder' or the run's 'out'")
        folder = Path(str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names as one log.
        name = f"events.out.tfevents.{time.time():010.0f}.{len([*folder.iterdir()]):04d}.{socket.gethostname()}"
        return _EventFile(folder / name, run)


class _EventFile:
    """An event file that is open only during writes."""

    def __init__(self, path: Path, run: LoggedRun) -> None:
        # Here, since these imports take half a second.
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # noqa: PLC0415
        from tensorboard.plugins.text import metadata  # noqa: PLC0415
        from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415
        from tensorboard.util.tensor_util import make_tensor_proto  # noqa: PLC0415

        self._path, self._step, self._new = path, run.rounds, BytesIO()
        self._records = RecordWriter(self._new)
        event: Any = import_module("tensorboard.compat.proto.event_pb2")
        summary: Any = import_module("tensorboard.compat.proto.summary_pb2")
        self._event, self._summary = event.Event, summary.Summary
        self._add(file_version="brain.Event:2")
        values = {key: v if isinstance(v, bool | int | float) else str(v) for key, v in run.parameters.items()}
        self._add(summary=hparams_pb(values, trial_id=run.title))
        text = "".join(f"    {line}\n" for line in run.settings.splitlines())
        about = metadata.create_summary_metadata("config.toml", run.title)
        self._values({"tag": "config.toml", "metadata": about, "tensor": make_tensor_proto([text])})
        self._save()

    def write(self, round_number: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round."""
        self._step = round_number
        self._values(*({"tag": tag, "simple_value": value} for tag, value in figures.items()))
        self._save()

    def close(self, summary: FlatSummary | None) -> None:
        """Log the metrics of `summary.json`."""
        numbers = {f"summary/{key}": value for key, value in (summary or {}).items() if not isinstance(value, str)}
        self.write(self._step, numbers)

    def _save(self) -> None:
        with self._path.open("ab") as file:
            file.write(self._new.getvalue())
        self._new.seek(0)
        self._new.truncate()

    def _values(self, *values: Mapping[str, Any]) -> None:
        if values:
            self._add(summary=self._summary(value=[self._summary.Value(**value) for value in values]))

    def _add(self, **content: object) -> None:
        event: Any = self._event(wall_time=time.time(), step=self._step, **content)
        self._records.write(event.SerializeToString())
