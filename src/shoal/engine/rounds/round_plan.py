"""The plan of a round: the local trainings of its clients, and the weights with which they are merged."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.representation import one_line
from shoal.data.shards import entries_of
from shoal.engine.engine import gather_params
from shoal.engine.local_sgd import LocalSGD
from shoal.engine.steps import LinearTerm, StepRule


@dataclass(frozen=True)
class TrainingPhase:
    """Some epochs of a local training, in which only some tensors are trained.

    A phase begins where the previous one ended, with its own batches and a new optimizer. Batch norm's statistics move
    in every phase. `shoal.algorithms.FedRep` trains its head, then its body.

    Args:
        epochs: at least 1.
        tensors: their names in the layout.
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
        step_rule: what a local step does with gradients; None: gradient descent, with ``linear_term``. With a rule,
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
        """The training of the clients at ``clients`` (u,); all n have ``sizes`` (n,) examples."""
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
        """The places in a vector (P,) of the tensors that are not shared."""
        return [] if self.shared is None else layout.slices({slot.name for slot in layout.slots} - self.shared)

    def shared_part(self, rows: Tensor, layout: Layout) -> Tensor:
        """The part (u, P) of ``rows`` (u, P), or (u, R) with a step rule, that is sent; 0 in personal tensors."""
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
        """The distinct sequences of local trainings that clients take, as `LocalTraining.local`."""
        participants = [training.participants() for training in self.trainings]
        sequences = torch.stack(participants, dim=1).unique(dim=0).tolist() if participants else []
        return [
            [training.local for training, is_taken in zip(self.trainings, sequence, strict=True) if is_taken]
            for sequence in sequences
        ]

    def clusters(self, index: int) -> Tensor:
        """(n,) int64, the cluster whose model each client moves in one of the trainings, and whose directives count.

        It is the client's own, unless clients send several updates: then each update moves another model.
        """
        weights = self.trainings[index].weights
        updates = sum(training.weights is not None for training in self.trainings)
        return self.assignment if weights is None or updates == 1 else weights.argmax(dim=0)
