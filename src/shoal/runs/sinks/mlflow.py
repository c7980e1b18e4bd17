"""Logging to MLflow, by its client alone: no active run or default of the process changes."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from shoal.core.settings import settings
from shoal.metrics.summary import FlatSummary
from shoal.runs.sinks.sink import LoggedRun

_DIRECTORY = "shoal.directory"
"""The tag with a run's directory, by which one that is resumed is found again."""

_MAX_ENTRIES = 100
"""Entries of one request, at most; what MLflow takes of parameters."""

_LONGEST = 6000
"""Characters of a parameter, at most."""


@settings
class MLflow:
    """A sink for MLflow (``pip install 'shoal[mlflow]'``).

    Rounds are steps. The configuration are the parameters, of which MLflow keeps the first value where a resumed run
    has more rounds. The metrics of `summary.json` follow at the end, and those that are texts as tags. A resumed run
    goes on in its own run of MLflow. A character that names there cannot have becomes ``_``.

    Args:
        uri: of the tracking server or database; None: the variable MLFLOW_TRACKING_URI, or else the database
            ``mlflow/mlflow.db`` in the run's directory, or else MLflow's default.
        experiment: its name there.

    Example:
        >>> import shoal
        >>> shoal.MLflow("http://server:5000", experiment="hospitals")
        MLflow(uri='http://server:5000', experiment='hospitals')
    """

    uri: str | None = None
    experiment: str = "shoal"

    def open_log(self, run: LoggedRun) -> "_Tracked":
        """Begin a run, or go on in that of the same directory."""
        mlflow: Any = import_module("mlflow")  # takes seconds
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None and run.out is not None:
            (run.out / "mlflow").mkdir(exist_ok=True)
            uri = f"sqlite:///{run.out.resolve() / 'mlflow' / 'mlflow.db'}"
        client = mlflow.MlflowClient(uri)
        experiment = client.get_experiment_by_name(self.experiment)
        where = client.create_experiment(self.experiment) if experiment is None else experiment.experiment_id
        directory = "" if run.out is None else str(run.out.resolve())
        known = client.search_runs([where], order_by=["attributes.start_time DESC"]) if run.rounds and directory else []
        ours = [entry for entry in known if entry.data.tags.get(_DIRECTORY) == directory]
        entry = ours[0] if ours else client.create_run(where, run_name=run.title, tags={_DIRECTORY: directory})
        client.update_run(entry.info.run_id, status="RUNNING")
        writer = _Tracked(client, mlflow.entities, entry.info.run_id, run.rounds)
        writer.describe({key: value for key, value in run.parameters.items() if key not in entry.data.params})
        return writer


class _Tracked:
    """An open run of MLflow."""

    def __init__(self, client: Any, entities: Any, run: str, rounds: int) -> None:  # noqa: ANN401 - may be absent
        self._client, self._entities, self._run, self._step = client, entities, run, rounds

    def describe(self, parameters: Mapping[str, object]) -> None:
        """Log parameters."""
        entries = [self._entities.Param(_allowed(key), str(value)[:_LONGEST]) for key, value in parameters.items()]
        self._send("params", entries)

    def write(self, round_number: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round."""
        self._step, now = round_number, int(1000 * time.time())
        entries = [self._entities.Metric(_allowed(key), value, now, round_number) for key, value in figures.items()]
        self._send("metrics", entries)

    def _send(self, kind: str, entries: Sequence[object]) -> None:
        for first in range(0, len(entries), _MAX_ENTRIES):
            self._client.log_batch(self._run, **{kind: entries[first : first + _MAX_ENTRIES]})

    def close(self, summary: FlatSummary | None) -> None:
        """Log the metrics of `summary.json` and end the run."""
        if summary is not None:
            self.write(self._step, {key: value for key, value in summary.items() if not isinstance(value, str)})
            for key, value in summary.items():
                if isinstance(value, str):
                    self._client.set_tag(self._run, _allowed(key), value)
        self._client.set_terminated(self._run, "FAILED" if summary is None else "FINISHED")


def _allowed(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)
