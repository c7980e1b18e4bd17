"""A federation trained and measured in memory, from Python."""

from collections.abc import Sequence

from shoal.attacks import PropertyAttack, RedTeam, RoundObservation
from shoal.core.errors import described, require, require_instance
from shoal.data import Federation
from shoal.defenses import Defense, TrainingSetup, defended
from shoal.engine import (
    Algorithm,
    Backend,
    Engine,
    LocalSGD,
    MaliciousClients,
    Precision,
    check_backend,
    resolve_backend,
)
from shoal.models import Model
from shoal.simulation.result import Result
from shoal.simulation.simulation import (
    GAP_AT_THE_END,
    Simulation,
    Watch,
    initial_state,
    measure_final,
    move_to_engine,
    run_rounds,
)


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
    member_rounds: int = 5,
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
        member_rounds: a client is a member of each model that it trained, up to so many rounds before that model's last
            training.
        defenses: `DPSGD`, `Dropout`, `L2`, `NormClipping` or your own, applied in order.
        property_attack: an attack on a federation with a `PropertySchedule`.
        malicious_clients: train in their own way, such as `active_property_attacker` makes.
        device, threads, precision, backend: see `Engine`.
        watch: called before the first round and after each.

    Raises:
        InputError: settings that cannot be run, or training that diverged.
    """
    how = "Model(MyNetwork), with the class or a function that builds the network"
    require_instance("model", model, Model, how)
    require_instance("local", local, LocalSGD, "such as LocalSGD(epochs=1)")
    listed = isinstance(defenses, Sequence) and not isinstance(defenses, str)
    require(listed, f"'defenses' must be a list of defences, such as [L2(0.01)]; got {described(defenses)}")
    for each in defenses:
        value = hasattr(each, "applied") and not isinstance(each, type)
        require(value, f"'defenses' must hold defences, such as L2(0.01); got {described(each)}")
    require(watch is None or callable(watch), f"'watch' must be a function; got {described(watch)}")
    setup = defended(TrainingSetup(model, local), defenses)
    check_backend(backend, setup.model, setup.first_local())
    simulation = Simulation(
        federation=federation,
        setup=setup,
        algorithm=algorithm,
        rounds=rounds,
        seed=seed,
        participation=participation,
        red_team=GAP_AT_THE_END if red_team is None else red_team,
        member_rounds=member_rounds,
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
