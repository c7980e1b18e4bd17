"""The input of an algorithm's round (the cohort), its decisions (the plan), and the outcome."""

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
    """The n clients of a round, the input of an algorithm.

    Args:
        round: the number of the round, from 1.
        clients: the clients' positions in the federation, ordered by client id, (n,) int64.
        sizes: the number of examples per client, (n,) int64.
        preferences: each client's risk threshold and risk weights, n entries.
        local: the local training in this round, at the round's learning rate.
        layout: the layout of a model's parameter vector.
        scores: the function that computes `losses`.
        stream: the stream of the server's random draws in this round.
        example_scores: the function that computes `example_losses`.
        labels: the labels of all clients' examples, client by client, (m,), or (m, d) in a regression.

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
        """Return the mean loss of each model on each client's data, (n, K) float64.

        Args:
            models: the models' parameters, (K, P).
            examples: "all" uses all of a client's examples, and "batch" only the first batch of the round's training.
        """
        return self.scores(models, examples)

    def example_losses(self, models: Tensor) -> Tensor:
        """Return the losses (m, K) float64 of models (K, P) on the clients' m examples, client by client."""
        return self.example_scores(models)

    @property
    def owners(self) -> Tensor:
        """The cohort position of each example's client, (m,) int64."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)

    def means(self, values: Tensor) -> Tensor:
        """Return the mean of ``values`` (m, d) over each client's examples, (n, d) float64."""
        total = torch.zeros(len(self), values.shape[1], dtype=torch.float64)
        return total.index_add_(0, self.owners, values.double()) / self.sizes[:, None]

    def take(self, clients: Tensor) -> "Cohort":
        """Return the cohort restricted to the clients at positions (u,)."""
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

    >>> chosen_losses(torch.tensor([1, 0]), clusters=2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return 1 - torch.nn.functional.one_hot(choice, clusters).double()


def neutral_preferences(count: int) -> Preferences:
    """Return preferences of ``count`` clients that tolerate every risk and give risk no weight."""
    return Preferences(torch.ones(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64))


@dataclass(frozen=True)
class TrainingPhase:
    """Epochs of a local training that train only some tensors.

    A phase starts from the previous phase's result, with new batches and a new optimizer. Every phase updates batch
    norm's statistics.

    Args:
        epochs: the number of epochs, at least 1.
        tensors: the names of the trained tensors in the layout.
    """

    epochs: int
    tensors: frozenset[str]


@dataclass(frozen=True, eq=False)
class LocalTraining:
    """One local training of the n clients of a cohort.

    Args:
        initial_params: S parameter vectors that clients start from, usually the models, (S, P).
        init_index: the index of each client's initial vector, (n,) int64; or the weights of a mixture of initial
            vectors, (n, S) float.
        weights: the aggregation weights W of the clients' results, (K, n); ``None`` sends nothing to the server.
        keep: a function from updates (u, P) to the values to keep of each update, (u, d); ``None`` keeps nothing. The
            values stay at the server if clients send updates, otherwise at each client.
        linear_term: a term added to the gradient of every local step; ``None`` adds nothing.
        local: the settings of local training; ``None`` uses the run's settings.
        participates: a mask of the clients that train, (n,); ``None`` means that all clients train. Other clients must
            have weight 0, and their kept values are 0.
        example_weights: a weight per example, at least 0, client by client, (m,). A step minimises the batch's mean of
            weight times loss. ``None`` gives all examples weight 1. Weights exclude DP-SGD and defences that replace
            the loss.
        phases: consecutive parts of the local training whose epochs add up to those of ``local``; empty for a single
            part that trains all tensors.
        shared: the names of the sent tensors; ``None`` sends all tensors. The server keeps its values of tensors that
            are not sent, while ``keep`` receives the client's values.
        step_rule: a replacement of the gradient step; ``None`` uses gradient descent. With a rule, rows of
            ``initial_params`` have R elements, a client sends the first P elements, and ``keep`` receives all R.

    Raises:
        InputError: a step rule is combined with a linear term or phases.

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
            "step_rule cannot be combined with linear_term or phases; remove them",
        )

    def participants(self) -> Tensor:
        """Return the mask (n,) of the clients that train."""
        everyone = torch.ones(len(self.init_index), dtype=torch.bool)
        return everyone if self.participates is None else self.participates

    def initial_rows(self) -> Tensor:
        """Return the initial parameters of each client, (n, P), or (n, R) with a step rule."""
        return gather_params(self.initial_params, self.init_index)

    def take(self, clients: Tensor, sizes: Tensor) -> "LocalTraining":
        """Return the training of the clients at positions (u,), given the ``sizes`` (n,) of all clients."""
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
        """Return the slices of a parameter vector (P,) that hold personal tensors."""
        return [] if self.shared is None else layout.slices({slot.name for slot in layout.slots} - self.shared)

    def shared_part(self, rows: Tensor, layout: Layout) -> Tensor:
        """Return the sent part (u, P) of ``rows``, (u, P) or (u, R) with a step rule, with 0 in personal tensors."""
        part = rows[:, : layout.size].clone()
        for place in self.personal_slices(layout):
            part[:, place] = 0
        return part


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """The plan of a cohort's round, decided before any training.

    Args:
        assignment: the cluster of each client, (n,) int64.
        trainings: the local training runs, in order; all start from values known before the round.
        losses: the losses that decided the assignment, (n, K) float64; ``None`` if losses did not decide it.
    """

    assignment: Tensor
    trainings: tuple[LocalTraining, ...]
    losses: Tensor | None = None
    __repr__ = one_line

    def trainings_of_clients(self) -> list[list[LocalSGD | None]]:
        """Return the distinct sequences of `LocalTraining.local` that clients perform."""
        participants = [training.participants() for training in self.trainings]
        sequences = torch.stack(participants, dim=1).unique(dim=0).tolist() if participants else []
        return [
            [training.local for training, is_taken in zip(self.trainings, sequence, strict=True) if is_taken]
            for sequence in sequences
        ]

    def clusters(self, index: int) -> Tensor:
        """Return the cluster (n,) int64 whose model and directives each client uses in the training at ``index``.

        The cluster is the client's assigned cluster, unless clients send updates for several models.
        """
        weights = self.trainings[index].weights
        updates = sum(training.weights is not None for training in self.trainings)
        return self.assignment if weights is None or updates == 1 else weights.argmax(dim=0)


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The outcome of a round's local training runs.

    Args:
        models: the models after aggregation, (K, P).
        kept: for each training, the kept values of updates, (n, d), or ``None`` if nothing was kept.
        sent: for each training, the parameters that clients sent, (n, P), before the server's filter, or ``None`` if
            nothing was sent; empty if the round is not recorded.
    """

    models: Tensor
    kept: tuple[Tensor | None, ...]
    sent: tuple[Tensor | None, ...] = ()
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class PersonalModels:
    """The models of n clients, computed on access to save memory and indexed like a tensor (n, P).

    Args:
        count: the number of clients n.
        rows: a function from client positions (u,) int64 to models (u, P).

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
        """Return the models at the positions ``clients`` (n,) int64 of ``rows``."""
        return PersonalModels(len(clients), lambda some: rows[clients[some]])

    def __len__(self) -> int:
        return self.count

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> "PersonalModels": ...
    def __getitem__(self, client: "int | slice") -> "Tensor | PersonalModels":
        """Return the model (P,) of one client, or `PersonalModels` of a slice."""
        if isinstance(client, slice):
            some = torch.arange(self.count)[client]
            return PersonalModels(len(some), lambda positions: self.rows(some[positions]))
        return self.rows(torch.tensor([client]))[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[client] for client in range(self.count))

    def tensor(self) -> Tensor:
        """Return all models as one tensor, (n, P)."""
        return self.rows(torch.arange(self.count))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.count} clients)"


@dataclass(frozen=True, eq=False)
class DeployedModels:
    """The models that clients use after training, which final attacks target.

    Args:
        models: the K models of the clusters or one personal model per client, (S, P).
        model: the index of each client's model, (n,) int64.
        assignment: the cluster of each client, (n,) int64.
        fine_tuning: the local training runs that every client performs on its model after the last round, in order;
            ``None`` in the sequence means the run's local training. `Training.deployed_models` performs them.
    """

    models: Tensor | PersonalModels
    model: Tensor
    assignment: Tensor
    fine_tuning: tuple[LocalSGD | None, ...] = ()
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class RoundUpdates:
    """An honest-but-curious server's view of a round: the models and each sender's update.

    An update is the difference between the sent parameters and the model of the client's cluster. The client's defences
    (such as `LaplaceNoise`) are already applied, but the server's filter (such as `NormClipping`) is not.

    Args:
        round: the number of the round, from 1.
        clients: the ids of the senders, (n,) int64; an id appears twice if the algorithm requests two updates.
        assignment: the cluster whose model each update changes, (n,) int64.
        models: the models before the round, (K, P) float32.
        updates: the updates, (n, P) float32, on the CPU.

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
        """Return the updates of round ``number`` from the parameters that the clients with ``ids`` (n,) sent."""
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
    """Clients that left before a round, and how the models forgot them.

    Args:
        round: the number of the first round without the clients.
        clients: the clients' positions in the federation, (m,) int64.
        before: the models before forgetting, (K, P) float32.
        after: the models with which training continues, (K, P) float32.
        method: the name of the forgetting method, such as "exact".
        client_rounds: the number of local training runs performed for forgetting; one client in one round counts as 1.
        full_client_rounds: the number of local training runs needed to retrain all earlier rounds without the clients.
        clusters: the number of models that changed.
        choices: the number of model choices that the remaining clients repeated.
        changed_choices: the number of repeated choices that differ from the original choices.
        megabytes: the server's storage for the method, in units of 10^6 bytes.
        seconds: the wall time of the method.
        history_seconds: the wall time of retraining the earlier rounds; a server that stores them saves this time.
        cohorts: the positions of the clients that trained for forgetting, round by round.
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
        cohort: the positions of the clients that took part, (n,) int64.
        plan: the round's plan.
        risks_estimated: whether risks were estimated after this round.
        seconds: wall time of "choose", of "train" and its parts (`worker_pool.TRAIN`), and of "red_team".
        updates: the updates that the server received; ``None`` if the round is not recorded (`Training.record_every`).
        departure: the departure of the clients that left before this round; ``None`` if no trained client left the
            federation.
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
        """The cluster of each client, (n,) int64."""
        return self.plan.assignment

    @property
    def losses(self) -> Tensor | None:
        """The losses that decided the assignment, (n, K) float64; ``None`` if losses did not decide it."""
        return self.plan.losses
