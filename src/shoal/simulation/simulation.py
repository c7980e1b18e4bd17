"""A simulation: all that decides a run's outcome, as one value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan
from typing import ClassVar, Protocol, get_args, runtime_checkable

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.algorithms.clusters.ifca import most_clusters
from shoal.attacks import Gap, LossThreshold, ReferenceAttack, UpdateAttack
from shoal.audit import RedTeam
from shoal.audit.measurement import Measurement
from shoal.audit.record_table import OUTSIDER
from shoal.audit.update_audit import all_attacks
from shoal.control import LimitController
from shoal.core.errors import InputError, describe, integer, require, require_instance
from shoal.core.formats import one_line
from shoal.core.processes import cores
from shoal.core.randomness import Stream
from shoal.core.settings import one_of, plain
from shoal.data import Canaries, Federation
from shoal.data.content import comparable_hashes
from shoal.data.preferences import VIEWS, View
from shoal.data.presence import Event, Presence
from shoal.data.swap_pairs import Duplicates
from shoal.defenses import Defense, TrainingSetup, accounting
from shoal.engine import (
    Algorithm,
    Engine,
    Forgetting,
    LocalSGD,
    MaliciousClients,
    RoundReport,
    State,
    Tensors,
    Training,
    client_trainings,
)
from shoal.forgetting import Continue
from shoal.metrics.summary import Summary
from shoal.models import FeatureMap, Features, Model
from shoal.preflight.preflight_report import Preflight, preflight
from shoal.preflight.visible_moves import RecognisedRisks, VisibleMoves
from shoal.simulation.checks import (
    check_events,
    check_red_team,
    check_references,
    checked_setup,
    require_algorithm,
    require_defenses,
)
from shoal.simulation.distillation import Distillation
from shoal.simulation.round_metrics import RoundRow

DEFAULT_RED_TEAM = RedTeam(every=0, attack=Gap())
"""The red team that needs no shadow set."""

LOSS_RED_TEAM = RedTeam(every=0, attack=LossThreshold())
"""The red team of a regression, whose predictions are neither right nor wrong."""

DEFAULT_FORGETTING = Continue()

_INTEGERS = {
    "rounds": ("such as 30", 1),
    "seed": ("such as 0", 0),
    "member_rounds": ("such as 5", 1),
    "evaluate_every": ("such as 1", 1),
    "min_clients": ("such as 3", 1),
    "record_updates": ("such as 5", 0),
    "reference_federations": ("such as 4", 0),
}
"""Integer fields, each with an example and its minimum."""


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Trained models from which a simulation starts, with their history; see `Result.start`.

    Args:
        state: the state after the last round; ``fitted`` fills in its models.
        models: the tensors of each model by name; empty after ``fitted``.
        simulation: the simulation behind the models; None: unknown.
        engine: the engine of that simulation, perhaps closed; None like ``simulation``.
        rows: the rows of that simulation's rounds.csv.
        public: whether, by the user's word, the models were trained without the clients' examples, so that attackers
            may know the models. Only models and risks are taken over then.
    """

    state: State
    models: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    simulation: "Simulation | None" = None
    engine: Engine | None = None
    rows: Sequence[RoundRow] = ()
    public: bool = False
    __repr__ = one_line

    def fitted(self, model: Model) -> "WarmStart":
        """Convert the models to parameter vectors (K, P) of ``model``.

        Raises:
            InputError: the models are of a different network.
        """
        if not self.models:
            return self
        network = model.structure()
        saved = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        needed = {slot.name: slot.shape for slot in model.layout.slots} | saved
        for tensors in self.models.values():
            shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
            for name in {**needed, **shapes}:
                has, needs = shapes.get(name, "no such tensor"), needed.get(name, "no such tensor")
                require(
                    has == needs or (name not in shapes and name not in saved),
                    f"'start' has models of another network: their '{name}' is {has}, but the model has {needs}",
                )
        for tensors in self.models.values():
            model.require_same_frozen(tensors, "'start' has models of another network")
        buffers = dict(network.named_buffers())
        rows = torch.stack([model.layout.pack({**buffers, **tensors}) for tensors in self.models.values()])
        state = replace(self.state, models=rows)
        if self.public:
            # Without assignment and trainers, which are about other clients.
            state = State(state.round, rows, state.risks, torch.empty(0, dtype=torch.int64))
        return replace(self, state=state, models={})


@runtime_checkable
class RoundAttack(Protocol):
    """An attack that observes each round and is measured after the last; training is bit-identical without it.

    It is a value: its memory between rounds consists of tensors, which checkpoints store.
    """

    name: ClassVar[str]
    """Name of its table ``NAME.csv`` and of its wall time ``seconds.NAME_attack``."""
    columns: ClassVar[tuple[str, ...]]
    """The constant columns of its table."""

    def check(self, federation: Federation, algorithm: Algorithm) -> None:
        """Raise `InputError` where it cannot observe this algorithm on this federation."""
        ...

    def initial_memory(self, state: State) -> Tensors:
        """Return the memory before the first round."""
        ...

    def observe(
        self, before: State, after: State, report: RoundReport, memory: Tensors, training: Training
    ) -> tuple[Tensors, Tensors]:
        """Return the observation of a round, and the memory for the next.

        Args:
            before, after: the states before and after the round.
            report: the round's report.
            memory: what the attack remembers of earlier rounds.
            training: the observed training.
        """
        ...

    def measure(
        self, observations: Mapping[int, Tensors], stream: Stream, *, jobs: int
    ) -> tuple[Summary, pd.DataFrame]:
        """Return the metrics and the rows of the attack's table.

        Args:
            observations: the observations, by round.
            stream: the stream of random draws.
            jobs: the largest number of threads.
        """
        ...


@dataclass(frozen=True, eq=False)
class Simulation:
    """All that decides a run's outcome; `EngineSettings` decide where and how fast it is computed.

    Args:
        federation: the clients and the server's examples; `Federation.from_tensors` takes your own tensors.
        model: the network.
        algorithm: one of `shoal.algorithms`, or your own.
        local: local training of a client in a round, before the defences.
        rounds: number of rounds, after those of ``start``.
        seed: the seed of every random draw.
        participation: fraction of the clients that take part in a round, at least one client; 0: none.
        red_team: estimator of risks and attack on the final models. By default the gap attack at the end, which needs
            no shadow set; for a regression a loss threshold, which needs one.
        defenses: defences from `shoal.defenses` or your own, applied in order.
        coordinator: controller that turns risks into directives for each cluster's training, such as
            ``LimitController({"augmentation": Knob(Augmentation())})``. It needs a `RedTeam` with ``every`` above 0.
        canaries: the canaries in ``federation``, from `MislabelledCanaries.insert`; measured at the end.
        start: trained models to continue from, see `Result.start`. Rounds continue their numbers. With a result of this
            process, 10 rounds and then 5 equal 15 rounds, bit for bit. A result from a directory lacks the algorithm's
            tensors: they start anew, and members are those of the new rounds. `rounds.csv`, seconds and epsilon cover
            the new rounds only. Reference federations start before the rounds of ``start``, and need a result of this
            process.
        reference_federations: R, number of reference federations after the last round, each about as expensive as the
            rounds. Attacks with them then decide how exposed the models are.
        duplicates: "leave-out" excludes from these attacks and from audits every record with a copy (same inputs and
            label) at a different client or in the test, hold-out or shadow set.
        view: the attacker of ``exposure``, ``mia``, ``violations`` and ``exceeded``. The attacks of a "client" or the
            "server" run after the last round. A client's limit may name a different view (`Preferences`).
        evaluate_every: rounds between evaluations on the test set.
        member_rounds: a client's examples count as members of a model if the client trained it at most this many rounds
            before the model's last training.
        baselines: whether to compare the clusters with one model for all, local training and one model per group, each
            trained for the same rounds (`baseline.*` of `summary.json`).
        min_clients: a warning names each cluster with fewer clients after the last round.
        record_updates: rounds from one recorded round to the next; 0: none. Each client's update is written into the
            run's directory as the server received it, for attacks of the server (docs/trace.md).
        round_attack: attack that observes every round, such as `PropertyAttack` with a `PropertySchedule`.
        malicious_clients: clients with their own way of training, such as from `active_property_attacker`.
        attacks: your own attacks for audits, on scores of reference models (`ReferenceAttack`; at the end of a run with
            reference federations too) or on clients' updates (`UpdateAttack`).
        metrics: further measurements of the finished training.
        release: students or averages to release instead of the models; None: the models.
        features: a fixed map of all inputs before ``model``, fitted on the shadow set and computed once; ``model``
            takes vectors of `Features.width`. With a fitted `FeatureMap`, ``federation`` has features already.
        events: clients that leave for good or join later. Training and measurements exclude a client that has left.
        forgetting: the method of forgetting clients that leave.

    Raises:
        InputError: settings that do not fit each other, or models in ``start`` of a different network.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> toy = federation, model, shoal.IFCA(clusters=2), local
        >>> whole = shoal.Run(shoal.Simulation(*toy, rounds=3)).train()
        >>> first = shoal.Run(shoal.Simulation(*toy, rounds=2)).train()
        >>> last = shoal.Run(shoal.Simulation(*toy, rounds=1, start=first.start())).train()
        >>> last.state.round, last.state.models.equal(whole.state.models)
        (3, True)
    """

    federation: Federation
    model: Model
    algorithm: Algorithm
    local: LocalSGD
    rounds: int
    seed: int = 0
    participation: float = 1.0
    red_team: RedTeam = DEFAULT_RED_TEAM
    defenses: Sequence[Defense] = ()
    coordinator: LimitController | None = None
    canaries: Canaries | None = None
    start: WarmStart | None = None
    reference_federations: int = 0
    duplicates: Duplicates = "keep"
    view: View = OUTSIDER
    evaluate_every: int = 1
    member_rounds: int = 5
    baselines: bool = False
    min_clients: int = 3
    record_updates: int = 0
    round_attack: RoundAttack | None = None
    malicious_clients: MaliciousClients | None = None
    attacks: Sequence[ReferenceAttack | UpdateAttack] = ()
    metrics: Sequence[Measurement] = ()
    features: Features | FeatureMap | None = None
    release: Distillation | None = None
    events: Sequence[Event] = ()
    forgetting: Forgetting = DEFAULT_FORGETTING
    setup: TrainingSetup = field(init=False, repr=False)
    __repr__ = one_line

    def __post_init__(self) -> None:
        if self.malicious_clients is not None:
            how = "such as active_property_attacker makes"
            require_instance("malicious_clients", self.malicious_clients, MaliciousClients, how)
        require_instance("federation", self.federation, Federation, "such as from Federation.from_tensors")
        require_instance("model", self.model, Model, "Model(MyNetwork), with the class or a function that builds it")
        require_instance("local", self.local, LocalSGD, "such as LocalSGD(epochs=1)")
        require_instance("red_team", self.red_team, RedTeam, "such as RedTeam(every=5)")
        for name, (how, least) in _INTEGERS.items():
            self._set(name, integer(name, getattr(self, name), how, least))
        self._set("participation", plain(self.participation))
        number = isinstance(self.participation, int | float) and not isnan(self.participation)
        require(number, f"'participation' must be a number in [0, 1]; got {self.participation!r}")
        if self.federation.classes is None and self.red_team is DEFAULT_RED_TEAM:
            self._set("red_team", LOSS_RED_TEAM)
        choices = get_args(Duplicates)
        require(self.duplicates in choices, f"'duplicates' must be {one_of(choices)}; got {describe(self.duplicates)}")
        require(self.view in VIEWS, f"'view' must be {one_of(VIEWS)}; got {describe(self.view)}")
        require_algorithm(self.algorithm)
        require_defenses(self.defenses)
        self._set("defenses", tuple(self.defenses))
        self._set("setup", self._setup())
        if self.start is not None:
            require_instance(
                "start", self.start, WarmStart, "such as simulate(...).start() or load('runs/mine').start()"
            )
            self._set("start", self.start.fitted(self.setup.model))
        if self.canaries is not None:
            require_instance("canaries", self.canaries, Canaries, "such as from MislabelledCanaries(4).insert")
            foreign = self.canaries.client[~torch.isin(self.canaries.client, self.federation.ids)]
            require(not len(foreign), f"'canaries' has client {foreign[:1].sum()}, which is not in 'federation'")
        if self.release is not None:
            require_instance("release", self.release, Distillation, "such as Distillation()")
            self.release.check(self.federation)
        check_references(
            self.reference_federations,
            self.federation,
            replayable=self.replayable,
            duplicates=self.duplicates,
            view=self.widest_view,
        )
        if self.reference_federations or self.widest_view != OUTSIDER:
            require_known(self)
        check_red_team(self.red_team, self.federation)
        if self.round_attack is not None:
            require_instance("round_attack", self.round_attack, RoundAttack, "such as PropertyAttack()")
            self.round_attack.check(self.federation, self.algorithm)
        all_attacks(self.attacks)
        for metric in self.metrics:
            require_instance("metrics", metric, Measurement, "values with 'name', 'title' and 'measure'")
        trainings = client_trainings(self.algorithm, self.setup.local)
        local = trainings.changed(lambda local: replace(self.setup, local=local).first_local())
        accounting.check_sums(self.setup, local, len(self.federation))
        if most_clusters(self.algorithm) is not None:
            alone = self.replayable and self.start is None
            require(alone, "clusters = 'auto' is not possible with a property attack or a 'start'; give a number")
            require(
                accounting.private_rule(local.rounds[0]) is None,
                "clusters = 'auto' is not possible with differential privacy, since epsilon does not count its trials; "
                "give a number of clusters",
            )
        accounting.check_accountable(self.federation, self.rounds, local)
        require_instance("events", self.events, Sequence, "such as [Event(round=5, leave=('north',))]")
        self._set("events", tuple(self.events))
        check_events(self, local.rounds[0])

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _setup(self) -> TrainingSetup:
        """The clients' training with defences."""
        if self.features is not None and not isinstance(self.features, FeatureMap):
            how = "such as Features(('scattering', 'pca'), dimension=32)"
            require_instance("features", self.features, Features, how)
        if self.coordinator is not None:
            require_instance("coordinator", self.coordinator, LimitController, "such as LimitController({...})")
        kind = self.federation.kind if self.features is None else "features"
        setup = TrainingSetup(self.model, self.local, kind=kind)
        return checked_setup(setup, self.defenses, self.algorithm, self.coordinator, self.red_team.every)

    @property
    def replayable(self) -> bool:
        """Whether the run can be repeated with other examples (no round attack, no malicious clients)."""
        return self.round_attack is None and self.malicious_clients is None

    @property
    def widest_view(self) -> View:
        """The widest of the run's view and the views of clients' limits."""
        return max((self.view, *self.federation.preferences.views(self.view)), key=VIEWS.index)

    @property
    def presence(self) -> Presence | None:
        """The rounds of each client's presence; None without events."""
        return Presence.from_events(self.events, self.federation, self.last_round) if self.events else None

    def federation_in_round(self, number: int) -> Federation:
        """Return the federation with the test examples of the clients present in a round."""
        return (
            self.federation if self.presence is None else self.federation.restrict_test(self.presence.present(number))
        )

    @property
    def first_round(self) -> int:
        """The number of the first round, which is 1 unless there is a ``start``."""
        return 1 if self.start is None else self.start.state.round + 1

    @property
    def last_round(self) -> int:
        """The number of the last round."""
        return self.first_round - 1 + self.rounds

    def preflight(self) -> Preflight:
        """Estimate the records that each view could recognise, from gradients of an initial model, without training."""
        moves = apply_feature_map(self).visible_moves()
        return preflight(moves, first_round=self.first_round, steered=self.coordinator is not None)

    def visible_moves(self) -> VisibleMoves:
        """Return the moves visible to each view in the training; the federation must have its features already."""
        start = None if self.start is None else self.start.state.models[0].cpu()
        return VisibleMoves(
            self.federation, self.algorithm, self.setup, self.rounds, self.participation, self.seed, start
        )

    def on(self, engine: Engine) -> Training:
        """Return the training of this simulation on an engine."""
        coordinator = self.coordinator
        if coordinator is not None and self.widest_view != OUTSIDER:
            coordinator = replace(coordinator, known_risks=RecognisedRisks(self.visible_moves(), self.view))
        return Training(
            federation=self.federation,
            algorithm=self.algorithm,
            local=self.setup.local,
            engine=engine,
            stream=Stream(self.seed),
            participation=self.participation,
            risk_estimator=self.red_team,
            update_filter=self.setup.update_filter,
            client_filter=self.setup.client_filter,
            defenses=self.setup.defenses if coordinator is None else (*self.setup.defenses, coordinator),
            malicious_clients=self.malicious_clients,
            coordinator=coordinator,
            release=self.release,
            record_every=self.record_updates,
            first_state=None if self.start is None else self.start.state,
            presence=self.presence,
            forgetting=self.forgetting,
        )


def apply_feature_map(simulation: Simulation, threads: int | None = 1) -> Simulation:
    """Replace all inputs by their features; a simulation without features, or with a fitted map, stays as it is.

    Args:
        simulation: a simulation with raw inputs.
        threads: the number of threads; None: one per core; results are bit-identical.

    Raises:
        InputError: a missing shadow set for features that need one, or inputs of a wrong shape.
    """
    features, federation, canaries = simulation.features, simulation.federation, simulation.canaries
    threads = threads or cores()
    if not isinstance(features, Features):
        return simulation
    public = federation.shadow.x
    require(
        len(public) > 0 or not features.needs_public_examples,
        "'pca' in the features needs a shadow set, public examples without labels; add shadow examples",
    )
    fitted, of_public = features.fit_and_map(public if len(public) else federation.clients.x[:1], threads)
    mapped = partial(fitted.transform, threads=threads)
    return replace(
        simulation,
        federation=federation.map_inputs(lambda x: of_public if x is public and len(x) else mapped(x)),
        canaries=None if canaries is None else replace(canaries, x=mapped(canaries.x)),
        features=fitted,
    )


def first_examples(federation: Federation) -> tuple[Tensor, Tensor]:
    """Return inputs (B, ...) and labels of at most two training examples, to try a model on."""
    return federation.clients.x[:2], federation.clients.y[:2]


def require_known(simulation: Simulation) -> None:
    """Refuse a simulation whose reference federations cannot repeat the training of its start.

    Raises:
        InputError: the start may have used the clients' examples in an unknown way; or clients take part in some rounds
            only and the start had other examples, so the members of its models are unknown.
    """
    start = simulation.start
    if start is None or start.public:
        return
    how = "train all rounds in one run, or use start(public=True) if it was trained without these clients' examples"
    if start.simulation is None:
        raise InputError(
            "reference federations must begin before 'start', and a directory does not say how it was trained; use "
            f"the result itself, {how}"
        )
    require(
        start.simulation.round_attack is None and start.simulation.malicious_clients is None,
        "reference federations must begin before 'start', which had a property attack or malicious clients",
    )
    clients = [run.federation.clients for run in (simulation, start.simulation)]
    mine, theirs = comparable_hashes(*clients)
    require(
        bool(np.isin(mine, theirs).any()),
        "reference federations must begin before 'start', but none of the clients' examples is among those of 'start', "
        f"which may have had them in another form; {how}",
    )
    of_mine, of_theirs = (shards.owners().numpy() for shards in clients)
    require(
        simulation.participation == 1 or (np.array_equal(mine, theirs) and np.array_equal(of_mine, of_theirs)),
        "reference federations after a 'start' with other clients or examples need participation = 1, since the "
        f"members of its models are unknown; got {simulation.participation:g}",
    )
    require_known(start.simulation)
