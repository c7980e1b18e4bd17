"""One simulated federation from its first round to its measured end."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from shoal.attacks import Gap, PropertyAttack, RedTeam, RoundObservation
from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.defenses import Defense, TrainingSetup, defended
from shoal.engine import (
    Algorithm,
    Backend,
    Engine,
    LocalSGD,
    MaliciousClients,
    Precision,
    RoundReport,
    State,
    Training,
    check_backend,
    resolve_backend,
)
from shoal.models import Model
from shoal.simulation import property_metrics
from shoal.simulation.compatibility import check_accountable, check_algorithm
from shoal.simulation.measurement import measure
from shoal.simulation.result import Result
from shoal.simulation.round_metrics import Row, round_metrics
from shoal.simulation.summary import Summary

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Simulation:
    """Everything that decides a run's outcome; the engine decides where and how fast it is computed.

    Args:
        federation: the clients and the server's examples.
        setup: the network, local training and all defences.
        algorithm: who trains which model, and how models move.
        rounds: number of rounds.
        seed: of every random draw.
        participation: fraction of the clients that take part in a round.
        red_team: estimates risk, and attacks the final models; by default the gap attack, at the end only.
        evaluate_every: rounds between evaluations on the test set.
        property_attack: an attack on a federation with a `PropertySchedule`; None: none.
        malicious_clients: train in their own way; None: nobody does.
        tsne: whether the updates that the property attack saw are embedded in the plane at the end.
    """

    federation: Federation
    setup: TrainingSetup
    algorithm: Algorithm
    rounds: int
    seed: int = 0
    participation: float = 1.0
    red_team: RedTeam = field(default_factory=lambda: RedTeam(every=0, attack=Gap()))
    evaluate_every: int = 1
    property_attack: PropertyAttack | None = None
    malicious_clients: MaliciousClients | None = None
    tsne: bool = False

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"'rounds' must be at least 1; got {self.rounds}")
        require(self.evaluate_every >= 1, f"'evaluate_every' must be at least 1; got {self.evaluate_every}")
        check_algorithm(self.algorithm, self.setup.first_local(), self.red_team)
        check_accountable(self.federation, self.rounds, self.setup.first_local())

    def on(self, engine: Engine) -> Training:
        """The training of this simulation, on an engine."""
        return Training(
            federation=self.federation,
            algorithm=self.algorithm,
            local=self.setup.local,
            engine=engine,
            stream=Stream(self.seed),
            participation=self.participation,
            risk_estimator=self.red_team,
            update_filter=self.setup.update_filter,
            defenses=self.setup.defenses,
            malicious_clients=self.malicious_clients,
        )


@dataclass(frozen=True, eq=False)
class SimulationState:
    """A simulation after some rounds.

    Args:
        state: after the last round.
        rows: of `rounds.csv`.
        seconds: wall time by what it was spent on.
        updates: (K, P), the last update of each model; None without a property attack.
        observation: of the last round by the property attack; None without one.
    """

    state: State
    rows: tuple[Row, ...] = ()
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("choose", "train", "red_team", "total"), 0.0)
    )
    updates: Tensor | None = None
    observation: RoundObservation | None = None


Watch = Callable[[Simulation, SimulationState, RoundReport | None], None]
"""Called before the first round, without a report, and after each round."""


def simulate(
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    local: LocalSGD,
    *,
    rounds: int,
    seed: int = 0,
    participation: float = 1.0,
    red_team: RedTeam | None = None,
    defenses: Sequence[Defense] = (),
    property_attack: PropertyAttack | None = None,
    malicious_clients: MaliciousClients | None = None,
    device: str = "cpu",
    threads: int = 2,
    precision: Precision = "fp32",
    backend: Backend | None = None,
    watch: Watch | None = None,
) -> Result:
    """Train a federation and measure it, as `shoal run` does, in memory.

    Args:
        federation: see `Federation.from_tensors` for your own tensors.
        model: see `Model`.
        algorithm: one of `shoal.algorithms`, or your own (`docs/adding.md`).
        local: local training of a client in a round.
        rounds: number of rounds.
        seed: of every random draw.
        participation: fraction of the clients that take part in a round, in [0, 1].
        red_team: the membership-inference attack; by default the gap attack at the end, which needs no shadow set.
        defenses: `DPSGD`, `Dropout`, `L2`, `NormClipping` or your own, applied in order.
        property_attack: an attack on a federation with a `PropertySchedule`.
        malicious_clients: train in their own way, such as `active_property_attacker` makes.
        device, threads, precision, backend: see `Engine`.
        watch: called before the first round and after each.

    Raises:
        InputError: settings that cannot be run, or training that diverged.
    """
    setup = defended(TrainingSetup(model, local), defenses)
    check_backend(backend, setup.model, setup.first_local())
    simulation = Simulation(
        federation=federation,
        setup=setup,
        algorithm=algorithm,
        rounds=rounds,
        seed=seed,
        participation=participation,
        red_team=red_team if red_team is not None else RedTeam(every=0, attack=Gap()),
        property_attack=property_attack,
        malicious_clients=malicious_clients,
    )
    chosen = resolve_backend(setup.model, setup.first_local()) if backend is None else backend
    with Engine(setup.model, device=device, threads=threads, precision=precision, backend=chosen) as engine:
        simulation = move_to_engine(simulation, engine)
        now = initial_state(simulation, engine)
        if watch is not None:
            watch(simulation, now, None)
        observations: list[RoundObservation] = []
        for after, report in run_rounds(simulation, engine, now):
            now = after
            if now.observation is not None:
                observations.append(now.observation)
            if watch is not None:
                watch(simulation, now, report)
        return measure_final(simulation, engine, now, observations)


def move_to_engine(simulation: Simulation, engine: Engine) -> Simulation:
    """The simulation with its data where ``engine`` wants it.

    Raises:
        InputError: the model cannot take the data, or has fewer outputs than there are classes.
    """
    ready = engine.prepare(simulation.federation)
    model = simulation.setup.model
    first = ready.clients.x[:1]
    try:
        outputs = engine.outputs(model.init(Stream(0, ("fits",))), first)
    except (RuntimeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"the model cannot take examples of shape {tuple(first.shape[1:])}: {reason}") from error
    shape, classes = tuple(outputs.shape[1:]), ready.classes
    require(
        len(shape) == 1 and shape[0] >= classes,
        f"the labels have {classes} classes, but the model gives outputs of shape {shape} for an example",
    )
    return replace(simulation, federation=ready)


def initial_state(simulation: Simulation, engine: Engine) -> SimulationState:
    """The simulation before its first round."""
    now = SimulationState(simulation.on(engine).start())
    if simulation.property_attack is None:
        return now
    seconds = now.seconds | {"property_attack": 0.0}
    return replace(now, seconds=seconds, updates=torch.zeros_like(now.state.models))


def run_rounds(
    simulation: Simulation, engine: Engine, now: SimulationState
) -> Iterator[tuple[SimulationState, RoundReport]]:
    """Run the rounds that are left; yields the simulation after each, and the round's report."""
    began = time.perf_counter()
    before = now.seconds["total"]
    training, attack = simulation.on(engine), simulation.property_attack
    auxiliary = None if attack is None else attack.auxiliary_examples(simulation.federation)
    for state, report in training.rounds(now.state, simulation.rounds):
        if len(report.cohort) == 0:
            LOG.warning("round %d: no client took part; nothing changed", state.round)
        evaluated = state.round % simulation.evaluate_every == 0 or state.round == simulation.rounds
        rows = round_metrics(state, report, simulation.federation, engine, evaluated=evaluated)
        spent = report.seconds
        if attack is not None and auxiliary is not None and now.updates is not None:
            watching = time.perf_counter()
            observation, updates = attack.observe(now.state, state, report, now.updates, auxiliary, training)
            now = replace(now, updates=updates, observation=observation)
            spent = spent | {"property_attack": time.perf_counter() - watching}
        seconds = {key: now.seconds[key] + value for key, value in spent.items()}
        seconds["total"] = before + time.perf_counter() - began
        now = replace(now, state=state, rows=now.rows + rows, seconds=seconds)
        yield now, report


def measure_final(
    simulation: Simulation, engine: Engine, now: SimulationState, observations: Sequence[RoundObservation] = ()
) -> Result:
    """Let every client choose among the final models, attack them, and measure.

    Args:
        simulation: that was run.
        engine: computes it.
        now: after the last round.
        observations: of all rounds, where there is a property attack.
    """
    began = time.perf_counter()
    training = simulation.on(engine)
    stream = training.stream("final")
    result = measure(now.state, training, simulation.red_team, stream, now.rows)
    if simulation.property_attack is not None:
        updates = property_metrics.updates_of(
            simulation.property_attack,
            observations,
            stream("property attack"),
            jobs=engine.threads,
            maps=simulation.tsne,
        )
        result = result.with_property(updates)
    total = now.seconds["total"] + time.perf_counter() - began
    seconds = {f"seconds.{key}": round(value, 3) for key, value in (now.seconds | {"total": total}).items()}
    run = Summary(run={"seed": simulation.seed, "rounds": now.state.round}, overall=seconds)
    return replace(result, summary=result.summary | run)
