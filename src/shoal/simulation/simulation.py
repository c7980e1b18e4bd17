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
    MaliciousClient,
    Precision,
    RoundReport,
    State,
    Training,
    UpdateFilter,
    check_backend,
    resolve_backend,
)
from shoal.models import Model
from shoal.simulation import property_metrics
from shoal.simulation.compatibility import check_spending, check_together
from shoal.simulation.measurement import measure
from shoal.simulation.result import Result
from shoal.simulation.round_metrics import Row, round_metrics
from shoal.simulation.summary import Summary

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Simulation:
    """Everything that decides a run's outcome; where and how fast it is computed is the engine's.

    Args:
        federation: the clients and the server's examples.
        model: what is trained.
        algorithm: how.
        local: what a client does in a round.
        rounds: how many.
        seed: of every random draw.
        participation: share of the clients that take part in a round.
        red_team: who estimates risk, and attacks the final models; by default the gap attack, at the end only.
        evaluate_every: rounds between evaluations on the test set.
        property_attack: what a client of a federation with a holding looks for; None: nobody looks.
        malicious_client: the client that trains in its own way; None: nobody.
        maps: whether the updates that the property attack saw are laid out by t-SNE in the end.
        screen: what the server does to updates before it merges them; None: nothing.
    """

    federation: Federation
    model: Model
    algorithm: Algorithm
    local: LocalSGD
    rounds: int
    seed: int = 0
    participation: float = 1.0
    red_team: RedTeam = field(default_factory=lambda: RedTeam(every=0, attack=Gap()))
    evaluate_every: int = 1
    property_attack: PropertyAttack | None = None
    malicious_client: MaliciousClient | None = None
    maps: bool = False
    update_filter: UpdateFilter | None = None

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"'algorithm.rounds' must be at least 1; got {self.rounds}")
        require(self.evaluate_every >= 1, f"'evaluation.every' must be at least 1; got {self.evaluate_every}")
        check_together(self.algorithm, self.local, self.red_team)
        check_spending(self.federation, self.rounds, self.local)

    def on(self, engine: Engine) -> Training:
        """The training that this simulation is, on an engine."""
        return Training(
            federation=self.federation,
            algorithm=self.algorithm,
            local=self.local,
            engine=engine,
            stream=Stream(self.seed),
            participation=self.participation,
            risk_estimator=self.red_team,
            malicious_client=self.malicious_client,
            update_filter=self.update_filter,
        )


@dataclass(frozen=True, eq=False)
class Progress:
    """A simulation after some rounds: its state, what was recorded, and the wall time so far.

    Args:
        state: after the last round.
        rows: of `rounds.csv`.
        seconds: wall time by what it was spent on.
        updates: (K, P), the last update of each model; None where nobody watches them.
        observation: what a property attack made of the last round; None where there is none.
    """

    state: State
    rows: tuple[Row, ...] = ()
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("choose", "train", "red_team", "total"), 0.0)
    )
    updates: Tensor | None = None
    observation: RoundObservation | None = None


Watch = Callable[[Simulation, Progress, RoundReport | None], None]
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
    malicious_client: MaliciousClient | None = None,
    device: str = "cpu",
    threads: int = 2,
    precision: Precision = "fp32",
    backend: Backend | None = None,
    watch: Watch | None = None,
) -> Result:
    """Train a federation and measure it: what `shoal run` does, in memory.

    Args:
        federation: see `Federation.of` for your own tensors.
        model: see `Model`.
        algorithm: `FedAvg`, `IFCA`, `IFCAMIR`.
        local: what a client does in a round.
        rounds: how many.
        seed: of every random draw.
        participation: share of the clients that take part in a round, in [0, 1].
        red_team: who attacks; by default the gap attack at the end, which needs no shadow set.
        defenses: `DPSGD`, `Dropout`, `L2`, `NormClipping`, applied in order.
        property_attack: what a client looks for; the federation needs a `PropertySchedule` that says who and where.
        malicious_client: the client that trains in its own way, such as `active_property_attacker` makes.
        device, threads, precision, backend: see `Engine`.
        watch: called before the first round and after each.

    Raises:
        InputError: settings that cannot be run, or training that diverged.
    """
    team = red_team if red_team is not None else RedTeam(every=0, attack=Gap())
    setup = defended(TrainingSetup(model, local), defenses)
    model, local = setup.model, setup.local
    check_backend(backend, model, local)
    backend = resolve_backend(model, local) if backend is None else backend
    simulation = Simulation(
        federation, model, algorithm, local, rounds, seed, participation=participation, red_team=team,
        update_filter=setup.update_filter, property_attack=property_attack, malicious_client=malicious_client,
    )  # fmt: skip
    with Engine(model, device=device, threads=threads, precision=precision, backend=backend) as engine:
        simulation = prepare(simulation, engine)
        progress = begin(simulation, engine)
        if watch is not None:
            watch(simulation, progress, None)
        observations: list[RoundObservation] = []
        for after, report in go_on(simulation, engine, progress):
            progress = after
            if progress.observation is not None:
                observations.append(progress.observation)
            if watch is not None:
                watch(simulation, progress, report)
        return conclude(simulation, engine, progress, observations)


def prepare(simulation: Simulation, engine: Engine) -> Simulation:
    """The simulation with its data where ``engine`` wants it.

    Raises:
        InputError: the model cannot take the data, or has fewer outputs than there are classes.
    """
    ready = engine.prepare(simulation.federation)
    model = simulation.model
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


def begin(simulation: Simulation, engine: Engine) -> Progress:
    """The simulation before its first round."""
    progress = Progress(simulation.on(engine).start())
    if simulation.property_attack is None:
        return progress
    seconds = progress.seconds | {"property_attack": 0.0}
    return replace(progress, seconds=seconds, updates=torch.zeros_like(progress.state.models))


def go_on(simulation: Simulation, engine: Engine, progress: Progress) -> Iterator[tuple[Progress, RoundReport]]:
    """Play the rounds that are left, handing out the progress after each."""
    began = time.perf_counter()
    before = progress.seconds["total"]
    training, attack = simulation.on(engine), simulation.property_attack
    auxiliary = None if attack is None else attack.examples(simulation.federation)
    for state, report in training.rounds(progress.state, simulation.rounds):
        if len(report.cohort) == 0:
            LOG.warning("round %d: no client took part; nothing changed", state.round)
        evaluated = state.round % simulation.evaluate_every == 0 or state.round == simulation.rounds
        rows = round_metrics(state, report, simulation.federation, engine, evaluated=evaluated)
        spent = report.seconds
        if attack is not None and auxiliary is not None and progress.updates is not None:
            watching = time.perf_counter()
            observation, updates = attack.watch(progress.state, state, report, progress.updates, auxiliary, training)
            progress = replace(progress, updates=updates, observation=observation)
            spent = spent | {"property_attack": time.perf_counter() - watching}
        seconds = {key: progress.seconds[key] + value for key, value in spent.items()}
        seconds["total"] = before + time.perf_counter() - began
        progress = replace(progress, state=state, rows=progress.rows + rows, seconds=seconds)
        yield progress, report


def conclude(
    simulation: Simulation, engine: Engine, progress: Progress, observations: Sequence[RoundObservation] = ()
) -> Result:
    """Let every client choose among the final models, attack them, and measure.

    Args:
        simulation: that was played.
        engine: computes it.
        progress: after the last round.
        observations: of all rounds, where there is a property attack.
    """
    began = time.perf_counter()
    training = simulation.on(engine)
    stream = training.stream("final")
    result = measure(progress.state, training, simulation.red_team, stream, progress.rows)
    if simulation.property_attack is not None:
        found = property_metrics.updates_of(
            simulation.property_attack,
            observations,
            stream("property attack"),
            jobs=engine.threads,
            maps=simulation.maps,
        )
        result = result.with_property(found)
    total = progress.seconds["total"] + time.perf_counter() - began
    seconds = {f"seconds.{key}": round(value, 3) for key, value in (progress.seconds | {"total": total}).items()}
    played = Summary(run={"seed": simulation.seed, "rounds": progress.state.round}, overall=seconds)
    return replace(result, summary=result.summary | played)
