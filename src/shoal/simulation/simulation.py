"""The settings that determine a simulated run's outcome, collected in `Simulation`."""

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
"""The default red team of a classification, which needs no shadow set."""

LOSS_RED_TEAM = RedTeam(every=0, attack=LossThreshold())
"""The default red team of a regression."""

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
"""The integer fields, each with an example and its minimum."""


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Trained models that a simulation starts with, and their history (`Result.start`).

    Args:
        state: the state after the last round; `fitted` adds the models.
        models: the tensors of each model by name; empty after `fitted`.
        simulation: the simulation that trained the models; ``None`` if unknown.
        engine: the engine of ``simulation``, which may be closed; ``None`` if unknown.
        rows: the rows of the rounds.csv of ``simulation``.
        public: whether the user declares that the models were trained without the clients' examples. If true, attackers
            may know the models, and the simulation copies only models and risks.
    """

    state: State
    models: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    simulation: "Simulation | None" = None
    engine: Engine | None = None
    rows: Sequence[RoundRow] = ()
    public: bool = False
    __repr__ = one_line

    def fitted(self, model: Model) -> "WarmStart":
        """Return this `WarmStart` with its models converted to parameter vectors (K, P) of ``model``.

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
                has, needs = shapes.get(name, "missing"), needed.get(name, "missing")
                require(
                    has == needs or (name not in shapes and name not in saved),
                    f"'start' has models of a different network: shape of tensor '{name}' is {has} in 'start', "
                    f"{needs} in the model",
                )
        for tensors in self.models.values():
            model.require_same_frozen(tensors, "'start' has models of a different network")
        buffers = dict(network.named_buffers())
        rows = torch.stack([model.layout.pack({**buffers, **tensors}) for tensors in self.models.values()])
        state = replace(self.state, models=rows)
        if self.public:
            # Without assignment and trainers, which are about other clients.
            state = State(state.round, rows, state.risks, torch.empty(0, dtype=torch.int64))
        return replace(self, state=state, models={})


@runtime_checkable
class RoundAttack(Protocol):
    """An attack that observes each round without affecting training, and is measured after the last round.

    The attack is immutable. Checkpoints store its memory between rounds, as tensors.
    """

    name: ClassVar[str]
    """The name of the attack's table ``NAME.csv`` and of its wall time ``seconds.NAME_attack``."""
    columns: ClassVar[tuple[str, ...]]
    """The columns that the attack's table always has."""

    def check(self, federation: Federation, algorithm: Algorithm) -> None:
        """Raise `InputError` if the attack cannot observe this algorithm on this federation."""
        ...

    def initial_memory(self, state: State) -> Tensors:
        """Return the attack's memory before the first round."""
        ...

    def observe(
        self, before: State, after: State, report: RoundReport, memory: Tensors, training: Training
    ) -> tuple[Tensors, Tensors]:
        """Return the observation of a round, and the new memory."""
        ...

    def measure(
        self, observations: Mapping[int, Tensors], stream: Stream, *, jobs: int
    ) -> tuple[Summary, pd.DataFrame]:
        """Return the metrics and the rows of the attack's table.

        Args:
            observations: the results of `observe`, by round.
            jobs: the largest number of threads.
        """
        ...


@dataclass(frozen=True, eq=False)
class Simulation:
    """All settings that determine a run's outcome; `EngineSettings` determine the device and the speed.

    Args:
        federation: the clients and the server's examples; `Federation.from_tensors` accepts your own tensors.
        model: the network.
        algorithm: an algorithm from `shoal.algorithms` or your own.
        local: the local training of a client in a round, before defences.
        rounds: the number of rounds, not counting those of ``start``.
        seed: the seed of every random draw.
        participation: the fraction of clients per round. A fraction above 0 selects at least one client.
        red_team: the estimator of risks and the attack on the final models. The default runs only after training. For a
            classification, this is the gap attack; for a regression, a loss threshold, which needs a shadow set.
        defenses: defences from `shoal.defenses` or your own, in order of application.
        coordinator: the controller that adjusts each cluster's training to the risks, such as
            ``LimitController({"augmentation": Knob(Augmentation())})``; needs a `RedTeam` with ``every`` above 0.
        canaries: the canaries in ``federation``, from `MislabelledCanaries.insert`.
        start: trained models to continue from, see `Result.start`. The numbering of rounds continues. After a
            result in memory, training equals one longer run bit for bit. A result from a directory lacks the
            algorithm's tensors and the members of earlier rounds. `rounds.csv`, seconds and epsilon cover only the new
            rounds. Reference federations also retrain the rounds of ``start``, so they need a result in memory.
        reference_federations: the number of reference federations after the last round; each costs about as much as the
            run's training. If the number is above 0, attacks with reference federations determine exposure.
        duplicates: "leave-out" excludes records with copies from attacks with reference federations and from audits. A
            copy has the same inputs and label, at a different client or in the test, hold-out or shadow set.
        view: the attacker's view for ``exposure``, ``mia``, ``violations`` and ``exceeded``. Attacks of a "client" or
            the "server" run after the last round. A client's limit may name a different view (`Preferences`).
        evaluate_every: the number of rounds between evaluations on the test set.
        member_rounds: a client's examples count as members of a model if the client trained the model at most this
            number of rounds before the model's last training.
        baselines: whether to compare the clusters with one model for all clients, local training and one model per
            group, trained for the same rounds (`baseline.*` of `summary.json`).
        min_clients: the number of clients below which a cluster causes a final warning.
        record_updates: the number of rounds between recorded rounds; 0 records none. Recorded updates are stored in the
            run's directory, for server attacks (docs/trace.md).
        round_attack: an attack that observes every round, such as `PropertyAttack` with a `PropertySchedule`.
        malicious_clients: malicious clients, such as from `active_property_attacker`.
        attacks: your own attacks on scores of reference models (`ReferenceAttack`) or on clients' updates
            (`UpdateAttack`).
        metrics: further measurements of the finished training.
        release: students or averages to release instead of the models; ``None`` releases the models.
        features: a fixed map of all inputs before ``model``, fitted on the shadow set; ``model`` takes vectors of
            `Features.width`. A fitted `FeatureMap` means that ``federation`` already contains features.
        events: clients that leave or join. Training and measurements exclude clients that have left.
        forgetting: the method of forgetting clients that leave.

    Raises:
        InputError: settings exclude each other, or the models in ``start`` are of a different network.

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
            how = "such as from active_property_attacker"
            require_instance("malicious_clients", self.malicious_clients, MaliciousClients, how)
        require_instance("federation", self.federation, Federation, "such as from Federation.from_tensors")
        require_instance("model", self.model, Model, "such as Model(MyNetwork)")
        require_instance("local", self.local, LocalSGD, "such as LocalSGD(epochs=1)")
        require_instance("red_team", self.red_team, RedTeam, "such as RedTeam(every=5)")
        for name, (how, least) in _INTEGERS.items():
            self._set(name, integer(name, getattr(self, name), how, least))
        self._set("participation", plain(self.participation))
        number = isinstance(self.participation, int | float) and not isnan(self.participation)
        require(number, f"'participation' must be a number in [0, 1] (got {self.participation!r})")
        if self.federation.classes is None and self.red_team is DEFAULT_RED_TEAM:
            self._set("red_team", LOSS_RED_TEAM)
        choices = get_args(Duplicates)
        require(self.duplicates in choices, f"'duplicates' must be {one_of(choices)} (got {describe(self.duplicates)})")
        require(self.view in VIEWS, f"'view' must be {one_of(VIEWS)} (got {describe(self.view)})")
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
            require(
                not len(foreign), f"'canaries' must belong to clients of 'federation' (got client {foreign[:1].sum()})"
            )
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
            require(
                alone,
                "algorithm.clusters = 'auto' excludes property attacks, malicious clients and 'start'; set a number",
            )
            require(
                accounting.private_rule(local.rounds[0]) is None,
                "algorithm.clusters = 'auto' excludes differential privacy, because epsilon does not cover its trials; "
                "set a number",
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
        """Whether the run can be repeated with other examples, which round attacks and malicious clients prevent."""
        return self.round_attack is None and self.malicious_clients is None

    @property
    def widest_view(self) -> View:
        """The most powerful view among the run's view and the views of clients' limits."""
        return max((self.view, *self.federation.preferences.views(self.view)), key=VIEWS.index)

    @property
    def presence(self) -> Presence | None:
        """The rounds in which each client is present; ``None`` without events."""
        return Presence.from_events(self.events, self.federation, self.last_round) if self.events else None

    def federation_in_round(self, number: int) -> Federation:
        """Return the federation with the test examples of the clients that are present in a round."""
        return (
            self.federation if self.presence is None else self.federation.restrict_test(self.presence.present(number))
        )

    @property
    def first_round(self) -> int:
        """The number of the first round, which is 1 without a ``start``."""
        return 1 if self.start is None else self.start.state.round + 1

    @property
    def last_round(self) -> int:
        """The number of the last round."""
        return self.first_round - 1 + self.rounds

    def preflight(self) -> Preflight:
        """Estimate, without training, which records an attacker of each view could recognise."""
        moves = apply_feature_map(self).visible_moves()
        return preflight(moves, first_round=self.first_round, steered=self.coordinator is not None)

    def visible_moves(self) -> VisibleMoves:
        """Return the updates that each view observes in training; the federation must already contain its features."""
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
    """Return the simulation with all inputs replaced by their features, which are computed only once.

    Args:
        simulation: the simulation with raw inputs.
        threads: the number of threads, which does not change results; ``None`` uses one per core.

    Raises:
        InputError: the features need a shadow set, or the inputs have a wrong shape.
    """
    features, federation, canaries = simulation.features, simulation.federation, simulation.canaries
    threads = threads or cores()
    if not isinstance(features, Features):
        return simulation
    public = federation.shadow.x
    require(
        len(public) > 0 or not features.needs_public_examples,
        "features: 'pca' needs a shadow set, with or without labels; add shadow examples",
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
    """Return the inputs and labels of at most two training examples, for a trial of a model."""
    return federation.clients.x[:2], federation.clients.y[:2]


def require_known(simulation: Simulation) -> None:
    """Raise `InputError` if reference federations cannot repeat the training of a simulation's ``start``."""
    start = simulation.start
    if start is None or start.public:
        return
    how = "train all rounds in one run, or use start(public=True) if 'start' was trained without these clients"
    if start.simulation is None:
        raise InputError(
            "reference federations must retrain 'start', but a result from a directory has no data; use the result "
            f"of simulate, {how}"
        )
    require(
        start.simulation.round_attack is None and start.simulation.malicious_clients is None,
        "reference federations cannot retrain a 'start' with a property attack or malicious clients; train "
        "another start",
    )
    clients = [run.federation.clients for run in (simulation, start.simulation)]
    mine, theirs = comparable_hashes(*clients)
    require(
        bool(np.isin(mine, theirs).any()),
        "reference federations must retrain 'start', but 'start' has none of the clients' examples with the same "
        f"inputs; {how}",
    )
    of_mine, of_theirs = (shards.owners().numpy() for shards in clients)
    require(
        simulation.participation == 1 or (np.array_equal(mine, theirs) and np.array_equal(of_mine, of_theirs)),
        "'participation' must be 1 for reference federations if 'start' had other clients or examples (got "
        f"{simulation.participation:g})",
    )
    require_known(start.simulation)
