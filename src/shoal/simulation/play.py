"""The execution of a simulation's rounds, with engine settings and wall times."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from shoal.algorithms.wrapper import with_bases
from shoal.control import CHANCE
from shoal.core.formats import one_line
from shoal.core.settings import settings
from shoal.data.content import ExampleHashes
from shoal.engine import (
    Departure,
    Engine,
    LocalSGD,
    Precision,
    RoundReport,
    State,
    Tensors,
    check_backend,
    check_examples,
    resolve_backend,
)
from shoal.engine.engine import Device, Threads
from shoal.engine.worker_pool import TRAIN
from shoal.models import Features, Model
from shoal.models.validation import require_fits
from shoal.simulation.round_metrics import RoundRow, round_metrics
from shoal.simulation.simulation import Simulation, apply_feature_map, first_examples

LOG = logging.getLogger(__name__)

PARTS = ("choose", *TRAIN, "red_team", "evaluation", "files", "measurement")
"""The parts of a simulation's wall time. "files" is the time of checkpoints and progress displays."""


@settings
class EngineSettings:
    """The hardware and backend of training.

    ``device`` and ``backend`` can change the last bits of results, but ``threads`` cannot.

    Args:
        device: the device for training: "cpu", "cuda" or a specific GPU, such as "cuda:1".
        threads: the number of processor threads; by default one per available core.
        precision: the number format of computations, "fp32" or "bf16". Parameters are always float32. "bf16" is faster
            on processors with bf16 matrix units (Intel AMX, GPUs) and slower on other processors.
        backend: the way to train clients: one by one ("loop"), many at once ("vmap"), or whichever suits the network
            ("auto"). "auto" tries your own network on two examples, and records the choice in config.toml.
    """

    device: Device = "cpu"
    threads: Threads | None = None
    precision: Precision = "fp32"
    backend: Literal["auto", "loop", "vmap"] = "auto"

    def resolve(self, simulation: Simulation, *, trial: bool = True) -> "EngineSettings":
        """Return these settings with the backend "auto" replaced by the simulation's best backend.

        Args:
            trial: whether to also try the network on two examples, if the features are already computed.

        Raises:
            InputError: the backend cannot train the simulation.
        """
        setup, federation = simulation.setup, simulation.federation
        of_algorithms = (getattr(base, "local", None) for base in with_bases(simulation.algorithm))
        trainings = [setup.first_local(), *(local for local in of_algorithms if isinstance(local, LocalSGD))]
        if self.backend != "auto":
            for local in trainings:
                check_backend(self.backend, setup.model, local)
            return self
        # "loop" where one of them needs it.
        backend = min(resolve_backend(setup.model, local) for local in trainings)
        if backend == "vmap" and trial and not isinstance(simulation.features, Features):
            examples = first_examples(federation)
            backend = resolve_backend(setup.model, trainings[0], examples, federation.classes)
        return replace(self, backend=backend)

    def engine(self, model: Model) -> Engine:
        """Create the engine of ``model``.

        Raises:
            InputError: the device does not exist, or the backend cannot train the network.
        """
        return Engine(
            model,
            device=self.device,
            threads=self.threads,
            precision=self.precision,
            backend=None if self.backend == "auto" else self.backend,
        )


@dataclass(frozen=True, eq=False)
class SimulationState:
    """The state of a simulation after some rounds.

    Args:
        state: the state after the last round.
        rows: the rows of `rounds.csv`.
        seconds: the wall time of each of the `PARTS`, of the round attack ("NAME_attack"), and of "train" and "total".
        memory: the round attack's memory.
        observation: the round attack's observation of the last round; ``None`` without an attack.
        by_round: the wall time of each part in each round, in seconds.
        departures: the departures of clients, in order.
    """

    state: State
    rows: tuple[RoundRow, ...] = ()
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*PARTS, "train", "total"), 0.0))
    memory: Tensors = field(default_factory=dict)
    observation: Tensors | None = None
    by_round: tuple[Mapping[str, float], ...] = ()
    departures: tuple[Departure, ...] = ()
    __repr__ = one_line

    def with_files(self, seconds: float, *, last: bool = False) -> "SimulationState":
        """Add the ``seconds`` of checkpoints and displays; after the ``last`` round, add them to the total too."""
        *earlier, this = self.by_round
        spent = {"files": seconds} | ({"total": seconds} if last else {})
        return replace(self, seconds=add_seconds(self.seconds, spent), by_round=(*earlier, {**this, "files": seconds}))


Watch = Callable[[Simulation, SimulationState, RoundReport | None], None]
"""A function that is called before the first round (without a report) and after each round."""


def move_to_engine(simulation: Simulation, engine: Engine) -> Simulation:
    """Return the simulation with features computed and with data on the engine's device.

    Raises:
        InputError: the model cannot take the data, or has too few outputs for the classes or targets.
    """
    simulation = apply_feature_map(simulation)
    federation, examples = engine.prepare(simulation.federation), first_examples(simulation.federation)
    require_fits(simulation.setup.model, *examples, simulation.federation.classes)
    check_examples(engine.backend, simulation.setup.model, *examples)
    return replace(simulation, federation=federation)


def initial_state(simulation: Simulation, engine: Engine) -> SimulationState:
    """Return the state before the first round.

    Raises:
        InputError: ``start`` does not have the algorithm's number of models.
    """
    state = simulation.on(engine).start()
    now = SimulationState(state)
    attack = simulation.round_attack
    if attack is None:
        return now
    return replace(now, seconds=now.seconds | {f"{attack.name}_attack": 0.0}, memory=attack.initial_memory(state))


def run_rounds(
    simulation: Simulation, engine: Engine, now: SimulationState
) -> Iterator[tuple[SimulationState, RoundReport]]:
    """Run the remaining rounds, and yield the state and the report after each round."""
    began = time.perf_counter()
    before = now.seconds["total"]
    training, attack = simulation.on(engine), simulation.round_attack
    if now.state.round + 1 == simulation.first_round:
        copies = ExampleHashes.from_federation(simulation.federation).copies()
        if copies.total:
            LOG.warning(
                "%s; copies hide exposure, so audit with --leave-out-duplicates too "
                '(in Python: duplicates="leave-out")',
                copies,
            )
    if simulation.coordinator is not None and now.state.round == 0:
        impossible = int((simulation.federation.preferences.threshold <= CHANCE).sum())
        if impossible:
            LOG.warning(
                "the limits of %d clients are at most %g, the chance level: no training meets them", impossible, CHANCE
            )
    for state, report in training.rounds(now.state, simulation.last_round):
        if len(report.cohort) == 0:
            LOG.warning("round %d: no client took part; nothing changed", state.round)
        evaluated = state.round % simulation.evaluate_every == 0 or state.round == simulation.last_round
        evaluating = time.perf_counter()
        rows = round_metrics(state, report, simulation.federation_in_round(state.round), engine, evaluated=evaluated)
        spent = report.seconds | {"evaluation": time.perf_counter() - evaluating}
        if attack is not None:
            watching = time.perf_counter()
            observation, memory = attack.observe(now.state, state, report, now.memory, training)
            now = replace(now, memory=memory, observation=observation)
            spent = spent | {f"{attack.name}_attack": time.perf_counter() - watching}
        seconds = add_seconds(now.seconds, spent) | {"total": before + time.perf_counter() - began}
        now = replace(now, state=state, rows=now.rows + rows, seconds=seconds, by_round=(*now.by_round, spent))
        if report.departure is not None:
            now = replace(now, departures=(*now.departures, report.departure))
        left = time.perf_counter()
        yield now, report
        now = now.with_files(time.perf_counter() - left)


def add_seconds(seconds: Mapping[str, float], spent: Mapping[str, float]) -> dict[str, float]:
    """Return the sums of ``seconds`` and ``spent``, part by part."""
    return dict(seconds) | {key: seconds.get(key, 0.0) + value for key, value in spent.items()}
