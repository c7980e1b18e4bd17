"""A simulation played: the engine that computes it, its state after each round, and how wall time was spent."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from shoal.algorithms.wrapper import with_bases
from shoal.control import CHANCE
from shoal.core.formats import one_line
from shoal.core.settings import settings
from shoal.data import Federation
from shoal.data.content import ExampleHashes
from shoal.data.preferences import Preferences
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
"""Parts of a simulation's wall time: those of a round; then evaluating it, what is done after it (checkpoints, and
whoever watches), and attacking and measuring the final models. Where they are trained, "references" are one more."""


@settings
class EngineSettings:
    """The engine. ``threads`` changes no bit of any result, ``device`` and ``backend`` the last bits only.

    Args:
        device: ``cpu``, ``cuda``, or one of several such as ``cuda:1``.
        threads: of the processor; left out: one for each core that the process may use.
        precision: ``fp32``, or ``bf16``, which has 8 bits of mantissa and keeps parameters in float32: faster on
            processors with bf16 matrix units (Intel's AMX, GPUs), slower on others.
        backend: ``loop`` or ``vmap``; ``auto`` chooses by the model, and of a network of your own also by a trial on
            two examples. config.toml has the choice.
    """

    device: Device = "cpu"
    threads: Threads | None = None
    precision: Precision = "fp32"
    backend: Literal["auto", "loop", "vmap"] = "auto"

    def decided(self, simulation: Simulation, *, tried: bool = True) -> "EngineSettings":
        """These settings with the backend that trains a simulation, with what its algorithm adds.

        Args:
            simulation: its algorithm may wrap others with a local training of their own.
            tried: whether a network is tried on two examples, unless their features are not computed yet; False: its
                layers alone decide.

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
        if backend == "vmap" and tried and not isinstance(simulation.features, Features):
            examples = first_examples(federation)
            backend = resolve_backend(setup.model, trainings[0], examples, federation.classes)
        return replace(self, backend=backend)

    def engine(self, model: Model) -> Engine:
        """The engine that trains ``model``.

        Raises:
            InputError: a device that is not there, or a backend that cannot train the network.
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
    """A simulation after some rounds.

    Args:
        state: after the last round.
        rows: of `rounds.csv`.
        seconds: wall time by what it was spent on: `PARTS` and, with a round attack, "NAME_attack", which add up to
            "total" but for a remainder; and "train", a sum of some of them.
        memory: what the round attack remembers.
        observation: what it kept of the last round; None: there is none.
        by_round: of each round the seconds of its parts.
        departures: of the clients that left so far, in order.
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
        """This state with the ``seconds`` of what is done after a round; of the ``last``, the total has them too."""
        *earlier, this = self.by_round
        spent = {"files": seconds} | ({"total": seconds} if last else {})
        return replace(self, seconds=add_seconds(self.seconds, spent), by_round=(*earlier, {**this, "files": seconds}))


Watch = Callable[[Simulation, SimulationState, RoundReport | None], None]
"""Called before the first round, without a report, and after each round."""


def move_to_engine(simulation: Simulation, engine: Engine) -> Simulation:
    """The simulation with its data where ``engine`` wants it.

    Raises:
        InputError: the model cannot take the data, or has fewer outputs than there are classes or targets.
    """
    simulation = apply_feature_map(simulation)
    ready, examples = engine.prepare(simulation.federation), first_examples(simulation.federation)
    require_fits(simulation.setup.model, *examples, simulation.federation.classes)
    check_examples(engine.backend, simulation.setup.model, *examples)
    return replace(simulation, federation=ready)


def initial_state(simulation: Simulation, engine: Engine) -> SimulationState:
    """The simulation before its first round.

    Raises:
        InputError: ``start`` has another number of models than the algorithm begins with.
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
    """Run the rounds that are left; yields the simulation after each, and the round's report."""
    began = time.perf_counter()
    before = now.seconds["total"]
    training, attack = simulation.on(engine), simulation.round_attack
    if now.state.round + 1 == simulation.first_round:
        _warn_of_copies(simulation.federation)
    if simulation.coordinator is not None and now.state.round == 0:
        _warn_of_impossible_limits(simulation.federation.preferences)
    for state, report in training.rounds(now.state, simulation.last_round):
        if len(report.cohort) == 0:
            LOG.warning("round %d: no client took part; nothing changed", state.round)
        evaluated = state.round % simulation.evaluate_every == 0 or state.round == simulation.last_round
        evaluating = time.perf_counter()
        rows = round_metrics(state, report, simulation.tested(state.round), engine, evaluated=evaluated)
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


def _warn_of_copies(federation: Federation) -> None:
    copies = ExampleHashes.from_federation(federation).copies()
    if copies.total:
        LOG.warning(
            "%s; copies among members and non-members hide exposure, and audits leave them out where "
            "'duplicates' is \"leave-out\"",
            copies,
        )


def add_seconds(seconds: Mapping[str, float], spent: Mapping[str, float]) -> dict[str, float]:
    """``seconds`` with those ``spent`` since."""
    return dict(seconds) | {key: seconds.get(key, 0.0) + value for key, value in spent.items()}


def _warn_of_impossible_limits(preferences: Preferences) -> None:
    """Say how many clients have a limit that no training can keep."""
    impossible = int((preferences.threshold <= CHANCE).sum())
    if impossible:
        LOG.warning(
            "the limit of %d clients is at most %g, the accuracy at chance, which no training can keep",
            impossible,
            CHANCE,
        )
