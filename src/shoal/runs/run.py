"""A run: a simulation trained and measured, in memory or in a directory, which can be killed and resumed.

docs/files.md lists its files ("A run directory").
"""

import json
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from shoal.audit import RedTeam
from shoal.config.build import load_data, resolve
from shoal.config.schema import Config
from shoal.config.settings_tables import in_table
from shoal.core.atomic_files import write_text
from shoal.core.errors import describe, integer, path_of, require, require_instance
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
from shoal.runs.progress import Display, shown_to_a_person
from shoal.runs.result import Result, load, named_models, samples_of, write_files
from shoal.runs.run_description import description_of
from shoal.runs.run_training import measure_trained, train
from shoal.runs.sinks import LoggedRun, OpenSinks, Sink
from shoal.runs.updates import MAX_MEGABYTES, megabytes, recorded_in
from shoal.simulation.cluster_number import ClusterNumber, choose_cluster_number, most_clusters, with_cluster_number
from shoal.simulation.play import EngineSettings, SimulationState, Watch, initial_state, move_to_engine
from shoal.simulation.simulation import DEFAULT_RED_TEAM, Simulation, apply_feature_map

LOG = logging.getLogger("shoal")

CHOICE = "auto.json"
"""How the number of clusters was chosen, in the run's directory."""

CPU_ENGINE = EngineSettings()
"""The default engine."""


@dataclass(frozen=True, eq=False)
class Run:
    """A simulation, and where it is trained and measured.

    Args:
        simulation: what decides the outcome.
        out: a run directory to make, with checkpoints, from which an interrupted run is resumed. None: nothing is
            written.
        engine: what computes; by default the processor, a thread for each core.
        watch: called before the first round and after each; or a tracker to log to, such as `TensorBoard`; or a list of
            these. Without a function a terminal or a notebook shows the progress and the time left.
        watch_references: called before the first reference federation and after each, with the numbers that are done
            and in all.
        workers: the processes that train these, such as ``Workers(jobs=2)``; results are the same.
        checkpoint_every: rounds between checkpoints.
        max_megabytes: what recorded updates may take.
        description: how reports describe it. None: as a simulation in Python.
        notes: what run.log says of the data.
        warnings: of the data, to be logged before the first round.
        cluster_number: how the number of clusters was chosen; None: it was given.

    Raises:
        InputError: recorded updates without a directory, or that would take too much room.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import shoal
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one] * 3, test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> toy = federation, model, shoal.FedAvg(), shoal.LocalSGD()
        >>> with TemporaryDirectory() as folder:
        ...     shorter = shoal.Run(shoal.Simulation(*toy, rounds=2), f"{folder}/run").train()
        ...     engine = shoal.EngineSettings(threads=1)
        ...     longer = shoal.Run(shoal.Simulation(*toy, rounds=3), f"{folder}/run", engine).train(resume=True)
        ...     sorted(path.name for path in Path(folder, "run").glob("*.csv"))
        ...
        ['clients.csv', 'roc.csv', 'rounds.csv']
        >>> longer.state.models.equal(shoal.Run(shoal.Simulation(*toy, rounds=3)).train().state.models)
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
            require(fits, f"'watch' must be a function or a tracker, such as TensorBoard(); got {describe(watch)}")
        if self.out is not None:
            object.__setattr__(self, "out", path_of("out", self.out))
        recorded = self.simulation.record_updates
        require(self.out is not None or not recorded, "'record_updates' needs 'out', where they are written")
        integer("checkpoint_every", self.checkpoint_every, "such as 1", 1)
        most, needed = integer("max_megabytes", self.max_megabytes, "such as 1000"), megabytes(self.simulation)
        require(
            needed <= most,
            f"the recorded updates take {needed:,.0f} MB, but 'max_megabytes' is {most:,}; "
            "record fewer rounds or raise it",
        )

    def train(self, *, resume: bool = False) -> Result:
        """Train and measure the simulation.

        Args:
            resume: whether ``out`` may exist, with the same simulation in it, or one of fewer rounds. It goes on after
                its last checkpoint, and the result is that of an uninterrupted run, bit for bit; of a finished run the
                result is read.

        Raises:
            InputError: a directory that exists, cannot be written, holds another run, or in which one is going on; or
                training that diverged, with the last good checkpoint left in place.
            MeasurementError: the final models, which the error has, cannot be measured.
        """
        require(self.out is not None or not resume, "'resume' needs 'out', the directory to go on in")
        if self.out is not None and Path(self.out).exists() and not resume:
            raise existing_directory_error(Path(self.out))
        settings = self.engine.decided(self._mapped)
        if most_clusters(self.simulation.algorithm) is not None:
            return self._with_clusters(settings).train(resume=resume)
        description = self.description or description_of(self.simulation, settings)
        with settings.engine(self.simulation.setup.model) as engine:
            if isinstance(self.out, Path):
                return self._train_in(self.out, engine, description, resume=resume)
            with collect_warnings() as warnings:
                return self._trained(engine, description, None, warnings)

    def _with_clusters(self, settings: EngineSettings) -> "Run":
        """This run with the number of clusters that its directory has, or that is chosen now."""
        path = None if self.out is None else Path(self.out) / CHOICE
        if path is not None and path.exists():
            number = ClusterNumber.of_metrics(read_json(path))
        else:
            display = None if self._watches else shown_to_a_person()
            shown = [watch.trial for watch in (display, *self._watches) if isinstance(watch, Display)]
            with display or nullcontext(), settings.engine(self.simulation.setup.model) as engine:
                simulation = move_to_engine(self._mapped, engine)
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
            return self._finished(out, engine)
        # Once more when it is locked, since it may have become another run's since it was looked at first.
        with open_run_dir(out, description.settings, same, resume=resume, examples=description.examples) as checkpoints:
            if is_finished(out) and same() == rounds:
                return self._finished(out, engine)
            with log_to_file(out / "run.log"):
                result = self._trained(engine, description, checkpoints, ())
                write_files(out, result)
                # From the last checkpoint a finished run can be prolonged.
                keep_newest_checkpoints(checkpoints, 1)
                LOG.info("done in %.1f s", result.summary.overall["seconds.total"])
        return replace(result, recorded=recorded_in(out), warnings=read_warnings(out / "run.log"))

    @property
    def _watches(self) -> Sequence[Watch | Sink]:
        if self.watch is None:
            return ()
        return self.watch if isinstance(self.watch, Sequence) else [self.watch]

    @cached_property
    def _mapped(self) -> Simulation:
        """The simulation with its features, which take a while to compute."""
        return apply_feature_map(self.simulation, self.engine.threads)

    def _finished(self, out: Path, engine: Engine) -> Result:
        """The result in ``out``, with what no directory has, so that it can be audited and gone on from."""
        simulation = move_to_engine(self._mapped, engine)
        progress = load_checkpoint(out / "checkpoint", self.simulation.setup.model.frozen_hash)
        state = None if progress is None else progress.state
        features = simulation.features if isinstance(simulation.features, FeatureMap) else None
        return replace(load(out, allow_code=True), state=state, simulation=simulation, engine=engine, features=features)

    def _trained(
        self, engine: Engine, description: RunDescription, checkpoints: Path | None, warnings: Sequence[str]
    ) -> Result:
        """Train the rounds that are left, from the last of the ``checkpoints`` if there is one, and measure."""
        simulation = move_to_engine(self._mapped, engine)
        chosen = {} if self.cluster_number is None else self.cluster_number.metrics
        if chosen and checkpoints is not None:
            write_text(checkpoints.parent / CHOICE, json.dumps(chosen, indent=2) + "\n")
        watches = [watch for watch in self._watches if not isinstance(watch, Sink)]
        display, watch_references = None if watches else shown_to_a_person(), self.watch_references
        if display is not None:
            watches, watch_references = [display], display.reference_federations
        out = None if checkpoints is None else checkpoints.parent
        with display or nullcontext():
            progress = self._progress(simulation, engine, description, checkpoints)
            logged_run = LoggedRun(description.title, description.settings, out, progress.state.round)
            sinks = [watch for watch in self._watches if isinstance(watch, Sink)]
            with OpenSinks(sinks, logged_run, self.checkpoint_every) as logs:

                def watch(simulation: Simulation, progress: SimulationState, report: RoundReport | None) -> None:
                    for one in (logs, *watches):
                        one(simulation, progress, report)

                progress, seen = train(
                    simulation, engine, progress, checkpoints, every=self.checkpoint_every, watch=watch
                )
                outcome = measure_trained(
                    simulation, engine, progress, seen, out=out, watch=watch_references, workers=self.workers
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

    def _progress(
        self, simulation: Simulation, engine: Engine, description: RunDescription, checkpoints: Path | None
    ) -> SimulationState:
        """The state from which training goes on."""
        if checkpoints is not None:
            out, progress = checkpoints.parent, load_checkpoint(checkpoints, engine.model.frozen_hash)
            before = rounds_before(out, description, simulation.last_round)
            if before != simulation.last_round:
                progress = extend_rounds(out, description, progress, before, simulation.evaluate_every)
            if progress is not None:
                LOG.info("resume after round %d", progress.state.round)
                return progress
        LOG.info("begin: %s on %s, seed %d", description.algorithm, description.dataset, simulation.seed)
        for line in self.notes:
            LOG.info("%s", line)
        for line in self.warnings:
            LOG.warning("%s", line)
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

    It is ``Run(Simulation(federation, ..., rounds=rounds), out, engine).train(resume=resume)``; those two take what is
    asked for less often, such as a coordinator, canaries, or models to go on from.

    Args:
        federation, model, algorithm, local, rounds, seed, participation, red_team, defenses, reference_federations: see
            `Simulation`.
        out, engine: see `Run`.
        resume: see `Run.train`.

    Raises:
        InputError: settings that cannot be run, or see `Run.train`.
        MeasurementError: see `Run.train`.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> shoal.simulate(federation, model, shoal.IFCA(clusters=2), shoal.LocalSGD(), rounds=2).clients["cluster"]
        0    0
        1    0
        2    1
        3    1
        Name: cluster, dtype: int64
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
    """Run ``config`` in the directory ``out``, from its last checkpoint if ``resume``; returns ``out``.

    Nothing is written before the configuration has been built. The page is not written: see
    `shoal.runs.result.report_of`.

    Args:
        config: what to run.
        out: its directory.
        resume: see `Run.train`.
        data_dir: where to look for data first.
        dataset: the examples of [data], where they are loaded already.
        watch: see `Run`; None: nothing is shown.
        watch_references, workers: see `Run`.

    Raises:
        InputError: a configuration that cannot be run, or see `Run.train`.
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
    require_instance("config", config, Config, "such as read_config('run.toml') gives")
    out = path_of("out", out)
    loaded = dataset is None or isinstance(dataset, SourceData)
    require(loaded, f"'dataset' must be one that load_dataset gives; got {type(dataset).__name__}")
    if not resume and out.exists():
        raise existing_directory_error(out)
    resolved = resolve(config, load_data(config.data, data_dir) if dataset is None else dataset)
    decided, simulation = resolved.config, resolved.simulation
    notes, warnings = tuple(resolved.description()), tuple(resolved.warnings)
    del resolved  # and with it the data set, which the federation has copied
    with in_table("record"):
        prepared = Run(
            simulation,
            out,
            decided.engine,
            watch=watch or (lambda *_: None),
            watch_references=watch_references,
            workers=workers,
            checkpoint_every=decided.checkpoint.every,
            max_megabytes=MAX_MEGABYTES if decided.record is None else decided.record.max_megabytes,
            description=replace(RunDescription.of(decided), examples=fingerprint(simulation.federation)),
            notes=notes,
            warnings=warnings,
        )
    prepared.train(resume=resume)
    return out
