"""The values that pass between server and clients in a round, and the protocols that the packages above implement."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from shoal.core.client_rows import ClientRows
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.core.representation import one_line
from shoal.data.federation import Federation
from shoal.data.preferences import Preferences
from shoal.data.shards import Shards, entries_of
from shoal.engine.engine import Engine
from shoal.engine.linear_term import LinearTerm
from shoal.engine.local_sgd import LocalRandomness, LocalSGD
from shoal.engine.personal_models import PersonalModels
from shoal.engine.round_updates import RoundUpdates
from shoal.engine.step_rule import StepRule

UNKNOWN_RISK = 0.5
"""The risk of every model before the first estimate: the balanced accuracy of guessing. It is one value for all models,
because otherwise risk alone would decide while the losses still look the same."""

Tensors = Mapping[str, Tensor]
"""Tensors by name, such as those that an algorithm keeps in a `State`."""


@dataclass(frozen=True, eq=False)
class State:
    """A federation after some rounds; everything a run needs to continue from there, and what a checkpoint stores.

    Args:
        round: rounds done.
        models: (K, P) float32, one model per cluster; K may change from round to round.
        risks: (K,) float64, the last estimate of each model's risk.
        assignment: (N,) int64, each client's last cluster; -1 for a client that has not yet taken part.
        server: the algorithm's own tensors at the server, by name.
        clients: the algorithm's own tensors of the clients, by name; the first axis is N.
        personal: the algorithm's own vectors of the clients that are as long as a model, or nearly, by name; N rows.
            Unlike ``clients`` they need not be in memory (`Engine.stored`), and a round costs what its cohort's cost.
        directives: what the server asks of each cluster, by name; (K,) float64 each. A `LocalDefense` reads them for
            local training, and an algorithm for what the server itself does (`strength`).
        adversary: the malicious clients' own tensors, by name.
        control: the coordinator's own tensors, by name.
        risk_intervals: (K, 2) float64, the 95 % interval of each estimate; NaN where it is not known.
        trained: (N, K) int64, the last round in which each client's update moved each model; 0: none did. The engine
            writes it. Where an algorithm changes K without it, only the clients of that round are known.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from shoal.engine import State
        >>> state = State.initial(torch.zeros(2, 5), clients=3)
        >>> state.risks, state.assignment
        (tensor([0.5000, 0.5000], dtype=torch.float64), tensor([-1, -1, -1]))
        >>> half = torch.tensor([1.0, 0.5], dtype=torch.float64)
        >>> state.strength("pooling"), replace(state, directives={"pooling": half}).strength("pooling")
        (tensor([1., 1.], dtype=torch.float64), tensor([1.0000, 0.5000], dtype=torch.float64))
    """

    round: int
    models: Tensor
    risks: Tensor
    assignment: Tensor
    server: Tensors = field(default_factory=dict)
    clients: Tensors = field(default_factory=dict)
    personal: Mapping[str, ClientRows] = field(default_factory=dict)
    directives: Tensors = field(default_factory=dict)
    adversary: Tensors = field(default_factory=dict)
    control: Tensors = field(default_factory=dict)
    risk_intervals: Tensor = field(default_factory=lambda: torch.zeros(0, 2, dtype=torch.float64))
    trained: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))
    __repr__ = one_line

    def __post_init__(self) -> None:
        if len(self.risk_intervals) != len(self.risks):  # none given, or those of another number of models
            object.__setattr__(self, "risk_intervals", unknown_intervals(len(self.risks)))

    def trainers(self, within: int) -> Tensor:
        """(N, K) bool, the clients that trained each model, not more than ``within`` rounds before its last training.

        Of a state without `trained`, those that are assigned to it.
        """
        if not self.trained.numel():
            return self.assignment[:, None] == torch.arange(len(self.models))
        return (self.trained > 0) & (self.trained > self.trained.amax(dim=0) - within)

    def strength(self, name: str) -> Tensor:
        """(K,) float64 in [0, 1], how much of what an algorithm does the directive ``name`` asks for in each cluster.

        Without that directive it is 1 for every cluster.

        Raises:
            InputError: the directive is not one number in [0, 1] for each cluster.
        """
        clusters = len(self.models)
        found = self.directives.get(name)
        if found is None:
            return torch.ones(clusters, dtype=torch.float64)
        require(
            found.shape == (clusters,) and bool(((found >= 0) & (found <= 1)).all()),
            f"the directive '{name}' must be a number in [0, 1] for each of {clusters} clusters; got {found.tolist()}",
        )
        return found.double()

    @staticmethod
    def initial(models: Tensor, clients: int) -> "State":
        """The state before the first round: ``models`` (K, P), no risk known, none of N ``clients`` assigned."""
        risks = torch.full((len(models),), UNKNOWN_RISK, dtype=torch.float64)
        never = torch.zeros(clients, len(models), dtype=torch.int64)
        return State(0, models, risks, torch.full((clients,), -1), trained=never)


def unknown_intervals(models: int) -> Tensor:
    """(K, 2) float64, NaN: the intervals of estimates of which none is known.

    Example:
        >>> import torch
        >>> from shoal.engine import RiskEstimate, unknown_intervals
        >>> estimate = RiskEstimate(torch.tensor([0.6, 0.7], dtype=torch.float64), unknown_intervals(2))
        >>> estimate.intervals.shape, bool(estimate.intervals.isnan().all())
        (torch.Size([2, 2]), True)
    """
    return torch.full((models, 2), torch.nan, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class RiskEstimate:
    """How exposed the members of each of K models are.

    Args:
        risks: (K,) float64 in [0, 1], the balanced accuracy of membership inference.
        intervals: (K, 2) float64, the 95 % interval of each; NaN where it is not known.

    Example:
        >>> import torch
        >>> from shoal.engine import RiskEstimate
        >>> risks = torch.tensor([0.5, 0.7], dtype=torch.float64)
        >>> estimate = RiskEstimate(risks, torch.stack([risks - 0.1, risks + 0.1], dim=1))
        >>> estimate.intervals[:, 0] <= estimate.risks
        tensor([True, True])
    """

    risks: Tensor
    intervals: Tensor


@dataclass(frozen=True, eq=False)
class Cohort:
    """The n clients of a round, and what an algorithm may ask of them.

    Args:
        round: number of the round, from 1.
        clients: (n,) int64, positions in the federation.
        sizes: (n,) int64, examples of each.
        preferences: thresholds and weights of risk, (n,) each.
        local: local training in this round, at its learning rate.
        layout: of a model's parameter vector.
        scores: computes losses (n, K); see `losses`.
        stream: for the server's own random draws in this round. Clients of a round come in the order of their ids, so
            draws by position do not depend on the order of clients in the federation.
        example_scores: computes losses (m, K); see `example_losses`.
        labels: (m,) of all the clients' examples, client by client; of a regression (m, d).

    Example:
        >>> import torch, shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[2.0]], [0])
        >>> federation = shoal.Federation.from_tensors([one, other], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     training = shoal.Training(federation, shoal.IFCA(clusters=2), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     state = training.start()
        ...     cohort = training.cohort_of(state, torch.tensor([0, 1]))
        ...     losses = cohort.losses(state.models)
        ...
        >>> len(cohort), losses.shape, cohort.owners.tolist(), cohort.of(torch.tensor([1])).sizes
        (2, torch.Size([2, 2]), [0, 0, 1], tensor([1]))
    """

    round: int
    clients: Tensor
    sizes: Tensor
    preferences: Preferences
    local: LocalSGD
    layout: Layout
    scores: Callable[[Tensor, Literal["all", "batch"]], Tensor]
    stream: Stream
    example_scores: Callable[[Tensor], Tensor]
    labels: Tensor
    __repr__ = one_line

    def __len__(self) -> int:
        return len(self.clients)

    def losses(self, models: Tensor, examples: Literal["all", "batch"] = "all") -> Tensor:
        """The mean loss of each model on each client's data: (K, P) -> (n, K) float64.

        Args:
            models: (K, P).
            examples: "all" of a client's own, or the first "batch" of this round's training.
        """
        return self.scores(models, examples)

    def example_losses(self, models: Tensor) -> Tensor:
        """The loss of each model on each of the clients' m examples, client by client: (K, P) -> (m, K) float64."""
        return self.example_scores(models)

    @property
    def owners(self) -> Tensor:
        """Whose example each is, (m,) int64 positions among the n clients."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)

    def means(self, values: Tensor) -> Tensor:
        """Each client's mean of what its examples have: (m, d) -> (n, d) float64."""
        total = torch.zeros(len(self), values.shape[1], dtype=torch.float64)
        return total.index_add_(0, self.owners, values.double()) / self.sizes[:, None]

    def of(self, some: Tensor) -> "Cohort":
        """The cohort as if only the clients at ``some`` (u,) had been asked."""
        entries = entries_of(self.sizes, some)
        return replace(
            self,
            clients=self.clients[some],
            sizes=self.sizes[some],
            preferences=Preferences(self.preferences.threshold[some], self.preferences.beta[some]),
            scores=lambda models, examples: self.scores(models, examples)[some],
            example_scores=lambda models: self.example_scores(models)[entries],
            labels=self.labels[entries],
        )


@dataclass(frozen=True)
class TrainingPhase:
    """Some epochs of a local training, in which some tensors alone are trained.

    A phase begins where the one before it ended, with batches of its own and an optimizer anew. Batch norm's statistics
    move in every phase.

    Args:
        epochs: at least 1.
        tensors: their names in the layout.

    Example:
        >>> import torch, shoal
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> model = shoal.create_model("mlp", shoal.VectorShape(inputs=1, classes=2), hidden=4)
        >>> with shoal.Engine(model) as engine:
        ...     local = shoal.LocalSGD(epochs=11)
        ...     training = shoal.Training(federation, shoal.FedRep(), local, engine, shoal.Stream(0))
        ...     state = training.start()
        ...     plan = training.algorithm.plan(state, training.cohort_of(state, torch.arange(2)))
        ...
        >>> [(phase.epochs, sorted(phase.tensors)) for phase in plan.trainings[0].phases]
        [(10, ['output.bias', 'output.weight']), (1, ['hidden.bias', 'hidden.weight'])]
    """

    epochs: int
    tensors: frozenset[str]


@dataclass(frozen=True, eq=False)
class LocalTraining:
    """One local training of every client of a cohort.

    Args:
        starts: (S, P) parameter vectors to start from; usually the models.
        start: (n,) int64, the index of each client's start; or (n, S) float, the weights of a mixture of starts.
        weights: W (K, n), the aggregation weights of the clients' results; None: nothing is sent to the server.
        keep: maps updates (u, P) to what is kept of them (u, d); None: nothing is kept. With ``weights`` the server
            keeps it, without the client does.
        term: one further linear term in every local step; None: none.
        local: local training; None: the run's.
        trains: (n,) bool, who takes part; None: everybody. The others do not train and send nothing: their ``weights``
            must be 0, and what is kept of them is 0.
        example_weights: (m,) at least 0, of all the clients' examples, client by client: a step minimises the mean over
            its batch of weight times loss; None: all weigh 1. DP-SGD and defences that change what is minimised are
            refused beside them.
        phases: parts of the local training, one after another, whose epochs are together those of ``local``; none: it
            is one, of all tensors.
        sent: names of the tensors that are sent; None: all of them. Of the others the server receives the model of the
            client's cluster as it was, and ``keep`` is given what the client made of them.
        rule: what a local step does with gradients; None: it follows one, with ``term``. The rows of ``starts`` are
            then the rule's (S, R): of what a client ends with the first P numbers are sent, and ``keep`` is given all.

    Raises:
        InputError: a rule beside a term or phases.

    Example:
        >>> import torch
        >>> from shoal.engine import LocalTraining, averaging_weights
        >>> models, assignment = torch.zeros(2, 5), torch.tensor([0, 1, 1])
        >>> weights = averaging_weights(assignment, torch.ones(3), clusters=2)
        >>> training = LocalTraining(starts=models, start=assignment, weights=weights)
        >>> training.weights
        tensor([[1.0000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000]], dtype=torch.float64)
        >>> training.of(torch.tensor([2]), sizes=torch.tensor([4, 4, 4])).start
        tensor([1])
    """

    starts: Tensor
    start: Tensor
    weights: Tensor | None = None
    keep: Callable[[Tensor], Tensor] | None = None
    term: LinearTerm | None = None
    local: LocalSGD | None = None
    trains: Tensor | None = None
    example_weights: Tensor | None = None
    phases: tuple[TrainingPhase, ...] = ()
    sent: frozenset[str] | None = None
    rule: StepRule | None = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        require(
            self.rule is None or (self.term is None and not self.phases),
            "local steps by a rule of their own, as APFL's and Per-FedAvg's, take no linear term and no phases",
        )

    def of(self, some: Tensor, sizes: Tensor) -> "LocalTraining":
        """That of the clients at ``some`` (u,) of n, of whom each has ``sizes`` (n,) examples."""
        weights = self.example_weights
        return replace(
            self,
            start=self.start[some],
            weights=None if self.weights is None else self.weights[:, some],
            term=None if self.term is None else self.term.of(some),
            trains=None if self.trains is None else self.trains[some],
            example_weights=None if weights is None else weights[entries_of(sizes, some)],
        )


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """What a cohort does in a round, decided before anybody trains.

    Args:
        assignment: (n,) int64, the cluster of each client.
        trainings: local trainings, one after another. All of them start from values known before the round.
        losses: (n, K) float64, the losses that decided the assignment, for the record; None: none did.

    Example:
        >>> import torch
        >>> from shoal.engine import LocalTraining, RoundPlan, averaging_weights
        >>> models, assignment = torch.zeros(2, 5), torch.tensor([0, 1, 1])
        >>> weights = averaging_weights(assignment, torch.ones(3), clusters=2)
        >>> shared, own = LocalTraining(models, assignment, weights), LocalTraining(models, assignment)
        >>> plan = RoundPlan(assignment, (shared, own))
        >>> [training.weights is None for training in plan.trainings], plan.clusters(0)
        ([False, True], tensor([0, 1, 1]))
    """

    assignment: Tensor
    trainings: tuple[LocalTraining, ...]
    losses: Tensor | None = None
    __repr__ = one_line

    def clusters(self, index: int) -> Tensor:
        """(n,) int64, the cluster whose model each client moves in one of the trainings; its directives count there.

        It is the client's own, but where clients send several updates each moves a model of its own.
        """
        sent, weights = [each for each in self.trainings if each.weights is not None], self.trainings[index].weights
        return self.assignment if weights is None or len(sent) == 1 else weights.argmax(dim=0)


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The outcome of a round's local trainings.

    Args:
        models: (K, P), moved by the aggregation weights of all trainings.
        kept: for each training what was kept of the updates (n, d), or None.

    Example:
        >>> import torch, shoal
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     training = shoal.Training(federation, shoal.Scaffold(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     state, clients = training.start(), torch.arange(2)
        ...     plan = training.algorithm.plan(state, training.cohort_of(state, clients))
        ...     aggregate, _ = training.trainer(state, clients).train(state, plan)
        ...
        >>> aggregate.models.shape, aggregate.kept[0].shape
        (torch.Size([1, 4]), torch.Size([2, 4]))
        >>> aggregate.models.allclose(state.models + aggregate.kept[0].mean(dim=0))
        True
    """

    models: Tensor
    kept: tuple[Tensor | None, ...]
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class Deployed:
    """The models that clients use after training, and that are attacked.

    Args:
        models: (S, P): the K models of the clusters, or as many personal models as there are clients, which may be
            made when they are asked for.
        model: (n,) int64, the index of each client's model.
        assignment: (n,) int64, the cluster of each client.
        fine_tuning: local trainings that every client does from its model, one after another, on all its examples, of
            which nothing is sent; None in the place of one: the run's. `Training.deployed` does them, and gives the
            models after them.

    Example:
        >>> import torch, shoal
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     for algorithm in (shoal.FedAvg(), shoal.LocalOnly()):
        ...         training = shoal.Training(federation, algorithm, shoal.LocalSGD(), engine, shoal.Stream(0))
        ...         deployed, losses = training.deployed(training.start())
        ...         print(len(deployed.models), deployed.model.tolist(), losses.shape)
        ...
        1 [0, 0] torch.Size([2])
        2 [0, 1] torch.Size([2])
    """

    models: Tensor | PersonalModels
    model: Tensor
    assignment: Tensor
    fine_tuning: tuple[LocalSGD | None, ...] = ()
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class RoundReport:
    """What happened in a round.

    Args:
        cohort: (n,) int64, positions of the clients that took part.
        plan: what they did.
        risks_estimated: whether the risks were estimated anew at the end of this round.
        seconds: wall time of "choose", "train" and "red_team".
        updates: what the server received; None in a round that is not recorded (`Training.record_every`).

    Example:
        >>> import shoal
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     setting = (federation, shoal.FedAvg(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     training = shoal.Training(*setting, participation=0.5)
        ...     state, report = training.round(training.start())
        ...
        >>> state.round, len(report.cohort), report.assignment, sorted(report.seconds)
        (1, 1, tensor([0]), ['choose', 'red_team', 'train'])
    """

    cohort: Tensor
    plan: RoundPlan
    risks_estimated: bool
    seconds: dict[str, float]
    updates: RoundUpdates | None = None
    __repr__ = one_line

    @property
    def assignment(self) -> Tensor:
        """(n,) int64, the cluster of each client."""
        return self.plan.assignment

    @property
    def losses(self) -> Tensor | None:
        """(n, K) float64, the losses that decided the assignment; None where none did."""
        return self.plan.losses


@runtime_checkable
class Algorithm(Protocol):
    """A federated algorithm: pure methods, all that changes is in `State`.

    A frozen dataclass of hyper-parameters implements it; `shoal.algorithms.fedavg` is the shortest example. Algorithms
    wrap others: the wrapper calls its base's methods and adds its own tensors to the state.

    Example:
        >>> import torch, shoal
        >>> from shoal.engine import Algorithm
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> isinstance(shoal.FedAvg(), Algorithm)
        True
        >>> with shoal.Engine(shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))) as engine:
        ...     training = shoal.Training(federation, shoal.FedAvg(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     state = training.start()
        ...     plan = training.algorithm.plan(state, training.cohort_of(state, torch.arange(2)))
        ...
        >>> plan.trainings[0].weights
        tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Raise `InputError` where this algorithm cannot do with that local training, or with risks that are estimated
        every ``risk_period`` rounds (0: never).
        """
        ...

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """The state before the first round."""
        ...

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Clients choose, and the server weighs them."""
        ...

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The state after the round: ``state``, in which round and assignment are already those of this round, with the
        models and the algorithm's own tensors moved. It may change K, and then the assignment, risks and directives.
        """
        ...

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """What each client of ``cohort`` (all clients, all their examples) uses after the last round."""
        ...


@runtime_checkable
class FirstRoundOfItsOwn(Protocol):
    """An algorithm whose clients train otherwise in the first round that has clients than in all others.

    It says so here, beside its plan, for whoever counts what the rounds spend of privacy.

    Example:
        >>> import shoal
        >>> from shoal.engine import FirstRoundOfItsOwn
        >>> isinstance(shoal.RDPCFL(), FirstRoundOfItsOwn), isinstance(shoal.IFCA(), FirstRoundOfItsOwn)
        (True, False)
        >>> shoal.RDPCFL().first_local(shoal.LocalSGD(batch_size=20)).batch_size
        'all'
    """

    def first_local(self, local: LocalSGD) -> LocalSGD:
        """Local training in that round, where it is ``local`` in the others."""
        ...


@runtime_checkable
class RiskEstimator(Protocol):
    """Estimates how exposed each model's members are; it changes nothing but the risks.

    Example:
        >>> import torch, shoal
        >>> from dataclasses import dataclass
        >>> from shoal.engine import RiskEstimate, RiskEstimator
        >>> @dataclass(frozen=True)
        ... class AlwaysTheSame:
        ...     every: int = 1
        ...     def estimate(self, state, federation, engine, local, stream):
        ...         risks = torch.full((len(state.models),), 0.7, dtype=torch.float64)
        ...         return RiskEstimate(risks, torch.stack([risks, risks], dim=1))
        ...
        >>> isinstance(AlwaysTheSame(), RiskEstimator), isinstance(shoal.RedTeam(), RiskEstimator)
        (True, True)
    """

    @property
    def every(self) -> int:
        """Rounds between estimates; 0 is never."""
        ...

    def estimate(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> RiskEstimate:
        """The membership-inference accuracy on each of the K models of ``state``.

        ``local`` is the local training of each cluster, so that shadow models train as the clients do.
        """
        ...


@runtime_checkable
class UpdateFilter(Protocol):
    """A function of each update: of the server before aggregation, or of the client before it sends.

    Example:
        >>> import torch, shoal
        >>> from dataclasses import dataclass
        >>> from shoal.engine import UpdateFilter
        >>> @dataclass(frozen=True)
        ... class SignsOnly:
        ...     step: float
        ...     def filter(self, starts, ends, seeds):
        ...         return starts + self.step * (ends - starts).sign()
        ...
        >>> isinstance(SignsOnly(0.1), UpdateFilter), isinstance(shoal.NormClipping(1.0), UpdateFilter)
        (True, True)
        >>> SignsOnly(0.1).filter(torch.zeros(1, 3), torch.tensor([[5.0, -0.2, 0.0]]), torch.tensor([0]))
        tensor([[ 0.1000, -0.1000,  0.0000]])
    """

    def filter(self, starts: Tensor, ends: Tensor, seeds: Tensor) -> Tensor:
        """The parameters that the server goes on with, or that the client sends.

        Args:
            starts: (u, P), what u clients started from.
            ends: (u, P), what they sent, or trained.
            seeds: (u,) int64, a seed for each client and round, for filters that draw noise.

        Returns:
            (u, P).
        """
        ...


@dataclass(frozen=True, eq=False)
class ClusterRound:
    """One cluster in one round, as seen by a defence of local training.

    Args:
        round: number of the round, from 1.
        cluster: its index.
        risk: the last estimate of its model's risk.
        directive: `State.directives` of this cluster, by name.

    Example:
        >>> import shoal
        >>> from shoal.engine import ClusterRound
        >>> coordinator = shoal.Coordinator({"l2": shoal.Knob(shoal.L2(0.1))})
        >>> at = [ClusterRound(round=1, cluster=0, risk=0.7, directive={"l2": strength}) for strength in (0.0, 0.5)]
        >>> [coordinator.local(shoal.LocalSGD(), each).weight_decay for each in at]
        [0.0, 0.05]
    """

    round: int
    cluster: int
    risk: float = UNKNOWN_RISK
    directive: Mapping[str, float] = field(default_factory=dict)
    __repr__ = one_line


@runtime_checkable
class LocalDefense(Protocol):
    """A defence that changes local training, decided anew for each cluster in each round.

    Example:
        >>> import shoal
        >>> from dataclasses import dataclass, replace
        >>> from shoal.engine import ClusterRound, LocalDefense
        >>> @dataclass(frozen=True)
        ... class SlowWhereExposed:
        ...     limit: float = 0.6
        ...     def local(self, local, at):
        ...         return replace(local, learning_rate=local.learning_rate / 2) if at.risk > self.limit else local
        ...
        >>> isinstance(SlowWhereExposed(), LocalDefense)
        True
        >>> [SlowWhereExposed().local(shoal.LocalSGD(), ClusterRound(1, 0, risk)).learning_rate for risk in (0.5, 0.7)]
        [0.1, 0.05]
    """

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """The local training of that cluster's clients in that round."""
        ...


@runtime_checkable
class ScalableDefense(LocalDefense, Protocol):
    """A defence of local training that can be applied at any share of its strength, as a directive may ask.

    Example:
        >>> import shoal
        >>> from shoal.engine import ScalableDefense
        >>> isinstance(shoal.L2(0.1), ScalableDefense), isinstance(shoal.NormClipping(1.0), ScalableDefense)
        (True, False)
        >>> shoal.L2(0.1).scaled(0.5), shoal.L2(0.1).scaled(1.0) == shoal.L2(0.1)
        (L2(penalty=0.05), True)
    """

    def scaled(self, strength: float) -> Self:
        """The same defence at ``strength`` of its full strength.

        Args:
            strength: in [0, 1]; at 0 local training stays what it is, bit for bit, and at 1 it is this defence itself.

        Raises:
            InputError: a strength outside [0, 1].
        """
        ...


@runtime_checkable
class Coordinator(Protocol):
    """Steers the local training of every cluster by directives, which follow from the risks that are estimated.

    Example:
        >>> import torch, shoal
        >>> from dataclasses import dataclass, replace
        >>> from shoal.engine import Coordinator, State
        >>> @dataclass(frozen=True)
        ... class PoolExposed:
        ...     def start(self, state, federation, engine):
        ...         return replace(state, directives={"pooling": torch.zeros(len(state.models), dtype=torch.float64)})
        ...     def update(self, state, federation, engine, stream):
        ...         return replace(state, directives={"pooling": (state.risks > 0.6).double()})
        ...
        >>> isinstance(PoolExposed(), Coordinator)
        True
        >>> risks = torch.tensor([0.5, 0.7], dtype=torch.float64)
        >>> exposed = replace(State.initial(torch.zeros(2, 5), clients=3), risks=risks)
        >>> PoolExposed().update(exposed, None, None, None).strength("pooling")
        tensor([0., 1.], dtype=torch.float64)
    """

    def start(self, state: State, federation: Federation, engine: Engine) -> State:
        """``state`` before the first round with its first directives and what the coordinator remembers."""
        ...

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """``state`` after an estimate of its risks, with new directives and with what the coordinator remembers now.

        It changes nothing else of the state.
        """
        ...


@runtime_checkable
class MaliciousClients(Protocol):
    """Clients that replace local training and may send any update.

    Example:
        >>> import torch, shoal
        >>> from shoal.engine import MaliciousClients
        >>> class FreeRider:
        ...     clients = torch.tensor([0])
        ...     def start(self, state, stream):
        ...         return {}
        ...     def train(self, state, cluster, client, shards, randomness, local, engine):
        ...         return state.models[cluster], {}
        ...
        >>> isinstance(FreeRider(), MaliciousClients)
        True
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     setting = (federation, shoal.FedAvg(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     start = shoal.Training(*setting).start()
        ...     honest, _ = shoal.Training(*setting).round(start)
        ...     halved, _ = shoal.Training(*setting, malicious_clients=FreeRider()).round(start)
        ...
        >>> (2 * (halved.models - start.models)).allclose(honest.models - start.models)
        True
    """

    @property
    def clients(self) -> Tensor:
        """Their ids (m,) int64."""
        ...

    def start(self, state: State, stream: Stream) -> Tensors:
        """`State.adversary` before the first round, of which ``state`` has everything else."""
        ...

    def train(
        self,
        state: State,
        cluster: int,
        client: int,
        shards: Shards,
        randomness: LocalRandomness,
        local: LocalSGD,
        engine: Engine,
    ) -> tuple[Tensor, Tensors]:
        """What one of them sends in a round.

        Args:
            state: before the round, but for ``adversary``, which the malicious clients before this one have updated.
            cluster: the cluster that it chose.
            client: its id.
            shards: one owner, the client's examples of this round.
            randomness: that owner's.
            local: what an honest client does.
            engine: computes it.

        Returns:
            Its parameters (P,), and `State.adversary` after it.
        """
        ...
