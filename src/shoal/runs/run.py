"""A run: the training and measurement of a simulation, in memory or in a directory."""

import json
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from pathlib import Path

from shoal.audit import RedTeam
from shoal.config.build import load_data, resolve
from shoal.config.schema import Config
from shoal.core.atomic_files import write_text
from shoal.core.errors import describe, integer, locate_errors, path_of, require, require_instance
from shoal.core.foreign_files import read_json
from shoal.core.formats import one_line
from shoal.core.processes import SEQUENTIAL, Workers
from shoal.data import Federation, SourceData
from shoal.data.content import fingerprint
from shoal.defenses import Defense
from shoal.engine import Algorithm, Engine, LocalSGD, RoundReport
from shoal.metrics.summary import Summary
from shoal.models import FeatureMap, Model
from shoal.replay.reference_store import AuditWatch
from shoal.reports.run.description import RunDescription
from shoal.runs.checkpoint import keep_newest_checkpoints, load_checkpoint
from shoal.runs.directory import (
    collect_warnings,
    existing_directory_error,
    extend_rounds,
    is_finished,
    log_to_file,
    open_run_dir,
    rounds_before,
)
from shoal.runs.files import read_warnings
from shoal.runs.progress import Display, default_display
from shoal.runs.result import Result, load, named_models, samples_of, write_files
from shoal.runs.run_description import describe_simulation
from shoal.runs.run_training import measure_trained, train
from shoal.runs.sinks import LoggedRun, OpenSinks, Sink
from shoal.runs.updates import MAX_MEGABYTES, find_updates, megabytes
from shoal.simulation.cluster_number import ClusterNumber, choose_cluster_number, most_clusters, with_cluster_number
from shoal.simulation.play import EngineSettings, SimulationState, Watch, initial_state, move_to_engine
from shoal.simulation.simulation import DEFAULT_RED_TEAM, Simulation, apply_feature_map

LOG = logging.getLogger("shoal")

CLUSTER_NUMBER_FILE = "auto.json"
"""The file in the run's directory with the automatically chosen number of clusters."""

CPU_ENGINE = EngineSettings()


@dataclass(frozen=True, eq=False)
class Run:
    """A simulation with its engine, its directory and its progress functions.

    Args:
        simulation: the settings that decide the outcome.
        out: the run directory, with checkpoints that allow resuming. ``None`` writes no files.
        engine: the engine's settings; the default uses the CPU with one thread per core.
        watch: a function that is called before the first round and after each round, a tracker such as `TensorBoard`,
            or a list of functions and trackers. Without a function, a terminal or a notebook shows the progress.
        watch_references: the function ``watch`` of `shoal.audit_run`, for the run's reference federations.
        workers: the processes that train reference federations, such as ``Workers(jobs=2)``.
        checkpoint_every: the number of rounds between checkpoints.
        max_megabytes: the limit on the size of recorded updates, in 10^6 bytes.
        description: the run's description in reports. ``None`` derives the description from the simulation.
        notes: notes on the data for run.log.
        warnings: warnings about the data, logged before the first round.
        cluster_number: the automatic choice of the number of clusters, or ``None`` if the number was not chosen
            automatically.

    Raises:
        InputError: recorded updates have no directory, or are larger than ``max_megabytes``.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> short, long = (shoal.Simulation(federation, model, shoal.FedAvg(), local, rounds) for rounds in (2, 3))
        >>> with TemporaryDirectory() as folder:
        ...     _ = shoal.Run(short, f"{folder}/run").train()
        ...     resumed = shoal.Run(long, f"{folder}/run", shoal.EngineSettings(threads=1)).train(resume=True)
        ...     sorted(path.name for path in Path(folder, "run").glob("*.csv"))
        ...
        ['clients.csv', 'roc.csv', 'rounds.csv']
        >>> resumed.state.models.equal(shoal.Run(long).train().state.models)
        True
    """

    simulation: Simulation
    out: Path | str | None = None
    engine: EngineSettings = CPU_ENGINE
    watch: Watch | Sink | Sequence[Watch | Sink] | None = None
    watch_references: AuditWatch | None = None
    workers: Workers = SEQUENTIAL
    checkpoint_every: int = 1
    max_megabytes: int = MAX_MEGABYTES
    description: RunDescription | None = None
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    cluster_number: ClusterNumber | None = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        require_instance("simulation", self.simulation, Simulation, "such as Simulation(federation, model, ...)")
        require_instance("engine", self.engine, EngineSettings, "such as EngineSettings(threads=1)")
        for watch in self._watches:
            fits = callable(watch) or isinstance(watch, Sink)
            require(fits, f"'watch' must be a function or a tracker, such as TensorBoard() (got {describe(watch)})")
        if self.out is not None:
            object.__setattr__(self, "out", path_of("out", self.out))
        recorded = self.simulation.record_updates
        require(self.out is not None or not recorded, "'record_updates' needs 'out', the directory of the run")
        integer("checkpoint_every", self.checkpoint_every, "such as 1", 1)
        most, needed = integer("max_megabytes", self.max_megabytes, "such as 1000"), megabytes(self.simulation)
        require(
            needed <= most,
            f"'max_megabytes' must be at least {ceil(needed):,}, the size of the recorded updates (got {most:,}); "
            "raise the limit or record fewer rounds",
        )

    def train(self, *, resume: bool = False) -> Result:
        """Train and measure the simulation.

        Args:
            resume: whether ``out`` may have the same simulation, or one with fewer rounds. Training continues after the
                last checkpoint, and the result equals an uninterrupted run's bit for bit. A finished run is read
                instead of trained.

        Raises:
            InputError: the directory exists, cannot be written, has a different run or is in use; or training diverged.
            MeasurementError: the final models cannot be measured; the error's ``models`` stores them.
        """
        require(self.out is not None or not resume, "'resume' needs 'out', the directory of the run")
        if self.out is not None and Path(self.out).exists() and not resume:
            raise existing_directory_error(Path(self.out))
        settings = self.engine.resolve(self._with_features)
        if most_clusters(self.simulation.algorithm) is not None:
            return self._with_clusters(settings).train(resume=resume)
        description = self.description or describe_simulation(self.simulation, settings)
        with settings.engine(self.simulation.setup.model) as engine:
            if isinstance(self.out, Path):
                return self._train_in(self.out, engine, description, resume=resume)
            with collect_warnings() as warnings:
                return self._train_and_measure(engine, description, None, warnings)

    def _with_clusters(self, settings: EngineSettings) -> "Run":
        """Return this run with the number of clusters from its directory, or choose the number."""
        path = None if self.out is None else Path(self.out) / CLUSTER_NUMBER_FILE
        if path is not None and path.exists():
            number = ClusterNumber.of_metrics(read_json(path))
        else:
            display = None if self._watches else default_display()
            shown = [watch.trial for watch in (display, *self._watches) if isinstance(watch, Display)]
            with display or nullcontext(), settings.engine(self.simulation.setup.model) as engine:
                simulation = move_to_engine(self._with_features, engine)
                number = choose_cluster_number(simulation, engine, *(shown or [lambda *_: None]))
        algorithm = with_cluster_number(self.simulation.algorithm, number.clusters)
        about = None if self.description is None else self.description.with_algorithm(algorithm)
        return replace(
            self, simulation=replace(self.simulation, algorithm=algorithm), description=about, cluster_number=number
        )

    def _train_in(self, out: Path, engine: Engine, description: RunDescription, *, resume: bool) -> Result:
        """Train in the directory ``out``, or read the finished run in it."""
        rounds = self.simulation.last_round
        same = lambda: rounds_before(out, description, rounds)  # noqa: E731
        if out.exists() and same() == rounds and is_finished(out):
            return self._load_finished(out, engine)
        # Checked again under the lock, since another process may have finished it meanwhile.
        with open_run_dir(out, description.settings, same, resume=resume, examples=description.examples) as checkpoints:
            if is_finished(out) and same() == rounds:
                return self._load_finished(out, engine)
            with log_to_file(out / "run.log"):
                result = self._train_and_measure(engine, description, checkpoints, ())
                write_files(out, result)
                # The last checkpoint allows a finished run to be extended.
                keep_newest_checkpoints(checkpoints, 1)
                LOG.info("done in %.1f s", result.summary.overall["seconds.total"])
        return replace(result, recorded=find_updates(out), warnings=read_warnings(out / "run.log"))

    @property
    def _watches(self) -> Sequence[Watch | Sink]:
        if self.watch is None:
            return ()
        return self.watch if isinstance(self.watch, Sequence) else [self.watch]

    @cached_property
    def _with_features(self) -> Simulation:
        """The simulation with its features, cached because their computation is slow."""
        return apply_feature_map(self.simulation, self.engine.threads)

    def _load_finished(self, out: Path, engine: Engine) -> Result:
        """Return the result in ``out`` with the state, simulation and engine, which audits and warm starts need."""
        simulation = move_to_engine(self._with_features, engine)
        progress = load_checkpoint(out / "checkpoint", self.simulation.setup.model.frozen_hash)
        state = None if progress is None else progress.state
        features = simulation.features if isinstance(simulation.features, FeatureMap) else None
        return replace(load(out, allow_code=True), state=state, simulation=simulation, engine=engine, features=features)

    def _train_and_measure(
        self, engine: Engine, description: RunDescription, checkpoints: Path | None, warnings: Sequence[str]
    ) -> Result:
        """Train the rounds after the last of the ``checkpoints``, and measure."""
        simulation = move_to_engine(self._with_features, engine)
        chosen = {} if self.cluster_number is None else self.cluster_number.metrics
        if chosen and checkpoints is not None:
            write_text(checkpoints.parent / CLUSTER_NUMBER_FILE, json.dumps(chosen, indent=2) + "\n")
        watches = [watch for watch in self._watches if not isinstance(watch, Sink)]
        display, watch_references = None if watches else default_display(), self.watch_references
        if display is not None:
            watches, watch_references = [display], display.reference_federations
        out = None if checkpoints is None else checkpoints.parent
        with display or nullcontext():
            progress = self._first_state(simulation, engine, description, checkpoints)
            logged_run = LoggedRun(description.title, description.settings, out, progress.state.round)
            sinks = [watch for watch in self._watches if isinstance(watch, Sink)]
            with OpenSinks(sinks, logged_run, self.checkpoint_every) as logs:

                def watch(simulation: Simulation, progress: SimulationState, report: RoundReport | None) -> None:
                    for function in (logs, *watches):
                        function(simulation, progress, report)

                progress, observations = train(
                    simulation, engine, progress, checkpoints, every=self.checkpoint_every, watch=watch
                )
                outcome = measure_trained(
                    simulation, engine, progress, observations, out=out, watch=watch_references, workers=self.workers
                )
                about = {"algorithm": description.algorithm, "dataset": description.dataset}
                summary = Summary(run=about, overall=chosen) | outcome.summary
                logs.end(summary)
        model = simulation.setup.model
        return Result(
            summary=summary,
            clients=outcome.clients,
            rounds=outcome.rounds,
            roc=outcome.roc,
            models=named_models(model, outcome.state),
            description=description,
            samples=samples_of(self.simulation.federation),
            features=simulation.features if isinstance(simulation.features, FeatureMap) else None,
            state=progress.state,
            updates=outcome.updates,
            canaries=outcome.canaries,
            presence=outcome.presence,
            warnings=tuple(dict.fromkeys(warnings)),
            simulation=simulation,
            engine=engine,
            frozen=model.frozen_names,
        )

    def _first_state(
        self, simulation: Simulation, engine: Engine, description: RunDescription, checkpoints: Path | None
    ) -> SimulationState:
        """Return the state of the last checkpoint, or the initial state."""
        if checkpoints is not None:
            out, progress = checkpoints.parent, load_checkpoint(checkpoints, engine.model.frozen_hash)
            before = rounds_before(out, description, simulation.last_round)
            if before != simulation.last_round:
                progress = extend_rounds(out, description, progress, before, simulation.evaluate_every)
            if progress is not None:
                LOG.info("resume after round %d", progress.state.round)
                return progress
        LOG.info("begin: %s on %s, seed %d", description.algorithm, description.dataset, simulation.seed)
        for level, lines in ((logging.INFO, self.notes), (logging.WARNING, self.warnings)):
            for line in lines:
                LOG.log(level, "%s", line)
        return initial_state(simulation, engine)


def simulate(
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    local: LocalSGD,
    *,
    rounds: int,
    seed: int = 0,
    participation: float = 1.0,
    red_team: RedTeam = DEFAULT_RED_TEAM,
    defenses: Sequence[Defense] = (),
    reference_federations: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    engine: EngineSettings = CPU_ENGINE,
) -> Result:
    """Train a federation and measure it, as `shoal run` does.

    `Simulation` and `Run` have further settings, such as a coordinator, canaries or a warm start.

    Args:
        federation, model, algorithm, local, rounds, seed, participation, red_team, defenses, reference_federations: see
            `Simulation`.
        out, engine: see `Run`.
        resume: see `Run.train`.

    Raises:
        InputError: the settings do not fit together; see also `Run.train`.
        MeasurementError: see `Run.train`.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> result = shoal.simulate(federation, model, shoal.IFCA(clusters=2), local, rounds=2)
        >>> result.clients["cluster"].tolist()
        [0, 0, 1, 1]
    """
    simulation = Simulation(
        federation,
        model,
        algorithm,
        local,
        rounds,
        seed=seed,
        participation=participation,
        red_team=red_team,
        defenses=defenses,
        reference_federations=reference_federations,
    )
    return Run(simulation, out, engine).train(resume=resume)


def run(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    data_dir: Path | None = None,
    dataset: SourceData | None = None,
    watch: Watch | Sink | Sequence[Watch | Sink] | None = None,
    watch_references: AuditWatch | None = None,
    workers: Workers = SEQUENTIAL,
) -> Path:
    """Run a configuration in the directory ``out``, and return ``out``.

    `shoal.runs.result.report_of` writes the page.

    Args:
        out: the run's directory, which is made after the configuration is checked against its data.
        resume: see `Run.train`.
        data_dir: the folder that is searched first for the data.
        dataset: the data that [data] describes; ``None`` loads the data.
        watch: the watch of `Run`; ``None`` shows no progress.
        watch_references, workers: see `Run`.

    Raises:
        InputError: the settings do not fit together or do not fit the data; see also `Run.train`.
        MeasurementError: see `Run.train`.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import shoal
        >>> from shoal.config.schema import parse_config
        >>> data = {"source": "digits", "clients": 4, "examples_per_client": 10, "test_examples": 20}
        >>> table = {"data": data, "model": {"name": "logistic"}, "algorithm": {"name": "fedavg", "rounds": 2}}
        >>> table["red_team"] = {"every": 0, "attack": "gap"}
        >>> with TemporaryDirectory() as folder:
        ...     out = shoal.run(parse_config(table, "the example"), Path(folder, "run"))
        ...     shoal.load(out).summary.run["rounds"]
        ...
        2
    """
    require_instance("config", config, Config, "such as read_config('run.toml')")
    out = path_of("out", out)
    fits = dataset is None or isinstance(dataset, SourceData)
    require(fits, f"'dataset' must come from load_dataset (got {type(dataset).__name__})")
    if not resume and out.exists():
        raise existing_directory_error(out)
    resolved = resolve(config, load_data(config.data, data_dir) if dataset is None else dataset)
    config, simulation = resolved.config, resolved.simulation
    notes, warnings = tuple(resolved.description()), tuple(resolved.warnings)
    del resolved  # frees the data set, a copy of the federation's examples
    with locate_errors("[record]"):
        runner = Run(
            simulation,
            out,
            config.engine,
            watch=watch or (lambda *_: None),
            watch_references=watch_references,
            workers=workers,
            checkpoint_every=config.checkpoint.every,
            max_megabytes=MAX_MEGABYTES if config.record is None else config.record.max_megabytes,
            description=replace(RunDescription.of(config), examples=fingerprint(simulation.federation)),
            notes=notes,
            warnings=warnings,
        )
    runner.train(resume=resume)
    return out
