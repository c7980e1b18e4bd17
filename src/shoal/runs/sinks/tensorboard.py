"""Logging to TensorBoard's event files, by TensorBoard's own messages: without TensorFlow or PyTorch's writer."""

import socket
import time
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

from shoal.core.errors import require
from shoal.core.settings import settings
from shoal.metrics.summary import FlatSummary
from shoal.runs.sinks.sink import LoggedRun


@settings
class TensorBoard:
    """A sink for TensorBoard: ``tensorboard --logdir FOLDER`` shows it (``pip install 'shoal[tensorboard]'``).

    Rounds are steps. At the step of the last one the metrics of `summary.json` follow under ``summary/``. The
    configuration is a text, and the hyper-parameters of the page HPARAMS.

    Args:
        folder: of the event files; None: ``tensorboard`` in the run's directory.

    Raises:
        InputError: TensorBoard is not installed.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import shoal
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one] * 3, test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> simulation = shoal.Simulation(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=2)
        >>> with TemporaryDirectory() as folder:
        ...     result = shoal.Run(simulation, watch=shoal.TensorBoard(folder)).train()
        ...     len([*Path(folder).glob("events.out.tfevents.*")])
        ...
        1
    """

    folder: str | Path | None = None

    def __post_init__(self) -> None:
        spec = find_spec("tensorboard")
        # A folder of logs by that name can be imported too.
        there = spec is not None and spec.origin is not None
        require(there, "logging to 'tensorboard' needs its package: pip install 'shoal[tensorboard]'")

    def open_log(self, run: LoggedRun) -> "_EventFile":
        """Open an event file, a further one where a run is resumed."""
        folder = self.folder or (None if run.out is None else run.out / "tensorboard")
        require(folder is not None, "'folder' of TensorBoard is missing, and the run has no directory")
        folder = Path(str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names, and a later one goes on.
        name = f"events.out.tfevents.{time.time():010.0f}.{len([*folder.iterdir()]):04d}.{socket.gethostname()}"
        return _EventFile(folder / name, run)


class _EventFile:
    """An event file, which is open while it is written to, so that one that fails leaves none open."""

    def __init__(self, path: Path, run: LoggedRun) -> None:
        # Here, since they take half a second.
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
