"""What the clients of a round do: who trains what, and with which weights it is merged."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.representation import one_line
from shoal.data.shards import entries_of
from shoal.engine.linear_term import LinearTerm
from shoal.engine.local_sgd import LocalSGD
from shoal.engine.step_rule import StepRule


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

    def kept_places(self, layout: Layout) -> list[slice]:
        """The places in a vector (P,) of the tensors that clients do not send."""
        return [] if self.sent is None else layout.slices({slot.name for slot in layout.slots} - self.sent)

    def sent_part(self, rows: Tensor, layout: Layout) -> Tensor:
        """Of ``rows`` (u, P), or (u, R) of a rule, what clients send (u, P): 0 in the tensors that they keep."""
        part = rows[:, : layout.size].clone()
        for place in self.kept_places(layout):
            part[:, place] = 0
        return part


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

    def trainings_of_clients(self) -> list[list[LocalSGD | None]]:
        """What one client after another trains, as `LocalTraining.local` says, without repetitions."""
        everybody = torch.ones(len(self.assignment), dtype=torch.bool)
        trains = [everybody if each.trains is None else each.trains for each in self.trainings]
        kinds = torch.stack(trains, dim=1).unique(dim=0).tolist() if trains else []
        return [[each.local for each, mine in zip(self.trainings, kind, strict=True) if mine] for kind in kinds]

    def clusters(self, index: int) -> Tensor:
        """(n,) int64, the cluster whose model each client moves in one of the trainings; its directives count there.

        It is the client's own, but where clients send several updates each moves a model of its own.
        """
        sent, weights = [each for each in self.trainings if each.weights is not None], self.trainings[index].weights
        return self.assignment if weights is None or len(sent) == 1 else weights.argmax(dim=0)
