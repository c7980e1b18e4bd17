"""The result of a run, with its directory, its page and its plot."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors.torch import save as serialize
from torch import Tensor

from shoal.audit.audit import ATTACK_COLUMNS, Audit
from shoal.audit.canary_audit import CANARY_COLUMNS, CLIENT_CANARY_COLUMNS
from shoal.audit.finding import findings
from shoal.core.atomic_files import write_bytes, write_folder, write_text
from shoal.core.errors import InputError, describe, file_errors, integer, path_of, require, require_instance
from shoal.core.foreign_files import read_json
from shoal.core.formats import csv_text, from_cells, shorten
from shoal.core.processes import Workers, Workplace
from shoal.data import Federation
from shoal.data.shards import to_pixels
from shoal.data.swap_pairs import Duplicates
from shoal.engine import Engine, State
from shoal.engine.state import UNKNOWN_RISK
from shoal.metrics.summary import Summary
from shoal.models import FeatureMap, Model
from shoal.replay.reference_store import AuditWatch
from shoal.reports.run.description import RecordedUpdates, RunDescription
from shoal.runs.audits.audit_files import AboutAudited, Attack, AuditRequest, stated_guarantee
from shoal.runs.audits.audit_members import audit_members
from shoal.runs.files import FROZEN, read_models, read_samples, read_summary, read_table, read_warnings, write_hashes
from shoal.runs.run_description import read_description
from shoal.runs.updates import find_updates
from shoal.simulation.measure import CLIENT_COLUMNS, EXPOSURE_COLUMNS, PRESENCE_COLUMNS, ROC_COLUMNS, ROUND_COLUMNS
from shoal.simulation.play import SimulationState
from shoal.simulation.round_metrics import RoundRow
from shoal.simulation.simulation import Simulation, WarmStart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOG = logging.getLogger("shoal")

SAMPLES = 8
"""The number of images per group in the report."""

FEATURES = "features.safetensors"
"""The file of the feature map before the models."""


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of a simulation or a run.

    Args:
        summary: the metrics of `summary.json`.
        clients: one row per client, as in `clients.csv`, with the column ``train_accuracy`` if the simulation ran in
            this process.
        rounds: one row per round and cluster, as in `rounds.csv`.
        roc: ROC curves of the configured attack by group, as in `roc.csv`.
        models: the final model of each cluster, for `torch.nn.Module.load_state_dict`. A model with a feature map needs
            ``torch.nn.Sequential(result.features, network)`` for raw inputs.
        frozen: the names of the frozen tensors, which are equal in all models.
        description: the run's settings for reports.
        samples: test images (B, channels, height, width) uint8 of each group; empty if the data are not images.
        state: the state after the last round, with the models before their release and the cluster that each client
            trained last. The state is ``None`` after `load`.
        updates: the rows of the round attack's table, such as `property.csv`, or ``None`` without a round attack.
        canaries: one row per canary, as in `canaries.csv`, or ``None`` without canaries.
        presence: one row per client that left or joined, as in `presence.csv`, or ``None`` without events.
        recorded: the rounds and size of recorded updates in the run's directory, or ``None`` without recorded updates.
        features: the fitted feature map before the models; ``None`` without a feature map, or after `load` of a map
            with a user's module.
        audit_in_directory: the audit in the run's directory, or ``None`` without an audit.
        simulation: the simulation with its examples, or ``None`` after `load` or unpickling.
        engine: the engine of the simulation, which may be closed, or ``None`` after `load` or unpickling.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> result = shoal.simulate(federation, model, shoal.IFCA(clusters=2), local, rounds=2)
        >>> result.summary.overall["train_accuracy.overall"], result.clients["cluster"].tolist()
        (1.0, [0, 0, 1, 1])
        >>> network = model.network()
        >>> network.load_state_dict(result.models[0])
        <All keys matched successfully>
        >>> network(federation.test.x).argmax(dim=1)
        tensor([0, 1])
    """

    summary: Summary
    clients: pd.DataFrame
    rounds: pd.DataFrame
    roc: pd.DataFrame
    models: Mapping[int, Mapping[str, Tensor]]
    description: RunDescription
    samples: Mapping[str, NDArray[Any]]
    state: State | None = None
    updates: pd.DataFrame | None = None
    canaries: pd.DataFrame | None = None
    presence: pd.DataFrame | None = None
    recorded: RecordedUpdates | None = None
    warnings: tuple[str, ...] = ()
    features: FeatureMap | None = None
    audit_in_directory: pd.DataFrame | None = None
    simulation: Simulation | None = None
    engine: Engine | None = None
    frozen: Collection[str] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the simulation and the engine, which pickle cannot store."""
        return vars(self) | {"simulation": None, "engine": None}

    def __copy__(self) -> "Result":
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Result":
        attributes: dict[str, Any] = deepcopy(self.__getstate__(), memo)
        # Both are shared: nothing changes a simulation, and an engine has no copy.
        return Result(**attributes | {"simulation": self.simulation, "engine": self.engine})

    def start(self, *, public: bool = False) -> WarmStart:
        """Return the models as the ``start`` of a new `Simulation`.

        Args:
            public: whether the models were trained without the new simulation's clients, for example on public data. If
                true, the new simulation and its reference federations start from the models only.
        """
        require_instance("public", public, bool, "True or False")
        state = self.state
        if state is None:
            risks = [self.summary.by_cluster.get(k, {}).get("risk", UNKNOWN_RISK) for k in self.models]
            assignment = torch.tensor(self.clients["cluster"].tolist(), dtype=torch.int64)
            last = int(self.summary.run["rounds"])
            state = State(last, torch.empty(len(risks), 0), torch.tensor(risks, dtype=torch.float64), assignment)
        return WarmStart(state, self.models, self.simulation, self.engine, self._rows(), public)

    def _rows(self) -> list[RoundRow]:
        return [{str(name): value for name, value in row.items()} for row in self.rounds.to_dict("records")]

    def __str__(self) -> str:
        """Return the result in at most five lines, with the exposure from an audit in the directory."""
        from shoal.reports.run.run_verdict import answer  # noqa: PLC0415

        about, audit = self.description, self.audit_in_directory
        exposures = findings(audit) if audit is not None else []
        return answer(self.summary, about.kind, about.metric, exposures)

    def _repr_html_(self) -> str:
        groups = pd.DataFrame(dict(self.summary.by_group)).T.dropna(axis="columns", how="all")
        return f"<p>{escape(str(self))}</p>{groups.to_html(float_format='{:.3f}'.format, na_rep='')}"

    def __repr__(self) -> str:
        figures = {**self.summary.run, **self.summary.overall}
        return shorten(f"Result({', '.join(f'{key}={value}' for key, value in figures.items() if '.' not in key)})")

    def save(self, directory: str | Path) -> Path:
        """Write a run directory for `shoal report`, `shoal compare` and `load`, and return the directory's path.

        Raises:
            InputError: ``directory`` exists or cannot be written; an incomplete directory is removed.
        """
        out = path_of("directory", directory)
        require(not out.exists(), f"{out}: exists already; save to another directory")
        with file_errors(out, "; save to another directory", action="written"):
            write_folder(out, lambda folder: write_files(folder, self))
        return out

    def report(self, path: str | Path) -> Path:
        """Write the HTML page, replacing an older page, and return the page's path.

        Raises:
            InputError: ``path`` cannot be written.
        """
        # Here and below, so that only reports load matplotlib and jinja2.
        from shoal.reports.run.run_page import run_page  # noqa: PLC0415

        path = path_of("path", path)
        page = run_page(
            self.description,
            self.summary,
            self.samples,
            directory=path.parent if (path.parent / "config.toml").exists() else None,
            rounds=self.rounds,
            clients=self.clients,
            roc=self.roc,
            updates=self.updates,
            presence=self.presence,
            recorded=self.recorded,
            audit=self.audit_in_directory,
            warnings=self.warnings,
        )
        with file_errors(path, "; give the path of a file", action="written"):
            write_text(path, page)
        return path

    def audit(
        self,
        out: str | Path | None = None,
        *,
        references: int = 16,
        duplicates: Duplicates | None = None,
        queries: int = 1,
        jobs: int = 1,
        cluster: str | None = None,
        watch: AuditWatch | None = None,
        attacks: Sequence[Attack] = (),
    ) -> Audit:
        """Attack the members with every attack, as `shoal audit` does.

        Args:
            out: the directory of the audit's files. An interrupted audit in ``out`` resumes. ``None`` writes no files.
            references, duplicates, queries, jobs, cluster, watch, attacks: see `shoal.audit_run`.

        Raises:
            InputError: the result was read from a directory, the run had a property attack or started from models that
                cannot be trained again, or ``out`` cannot be written.
        """
        references = integer("references", references, "such as 16", 0)
        request = AuditRequest((), attacks, references, duplicates, queries)
        workers = Workers(integer("jobs", jobs, "such as 2", 1), cluster)
        require(watch is None or callable(watch), f"'watch' must be a function (got {describe(watch)})")
        if self.simulation is None or self.state is None or self.engine is None:
            raise InputError(
                "a result from a directory or from pickle has no examples; audit the run's directory with "
                "shoal.audit_run"
            )
        about = AboutAudited(f"Audit of {self.description.title}", stated_guarantee(self.summary.overall))
        progress = SimulationState(self.state, tuple(self._rows()))
        directory = TemporaryDirectory() if out is None else nullcontext(path_of("out", out))
        with directory as folder, self.engine.reopened() as engine:
            place = Workplace(Path(folder), workers, watch=watch)
            return audit_members(self.simulation, progress, engine, request, place, about).audit

    def plot(self) -> "NDArray[Any] | list[Axes]":
        """Draw the accuracy, exposure and size of each cluster by round.

        Returns:
            Three matplotlib axes of one figure, ``axes[0].figure``.
        """
        from shoal.reports.run.run_charts import plot_rounds  # noqa: PLC0415

        return plot_rounds(self.rounds, self.summary, self.description.metric)


def named_models(model: Model, state: State) -> dict[int, dict[str, Tensor]]:
    """Return the tensors of each cluster's model, for `torch.nn.Module.load_state_dict`."""
    return {k: model.state_dict(row) for k, row in enumerate(state.models)}


def load(directory: str | Path, *, allow_code: bool = False) -> Result:
    """Load the result in the directory of a finished run.

    Args:
        directory: the directory that `shoal run`, `simulate` or `Result.save` wrote.
        allow_code: whether to import the code that the run's configuration names (``module:Name``). Importing executes
            the code, so allow code only in directories from people you trust.

    Raises:
        InputError: ``directory`` is not the directory of a finished run, or a file is missing or damaged.
    """
    out = path_of("directory", directory)
    path = out / FEATURES
    features = FeatureMap.load(path) if path.exists() else None
    tables = read_tables(out, allow_code=allow_code)
    models, frozen = read_models(out / "models.safetensors")
    return replace(tables, models=models, features=features, frozen=frozen)


def read_tables(out: Path, *, allow_code: bool = False) -> Result:
    """Load a result without its models, which may be large; see `load`."""
    summary, description = read_summary(out), read_description(out, allow_code=allow_code)
    clients_by_group = [f"clients.{name}" for name in description.groups_with_clients]
    table, columns = description.attack_table or ("", ())
    return Result(
        summary=summary,
        clients=read_table(out / "clients.csv", (*CLIENT_COLUMNS, *EXPOSURE_COLUMNS)),
        rounds=read_table(out / "rounds.csv", (*ROUND_COLUMNS, *clients_by_group)),
        roc=read_table(out / "roc.csv", ROC_COLUMNS, empty=True),
        models={},
        description=description,
        samples=read_samples(out / "samples.safetensors"),
        updates=read_table(out / f"{table}.csv", columns, empty=True) if table else None,
        canaries=read_table(out / "canaries.csv", CANARY_COLUMNS) if "canaries.members" in summary.overall else None,
        presence=read_table(out / "presence.csv", PRESENCE_COLUMNS) if "left" in summary.overall else None,
        recorded=find_updates(out),
        warnings=read_warnings(out / "run.log"),
        audit_in_directory=_audit_in(out, summary),
    )


def report_of(out: Path, *, allow_code: bool = False) -> Path:
    """Write report.html of the finished run in ``out``, and return the page's path.

    Raises:
        InputError: ``out`` is not the directory of a finished run, or a file is missing or damaged.
    """
    return read_tables(out, allow_code=allow_code).report(out / "report.html")


def _audit_in(out: Path, summary: Summary) -> pd.DataFrame | None:
    """Return the rows of audit.csv in a run's directory; None without an audit of the last round."""
    try:
        rounds = read_json(out / "audit.json").get("rounds")
        words = dict.fromkeys(("view", "attack", "scope", "name", "title"), str)
        attacks = pd.read_csv(out / "audit.csv", dtype=words, keep_default_na=False, na_values=[""])
        attacks = from_cells(attacks, words)
    except (OSError, ValueError, AttributeError):
        return None
    trained = summary.run["rounds"]
    if isinstance(rounds, int) and rounds != trained:  # a text of a foreign file is not logged
        said = "%s: the audit of round %d is not shown, because the run has %s rounds; audit the run again"
        LOG.warning(said, out, rounds, trained)
    return attacks if rounds == trained and {*ATTACK_COLUMNS} <= {*attacks} else None


def write_files(out: Path, result: Result) -> None:
    """Write all files of a finished run, with summary.json last, because it marks the run as finished."""
    if not (out / "config.toml").exists():
        write_text(out / "config.toml", result.description.settings)
    if result.warnings and not (out / "run.log").exists():
        write_text(out / "run.log", "".join(f"WARNING {sentence}\n" for sentence in result.warnings))
    write_text(out / "rounds.csv", csv_text(result.rounds))
    ordered = (*CLIENT_COLUMNS, *EXPOSURE_COLUMNS, "threshold_drawn", "view", "epsilon", *CLIENT_CANARY_COLUMNS, "name")
    columns = [name for name in ordered if name in result.clients]
    write_text(out / "clients.csv", csv_text(result.clients[columns]))
    write_text(out / "roc.csv", csv_text(result.roc))
    if result.updates is not None and result.description.attack_table is not None:
        write_text(out / f"{result.description.attack_table[0]}.csv", csv_text(result.updates))
    if result.canaries is not None:
        write_text(out / "canaries.csv", csv_text(result.canaries))
    if result.presence is not None:
        write_text(out / "presence.csv", csv_text(result.presence))
    write_models(out, result.models, result.frozen)
    if result.features is not None:
        write_bytes(out / FEATURES, result.features.to_bytes())
    samples = {name: torch.as_tensor(images) for name, images in result.samples.items()}
    write_bytes(out / "samples.safetensors", serialize(samples))
    summary = json.dumps(result.summary, indent=2, allow_nan=False) + "\n"
    write_hashes(out, result.description.examples, summary)
    write_text(out / "summary.json", summary)


def write_models(out: Path, models: Mapping[int, Mapping[str, Tensor]], frozen: Collection[str] = ()) -> Path:
    """Write models.safetensors, with each frozen tensor once, and return the file's path."""
    stored, addresses = dict[str, Tensor](), set[int]()
    for k, tensors in models.items():
        for name, tensor in tensors.items():
            if name in frozen and k > 0:
                continue
            # A tensor that layers share is written under each of its names, and safetensors refuses shared memory.
            copy = tensor.clone() if tensor.data_ptr() in addresses else tensor
            stored[f"{FROZEN if name in frozen else k}.{name}"] = copy.contiguous()
            addresses.add(tensor.data_ptr())
    write_bytes(out / "models.safetensors", serialize(stored))
    return out / "models.safetensors"


def samples_of(federation: Federation) -> dict[str, NDArray[Any]]:
    """Return a few test images of each group, or an empty mapping if the examples are not images."""
    samples = {}
    for g, name in enumerate(federation.groups):
        images = federation.test.of_group(g).x[:SAMPLES]
        if images.dim() == 4:
            samples[name] = to_pixels(images)
    return samples
