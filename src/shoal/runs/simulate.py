"""A federation trained and measured, from Python: in memory, or in a directory that outlives a kill."""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from shoal.audit import RedTeam
from shoal.control import Coordinator
from shoal.core.errors import described, path_of, require, require_instance, whole
from shoal.data import Canaries, Federation
from shoal.data.paired_records import Duplicates
from shoal.defenses import Defense, TrainingSetup, defended
from shoal.engine import (
    Algorithm,
    Backend,
    Engine,
    LocalSGD,
    MaliciousClients,
    Precision,
    State,
    Storage,
    Tensors,
    check_backend,
    resolve_backend,
)
from shoal.engine.state import UNKNOWN_RISK
from shoal.models import Model
from shoal.replay.reference_store import AuditWatch
from shoal.reports.run.description import RunDescription
from shoal.runs.checkpoint import load_checkpoint, stored_observations
from shoal.runs.directory import finish, is_begun, is_finished, logged, opened, taken, train, warned
from shoal.runs.files import read_warnings
from shoal.runs.measuring import measured
from shoal.runs.progress import shown_to_a_person
from shoal.runs.record import record_of, require_same_simulation
from shoal.runs.result import Result, load, result_of
from shoal.runs.updates import MAX_MEGABYTES, recorded_in, require_room
from shoal.simulation.round_attack import RoundAttack
from shoal.simulation.simulation import (
    GAP_AT_THE_END,
    LOSS_AT_THE_END,
    Simulation,
    Watch,
    first_examples,
    initial_state,
    move_to_engine,
    run_rounds,
)
from shoal.simulation.warm_start import Start

LOG = logging.getLogger("shoal")


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
    coordinator: Coordinator | None = None,
    round_attack: RoundAttack | None = None,
    malicious_clients: MaliciousClients | None = None,
    canaries: Canaries | None = None,
    start: Result | str | Path | None = None,
    public_start: bool = False,
    out: str | Path | None = None,
    resume: bool = False,
    record_updates: int = 0,
    reference_federations: int = 0,
    duplicates: Duplicates = "keep",
    record_max_megabytes: int = MAX_MEGABYTES,
    device: str = "cpu",
    threads: int = 2,
    precision: Precision = "fp32",
    backend: Backend | None = None,
    personal_models: Storage = "memory",
    watch: Watch | None = None,
) -> Result:
    """Train a federation and measure it, as `shoal run` does.

    Args:
        federation: see `Federation.from_tensors` for your own tensors.
        model: see `Model`.
        algorithm: one of `shoal.algorithms`, or your own (`docs/adding.md`).
        local: local training of a client in a round.
        rounds: number of rounds.
        seed: of every random draw.
        participation: fraction of the clients that take part in a round, in [0, 1].
        red_team: the membership-inference attack; by default the gap attack at the end, which needs no shadow set. In a
            regression, where nothing is right or wrong, by default a loss threshold at the end, which needs one.
        member_rounds: a client is a member of each model that it trained, up to so many rounds before that model's last
            training.
        defenses: `DPSGD`, `Dropout`, `L2`, `NormClipping` or your own, applied in order.
        coordinator: turns the red team's estimates into directives for each cluster's training, such as
            ``Coordinator({"augmentation": Knob(Augmentation())})``; it needs ``RedTeam(every=5)`` or the like.
        round_attack: observes every round, such as `PropertyAttack`, on a federation with a `PropertySchedule`.
        malicious_clients: train in their own way, such as `active_property_attacker` makes.
        canaries: those of ``federation``, as `MislabelledCanaries.insert` gives both; measured at the end.
        start: a result, or the directory of a finished run, whose models are trained further. Rounds are numbered on
            from its last: after 10 rounds, ``rounds=5`` are rounds 11 to 15, at their learning rates, and cohorts,
            batches and noise are those of ``seed`` for these numbers. So 10 rounds and 5 more, with one seed and the
            same settings, are 15 rounds, bit for bit, if ``start`` has the algorithm's own tensors: a result of this
            process has them (`Result.state`), a directory has none, and they begin anew. Nor does a directory say who
            trained which model, so that members are those of the new rounds. `rounds.csv`, seconds and epsilon are of
            the new rounds alone: what earlier rounds spent on the same data comes on top. Reference federations begin
            before the rounds of a result of this process; of a directory they cannot, and are refused.
        public_start: whether no example of these clients had a part in ``start``, as in models that were trained on
            public data. Its models alone are then taken over, and reference federations begin at them too.
        out: a run directory to make, with a checkpoint after each round; None: nothing is written.
        resume: whether ``out`` may exist, with the same simulation in it. It goes on after its last checkpoint, and the
            result is that of an uninterrupted simulation, bit for bit; a finished one is only read (`load`).
        record_updates: rounds from one recorded round to the next, 0: none is. Each client's update is written as the
            server received it into ``updates/`` of ``out``, for attacks of the server (docs/trace.md); it changes no
            bit of training.
        record_max_megabytes: what the updates may take.
        reference_federations: R, how many are trained after the last round (docs/audit.md), each for about the time of
            the rounds; the attack that is chosen beforehand on them then decides how exposed the models are, or another
            that is certain to find more. Their scores are kept in ``references/`` of ``out``.
        duplicates: "leave-out": their attacks, and `Result.audit`, leave out every record of which a client, or the
            test, hold-out or shadow set, has a copy with the same inputs and label.
        device, threads, precision, backend, personal_models: see `Engine`. With "disk" personal models are in files in
            the directory's ``checkpoint/``, or without ``out`` in temporary ones that go with the process.
        watch: called before the first round and after each. None: a terminal or a notebook shows the progress and the
            time left, and elsewhere nothing is shown.

    Raises:
        InputError: settings that cannot be run, training that diverged, updates that would take too much room, models
            in ``start`` of another network, or a directory ``out`` that exists, cannot be written, or holds another
            simulation.
        MeasurementError: the final models, which the error has, cannot be measured.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> whole = shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=3)
        >>> begun = shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=2)
        >>> further = shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=1, start=begun)
        >>> further.state.round, further.state.models.equal(whole.state.models)
        (3, True)
    """
    how = "Model(MyNetwork), with the class or a function that builds the network"
    require_instance("model", model, Model, how)
    require_instance("local", local, LocalSGD, "such as LocalSGD(epochs=1)")
    rounds = whole("rounds", rounds, "such as 30", 1)
    listed = isinstance(defenses, Sequence) and not isinstance(defenses, str)
    require(listed, f"'defenses' must be a list of defences, such as [L2(0.01)]; got {described(defenses)}")
    for each in defenses:
        value = hasattr(each, "applied") and not isinstance(each, type)
        require(value, f"'defenses' must hold defences, such as L2(0.01); got {described(each)}")
    require(watch is None or callable(watch), f"'watch' must be a function; got {described(watch)}")
    out = None if out is None else path_of("out", out)
    if malicious_clients is not None:
        require_instance(
            "malicious_clients", malicious_clients, MaliciousClients, "such as active_property_attacker makes"
        )
    require(out is not None or not resume, "'resume' needs 'out', the directory to go on in")
    require(
        out is not None or not record_updates, "'record_updates' needs 'out', the directory that they are written in"
    )
    if out is not None and out.exists() and not resume:
        raise taken(out)
    kind = federation.kind if isinstance(federation, Federation) else None
    setup = defended(TrainingSetup(model, local, kind=kind), defenses)
    check_backend(backend, setup.model, setup.first_local())
    require_instance("public_start", public_start, bool, "True or False")
    require(not public_start or start is not None, "'public_start' needs 'start', the models that are public")
    first = None if start is None else _start(start, setup.model, public=public_start)
    simulation = Simulation(
        federation=federation,
        setup=setup,
        algorithm=algorithm,
        rounds=rounds if first is None else first.state.round + rounds,
        seed=seed,
        participation=participation,
        red_team=_red_team(federation) if red_team is None else red_team,
        member_rounds=member_rounds,
        round_attack=round_attack,
        malicious_clients=malicious_clients,
        coordinator=coordinator,
        canaries=canaries,
        start=first,
        record_updates=record_updates,
        reference_federations=reference_federations,
        duplicates=duplicates,
    )
    record_max_megabytes = whole("record_max_megabytes", record_max_megabytes, "such as 1000")
    require_room(simulation, record_max_megabytes, "record_max_megabytes")
    if backend is None:
        backend = resolve_backend(setup.model, setup.first_local(), first_examples(federation), federation.classes)
    with Engine(
        setup.model,
        device=device,
        threads=threads,
        precision=precision,
        backend=backend,
        personal_models=personal_models,
    ) as engine:
        description = record_of(simulation, local, defenses, engine)
        simulation = move_to_engine(simulation, engine)
        display = shown_to_a_person() if watch is None else None
        with display or nullcontext():
            seen, references = (watch, None) if display is None else (display, display.reference_federations)
            if out is None:
                return _in_memory(simulation, engine, description, seen, references)
            return _in_directory(simulation, engine, description, out, seen, references, resume=resume)


def _red_team(federation: Federation) -> RedTeam:
    """The red team where none is given."""
    regression = isinstance(federation, Federation) and federation.classes is None
    return LOSS_AT_THE_END if regression else GAP_AT_THE_END


def _in_memory(
    simulation: Simulation,
    engine: Engine,
    description: RunDescription,
    watch: Watch | None,
    watch_references: AuditWatch | None,
) -> Result:
    with warned() as warnings:
        now, observations = initial_state(simulation, engine), dict[int, Tensors]()
        if watch is not None:
            watch(simulation, now, None)
        for after, report in run_rounds(simulation, engine, now):
            now = after
            observations |= {} if now.observation is None else {now.state.round: now.observation}
            if watch is not None:
                watch(simulation, now, report)
        outcome = measured(simulation, engine, now, lambda: observations, watch=watch_references)
        return result_of(outcome, simulation, engine, description, warnings)


def _in_directory(
    simulation: Simulation,
    engine: Engine,
    description: RunDescription,
    out: Path,
    watch: Watch | None,
    watch_references: AuditWatch | None,
    *,
    resume: bool,
) -> Result:
    """As `_in_memory`, with a checkpoint after each round."""
    if out.exists() and is_begun(out):
        require_same_simulation(out, description)
        if is_finished(out):
            return load(out)

    def require_same() -> None:
        if is_begun(out):
            require_same_simulation(out, description)

    opening = opened(out, description.settings, require_same, resume=resume, examples=description.examples)
    with opening as checkpoints, logged(out / "run.log"):
        found = load_checkpoint(checkpoints)
        now = initial_state(simulation, engine) if found is None else found
        LOG.info("begin after round %d: %s on %s", now.state.round, description.algorithm, description.dataset)
        if watch is not None:
            watch(simulation, now, None)
        now = train(simulation, engine, now, checkpoints, every=1, watch=watch)
        observations = partial(stored_observations, checkpoints)
        outcome = measured(simulation, engine, now, observations, out=out, watch=watch_references)
        result = result_of(outcome, simulation, engine, description)
        finish(out, result)
    return replace(result, recorded=recorded_in(out), warnings=read_warnings(out / "run.log"))


def _start(start: Result | str | Path, model: Model, *, public: bool) -> Start:
    """What training goes on from.

    Raises:
        InputError: no result and no directory of a finished run, or models of another network.
    """
    result = load(start) if isinstance(start, str | Path) else start
    require_instance("start", result, Result, "such as simulate returns, or the directory of a finished run")
    state = _trained(result, model)
    rows = [{str(name): value for name, value in row.items()} for row in result.rounds.to_dict("records")]
    if public:
        # The models alone: whose examples others trained on says nothing of these clients.
        state = State(state.round, state.models, state.risks, torch.empty(0, dtype=torch.int64))
    return Start(state, result.simulation, result.engine, rows, public)


def _trained(result: Result, model: Model) -> State:
    """The state that training goes on from; raises as `_start`."""
    network = model.network()
    saved = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    shapes = {slot.name: slot.shape for slot in model.layout.slots} | saved
    # What is not trained or not saved may be missing, such as a count of batches in the files of earlier versions.
    needed = saved.keys() & {slot.name for slot in model.layout.slots}
    for tensors in result.models.values():
        given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for name in {**shapes, **given}:
            has, needs = given.get(name, "no such tensor"), shapes.get(name, "no such tensor")
            require(
                has == needs or (name not in given and name not in needed),
                f"'start' has models of another network: for '{name}' they have {has}, but the model has {needs}",
            )
    buffers = dict(network.named_buffers())
    models = torch.stack([model.layout.pack({**buffers, **tensors}) for tensors in result.models.values()])
    if result.state is not None:
        return replace(result.state, models=models)
    risks = [result.summary.by_cluster.get(k, {}).get("risk", UNKNOWN_RISK) for k in result.models]
    assignment = torch.tensor(result.clients["cluster"].tolist(), dtype=torch.int64)
    last = int(result.summary.run["rounds"])
    return State(last, models, torch.tensor(risks, dtype=torch.float64), assignment)
