"""What an algorithm sees and decides in a round: its cohort, the plan of local trainings, and the outcome.

The outcome has the merged models, the updates that the server received, the deployed models and a report.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, overload

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.formats import one_line
from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.data.preferences import Preferences
from shoal.data.shards import entries_of
from shoal.engine.engine import gather_params
from shoal.engine.local_sgd import LinearTerm, LocalSGD, StepRule
from shoal.engine.state import ClientVectors


@dataclass(frozen=True, eq=False)
class Cohort:
    """The n clients of a round, as an algorithm sees them.

    Args:
        round: number of the round, from 1.
        clients: (n,) int64, positions in the federation.
        sizes: (n,) int64, examples per client.
        preferences: thresholds and weights of risk, (n,) each.
        local: local training in this round, at its learning rate.
        layout: the layout of a model's parameter vector.
        scores: computes losses (n, K); see `losses`.
        stream: the stream of the server's random draws in this round. Clients come in the order of their ids, so draws
            by position do not depend on the order of clients in the federation.
        example_scores: computes losses (m, K); see `example_losses`.
        labels: (m,), the labels of all the clients' examples, client by client; (m, d) in a regression.

    Example:
        >>> import torch, shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> with shoal.Engine(model) as engine:
        ...     training = shoal.Training(federation, shoal.IFCA(clusters=2), local, engine, shoal.Stream(0))
        ...     state = training.start()
        ...     cohort = training.cohort_of(state, torch.tensor([0, 1]))
        ...     losses = cohort.losses(state.models)
        ...
        >>> len(cohort), losses.shape, cohort.owners.tolist(), cohort.take(torch.tensor([1])).sizes
        (2, torch.Size([2, 2]), [0, 0, 1, 1], tensor([2]))
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
        """Return the mean loss of each model on each client's data: (K, P) -> (n, K) float64.

        Args:
            models: (K, P).
            examples: "all" of a client's own, or the first "batch" of this round's training.
        """
        return self.scores(models, examples)

    def example_losses(self, models: Tensor) -> Tensor:
        """Return the losses (m, K) float64 of models (K, P) on the clients' m examples, client by client."""
        return self.example_scores(models)

    @property
    def owners(self) -> Tensor:
        """(m,) int64, the client of each example, as a position among the n."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)

    def means(self, values: Tensor) -> Tensor:
        """Means per client of values per example: (m, d) -> (n, d) float64."""
        total = torch.zeros(len(self), values.shape[1], dtype=torch.float64)
        return total.index_add_(0, self.owners, values.double()) / self.sizes[:, None]

    def take(self, clients: Tensor) -> "Cohort":
        """Return the cohort restricted to the clients at ``clients`` (u,)."""
        entries = entries_of(self.sizes, clients)
        return replace(
            self,
            clients=self.clients[clients],
            sizes=self.sizes[clients],
            preferences=self.preferences.take(clients),
            scores=lambda models, examples: self.scores(models, examples)[clients],
            example_scores=lambda models: self.example_scores(models)[entries],
            labels=self.labels[entries],
        )


def chosen_losses(choice: Tensor, clusters: int) -> Tensor:
    """Return losses (n, K) float64 that are lowest for each client's ``choice`` (n,) int64.

    With them and `neutral_preferences`, an algorithm in which clients choose assigns each client its choice.

    >>> chosen_losses(torch.tensor([1, 0]), clusters=2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return 1 - torch.nn.functional.one_hot(choice, clusters).double()


def neutral_preferences(count: int) -> Preferences:
    """Preferences of ``count`` clients that tolerate every risk and weigh none."""
    return Preferences(torch.ones(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64))


@dataclass(frozen=True)
class TrainingPhase:
    """Some epochs of a local training, in which only some tensors are trained.

    A phase begins where the previous one ended, with its own batches and a new optimizer. Batch norm's statistics move
    in every phase. `shoal.algorithms.FedRep` trains its head, then its body.

    Args:
        epochs: the number of epochs, at least 1.
        tensors: the trained tensors' names in the layout.
    """

    epochs: int
    tensors: frozenset[str]


@dataclass(frozen=True, eq=False)
class LocalTraining:
    """One local training of the n clients of a cohort.

    Args:
        initial_params: (S, P) parameter vectors that clients start from; usually the models.
        init_index: (n,) int64, the index of each client's initial parameters; or (n, S) float, the weights of a mixture
            of them.
        weights: W (K, n), the aggregation weights of the clients' results; None: nothing is sent to the server.
        keep: maps updates (u, P) to what is kept of them (u, d); None: nothing is kept. The server keeps it where there
            are ``weights``, otherwise the client.
        linear_term: added to the gradient of every local step; None: none.
        local: settings of local training; None: the run's.
        participates: (n,) bool, the clients that train; None: all. The others send nothing: their ``weights`` must be
            0, and 0 is kept of them.
        example_weights: (m,) at least 0, of all clients' examples, client by client: a step minimises the mean over its
            batch of weight times loss; None: all weigh 1. DP-SGD and defences that replace the loss are refused then.
        phases: parts of the local training, in order, whose epochs add up to those of ``local``; empty: one part, which
            trains all tensors.
        shared: names of the tensors that are sent; None: all. The others are personal: the server receives the values
            of its own model in their place, and ``keep`` is given the client's.
        step_rule: the use of gradients in a local step; None: gradient descent, with ``linear_term``. With a rule,
            rows of ``initial_params`` are the rule's (S, R); a client sends the first P of its R elements, and ``keep``
            is given all.

    Raises:
        InputError: a step rule beside a linear term or phases.

    Example:
        >>> import torch
        >>> from shoal.engine import LocalTraining, averaging_weights
        >>> models, assignment = torch.zeros(2, 5), torch.tensor([0, 1, 1])
        >>> weights = averaging_weights(assignment, torch.ones(3), clusters=2)
        >>> training = LocalTraining(models, assignment, weights)
        >>> training.weights
        tensor([[1.0000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000]], dtype=torch.float64)
        >>> training.take(torch.tensor([2]), sizes=torch.tensor([4, 4, 4])).init_index
        tensor([1])
    """

    initial_params: Tensor
    init_index: Tensor
    weights: Tensor | None = None
    keep: Callable[[Tensor], Tensor] | None = None
    linear_term: LinearTerm | None = None
    local: LocalSGD | None = None
    participates: Tensor | None = None
    example_weights: Tensor | None = None
    phases: tuple[TrainingPhase, ...] = ()
    shared: frozenset[str] | None = None
    step_rule: StepRule | None = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        require(
            self.step_rule is None or (self.linear_term is None and not self.phases),
            "a step rule, as APFL's and Per-FedAvg's, takes no linear term and no phases",
        )

    def participants(self) -> Tensor:
        """(n,) bool, the clients that train."""
        everyone = torch.ones(len(self.init_index), dtype=torch.bool)
        return everyone if self.participates is None else self.participates

    def initial_rows(self) -> Tensor:
        """(n, P), the parameters that each client starts from; (n, R) with a step rule."""
        return gather_params(self.initial_params, self.init_index)

    def take(self, clients: Tensor, sizes: Tensor) -> "LocalTraining":
        """Return the training of the clients at ``clients`` (u,); all n have ``sizes`` (n,) examples."""
        weights = self.example_weights
        return replace(
            self,
            init_index=self.init_index[clients],
            weights=None if self.weights is None else self.weights[:, clients],
            linear_term=None if self.linear_term is None else self.linear_term.take(clients),
            participates=None if self.participates is None else self.participates[clients],
            example_weights=None if weights is None else weights[entries_of(sizes, clients)],
        )

    def personal_slices(self, layout: Layout) -> list[slice]:
        """Return the places in a vector (P,) of the tensors that are not shared."""
        return [] if self.shared is None else layout.slices({slot.name for slot in layout.slots} - self.shared)

    def shared_part(self, rows: Tensor, layout: Layout) -> Tensor:
        """Return the sent part (u, P) of ``rows`` (u, P), or (u, R) with a step rule; 0 in personal tensors."""
        part = rows[:, : layout.size].clone()
        for place in self.personal_slices(layout):
            part[:, place] = 0
        return part


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """The plan of a cohort's round, decided before any training.

    Args:
        assignment: (n,) int64, the cluster of each client.
        trainings: local trainings, in order; all start from values known before the round.
        losses: (n, K) float64, the losses that decided the assignment, for the record; None: none did.
    """

    assignment: Tensor
    trainings: tuple[LocalTraining, ...]
    losses: Tensor | None = None
    __repr__ = one_line

    def trainings_of_clients(self) -> list[list[LocalSGD | None]]:
        """Return the distinct sequences of local trainings that clients take, as `LocalTraining.local`."""
        participants = [training.participants() for training in self.trainings]
        sequences = torch.stack(participants, dim=1).unique(dim=0).tolist() if participants else []
        return [
            [training.local for training, is_taken in zip(self.trainings, sequence, strict=True) if is_taken]
            for sequence in sequences
        ]

    def clusters(self, index: int) -> Tensor:
        """(n,) int64, the cluster whose model each client moves in one of the trainings, and whose directives count.

        This is the client's own model, unless clients send several updates; each of these moves a different model.
        """
        weights = self.trainings[index].weights
        updates = sum(training.weights is not None for training in self.trainings)
        return self.assignment if weights is None or updates == 1 else weights.argmax(dim=0)


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The outcome of a round's local trainings.

    Args:
        models: (K, P), moved by the aggregation weights of all trainings.
        kept: per training the part of the updates that is kept (n, d), or None.
        sent: per training the parameters (n, P) that clients sent, before the server's filter, or None; empty unless
            they are recorded.
    """

    models: Tensor
    kept: tuple[Tensor | None, ...]
    sent: tuple[Tensor | None, ...] = ()
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class PersonalModels:
    """The models of n clients, made one by one, so that all need not be in memory at once; used as a tensor (n, P).

    Args:
        count: n.
        rows: maps positions (u,) int64 among the n to models (u, P).

    Example:
        >>> import torch
        >>> from shoal.engine import ClientVectors, PersonalModels
        >>> rows = ClientVectors.same(torch.zeros(2), 3).replace_rows(torch.tensor([2]), torch.ones(1, 2))
        >>> models = PersonalModels.from_rows(rows, torch.tensor([2, 0]))
        >>> len(models), models[0], models[1:].tensor(), models.tensor().shape
        (2, tensor([1., 1.]), tensor([[0., 0.]]), torch.Size([2, 2]))
    """

    count: int
    rows: Callable[[Tensor], Tensor]

    @staticmethod
    def from_rows(rows: ClientVectors, clients: Tensor) -> "PersonalModels":
        """Return the models of the clients at positions (n,) int64 of ``rows``."""
        return PersonalModels(len(clients), lambda some: rows[clients[some]])

    def __len__(self) -> int:
        return self.count

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> "PersonalModels": ...
    def __getitem__(self, client: "int | slice") -> "Tensor | PersonalModels":
        """Return the model (P,) of one client, or for a slice the models of several, still to be made."""
        if isinstance(client, slice):
            some = torch.arange(self.count)[client]
            return PersonalModels(len(some), lambda positions: self.rows(some[positions]))
        return self.rows(torch.tensor([client]))[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[client] for client in range(self.count))

    def tensor(self) -> Tensor:
        """Return all models at once: (n, P)."""
        return self.rows(torch.arange(self.count))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.count} clients)"


@dataclass(frozen=True, eq=False)
class DeployedModels:
    """The models that clients use after training, and that are attacked.

    Args:
        models: (S, P): the K models of the clusters, or one personal model per client, possibly computed on access.
        model: (n,) int64, the index of each client's model.
        assignment: (n,) int64, the cluster of each client.
        fine_tuning: local trainings that every client takes from its model, in order, on all its examples, without
            sending anything; None: the run's. `Training.deployed_models` performs them.
    """

    models: Tensor | PersonalModels
    model: Tensor
    assignment: Tensor
    fine_tuning: tuple[LocalSGD | None, ...] = ()
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class RoundUpdates:
    """The view of an honest-but-curious server on a round: its models, and the update of each sender.

    An update is what a client sent minus the model of its cluster: after the client's defences (also `LaplaceNoise`)
    and before the server's own filter (`NormClipping`). So ``models[assignment] + updates`` are the parameters sent.

    Args:
        round: number of the round, from 1.
        clients: (n,) int64, ids of the senders; twice where an algorithm lets a client send two updates in a round.
        assignment: (n,) int64, the cluster whose model each update is for.
        models: (K, P) float32, before the round.
        updates: (n, P) float32, on the CPU.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> with shoal.Engine(model) as engine:
        ...     training = shoal.Training(federation, shoal.FedAvg(), local, engine, shoal.Stream(0), record_every=1)
        ...     state, report = training.round(training.start())
        ...
        >>> sent = report.updates
        >>> state.models.allclose(sent.models + sent.updates.mean(dim=0))
        True
    """

    round: int
    clients: Tensor
    assignment: Tensor
    models: Tensor
    updates: Tensor
    __repr__ = one_line

    def __len__(self) -> int:
        return len(self.clients)

    @staticmethod
    def collect(number: int, models: Tensor, ids: Tensor, plan: RoundPlan, aggregate: Aggregate) -> "RoundUpdates":
        """Return the updates of round ``number``, from what the clients with ``ids`` (n,) sent (`Aggregate.sent`)."""
        models = models.cpu()
        clients, assignment, updates = [ids[:0]], [ids[:0]], [models[:0]]
        for index, sent in enumerate(aggregate.sent):
            if sent is not None:
                present = plan.trainings[index].participants()
                clusters = plan.clusters(index)[present]
                clients.append(ids[present])
                assignment.append(clusters)
                updates.append(sent[present] - models[clusters])
        return RoundUpdates(number, torch.cat(clients), torch.cat(assignment), models, torch.cat(updates))


@dataclass(frozen=True, eq=False)
class Departure:
    """Clients that left for good before a round, and how the models were made to forget them.

    Args:
        round: the number of the first round without them.
        clients: (m,) int64, their positions in the federation.
        before: (K, P) float32, the models that the leavers still trained.
        after: (K, P) float32, the models with which training continues.
        method: the name of the forgetting method, such as "exact".
        client_rounds: local trainings for forgetting, in units of one client's training in one round.
        full_client_rounds: local trainings for training all earlier rounds again without the leavers, in the same
            units.
        clusters: the number of models that changed.
        choices: the number of choices that the other clients repeated.
        changed_choices: the number of repeated choices that differ from those made with the leavers.
        megabytes: the size of what a server must store to forget this way, in units of 10^6 bytes.
        seconds: wall time of the method.
        history_seconds: wall time of training the earlier rounds again, which a server that stored them does not need.
        cohorts: positions of the clients that trained for forgetting, round by round.
    """

    round: int
    clients: Tensor
    before: Tensor
    after: Tensor
    method: str
    client_rounds: float = 0.0
    full_client_rounds: float = 0.0
    clusters: int = 0
    choices: int = 0
    changed_choices: int = 0
    megabytes: float = 0.0
    seconds: float = 0.0
    history_seconds: float = 0.0
    cohorts: tuple[Tensor, ...] = ()
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class RoundReport:
    """The report of a round.

    Args:
        cohort: (n,) int64, positions of the clients that took part.
        plan: the round's plan.
        risks_estimated: whether risks were estimated at the end of this round.
        seconds: wall time of "choose", of "train" and its parts (`round_clock.TRAIN`), and of "red_team".
        updates: the updates that the server received; None in a round that is not recorded (`Training.record_every`).
        departure: the departure of the clients that left before this round, after they had trained; None: nobody left.
    """

    cohort: Tensor
    plan: RoundPlan
    risks_estimated: bool
    seconds: dict[str, float]
    updates: RoundUpdates | None = None
    departure: Departure | None = None
    __repr__ = one_line

    @property
    def assignment(self) -> Tensor:
        """(n,) int64, the cluster of each client."""
        return self.plan.assignment

    @property
    def losses(self) -> Tensor | None:
        """(n, K) float64, the losses that decided the assignment; None where none did."""
        return self.plan.losses
