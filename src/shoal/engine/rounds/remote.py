"""A round whose clients are on other machines: the part of a client, and the part of the server.

Both parts call what `Training.round` calls: the algorithm's plan, the cohort's trainer, the algorithm's update. A
client plans as the only client of its cohort; the server plans for all clients, from their replies.
"""

from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.formats import one_line
from shoal.engine.protocols import Algorithm, PlanRule
from shoal.engine.rounds.cohort_trainer import Rows, aggregated
from shoal.engine.rounds.round_plan import Aggregate, Cohort, RoundPlan, chosen_losses, neutral_preferences
from shoal.engine.rounds.training import Training
from shoal.engine.state import State


@dataclass(frozen=True)
class RemoteRounds:
    """The parts of an algorithm's rounds on clients' machines and on the server.

    Args:
        client: runs on each client, from the offered models, risks and directives and the client's own tensors of the
            state. The client's plan has one training with ``weights``, since a client sends one update.
        server: runs on the server, from the updates, the clients' choices and their numbers of examples.
        choice: decides which model a client trains: the "client", which is offered all; the "server", which offers it
            one; or neither, where clients train for all models and send their "shares" (`ClientUpdate.best`).
    """

    client: Algorithm
    server: Algorithm
    choice: Literal["client", "server", "shares"] = "client"


@runtime_checkable
class RunsRemotely(Protocol):
    """An algorithm whose rounds can be divided among several machines, so that it can be deployed."""

    def remote_rounds(self) -> RemoteRounds:
        """Return the part of each machine.

        Raises:
            InputError: the algorithm, as it is set, needs more of a client in a round than one update.
        """
        ...


def remote_rounds(algorithm: Algorithm) -> RemoteRounds:
    """Return the parts of an algorithm on several machines.

    Raises:
        InputError: the algorithm is not `RunsRemotely`, or not with its settings.

    Example:
        >>> import shoal
        >>> from shoal.engine import remote_rounds
        >>> remote_rounds(shoal.FedAvg()).client
        FedAvg()
    """
    require(
        isinstance(algorithm, RunsRemotely),
        f"{type(algorithm).__name__} does not run on several machines: it has no method 'remote_rounds'",
    )
    assert isinstance(algorithm, RunsRemotely)
    return algorithm.remote_rounds()


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """The reply of a client in a round.

    Args:
        cluster: index of the offered model that it chose.
        examples: number of its training examples.
        end: (P,) float32, its parameters after local training.
        best: (K,) int64, the number of its examples with the lowest loss on each offered model; None where the
            algorithm does not need it.
    """

    cluster: int
    examples: int
    end: Tensor
    best: Tensor | None = None
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class ReceivedUpdates:
    """The replies of the n clients of a round, in the order of their ids.

    Args:
        clients: (n,) int64, positions in the federation.
        sizes: (n,) int64, examples per client.
        best: (n, K) int64, the number of each client's examples with the lowest loss on each model; where clients sent
            their cluster alone, all of them count for its model.
        ends: (n, P) float32; or what gives the rows (u, P) at positions (u,), as from a file.
    """

    clients: Tensor
    sizes: Tensor
    best: Tensor
    ends: Tensor | Rows
    __repr__ = one_line


def client_round(training: Training, state: State, *, count_best: bool = False) -> tuple[ClientUpdate, State]:
    """Return a client's part of the round after ``state``, the choice of a model and its training.

    Args:
        training: a federation's training with this client alone, without the server's treatment of updates.
        state: the offered models and their risks and directives, with the client's own tensors.
        count_best: whether `ClientUpdate.best` is requested.

    Returns:
        The client's reply, and the state with its own tensors after the round.

    Raises:
        InputError: training diverged, or the algorithm does not have each client send one update.

    Example:
        >>> import torch, shoal.toy
        >>> from dataclasses import replace
        >>> from shoal.engine import ReceivedUpdates, client_round, server_round
        >>> federation, model, local = shoal.toy.one_group()
        >>> with shoal.Engine(model, backend="loop") as engine:
        ...     training = shoal.Training(federation, shoal.FedAvg(), local, engine, shoal.Stream(0))
        ...     state, clients = training.start(), torch.arange(3)
        ...     nodes = [replace(training, federation=federation.take(client[None])) for client in clients]
        ...     ends = torch.stack([client_round(node, state)[0].end for node in nodes])
        ...     sizes, best = torch.tensor([2] * 3), torch.tensor([[2]] * 3)
        ...     received = ReceivedUpdates(clients, sizes=sizes, best=best, ends=ends)
        ...     after, _ = server_round(training, state, received)
        ...     print(after.models.equal(training.round(state)[0].models))
        ...
        True
    """
    alone = torch.zeros(1, dtype=torch.int64)
    cohort = training.cohort_of(state, alone)
    plan = training.algorithm.plan(state, cohort)
    cluster = int(plan.assignment[0])
    require(
        sum(training.weights is not None for training in plan.trainings) == 1,
        "clients on other machines send one update each in a round, which this algorithm does not ask for",
    )
    # The weighted mean of one client, whose weight is exactly 1, is what it sends, bit for bit.
    weights = torch.zeros(len(state.models), 1, dtype=torch.float64)
    weights[cluster] = 1.0
    trainings = (replace(local, weights=None if local.weights is None else weights) for local in plan.trainings)
    plan = replace(plan, trainings=tuple(trainings))
    aggregate, _ = training.trainer(state, alone).train(state, plan)
    best = None
    if count_best:
        lowest = cohort.example_losses(state.models).argmin(dim=1)
        best = torch.bincount(lowest, minlength=len(state.models))
    update = ClientUpdate(cluster, int(cohort.sizes[0]), aggregate.models[cluster].clone(), best)
    return update, training.merged(state, cohort, plan, aggregate)


def server_plan(training: Training, state: State, clients: Tensor, sizes: Tensor, best: Tensor) -> RoundPlan:
    """Return the server's knowledge of the plan of ``clients`` (n,) after ``state``; see `ReceivedUpdates`."""
    return replace(training.algorithm.plan(state, _cohort(training, state, clients, sizes, best)), losses=None)


def server_round(training: Training, state: State, received: ReceivedUpdates) -> tuple[State, RoundPlan]:
    """Return the server's part of the round after ``state``: it merges the replies, and returns the new state and the
    plan.

    Without clients only the round changes. Risks are not estimated yet (`Training.with_risks`).
    """
    if not len(received.clients):
        return replace(state, round=state.round + 1), RoundPlan(torch.empty(0, dtype=torch.int64), ())
    cohort = _cohort(training, state, received.clients, received.sizes, received.best)
    plan = replace(training.algorithm.plan(state, cohort), losses=None)
    seeds = training.batches(state)("own").seeds(training.federation.ids[received.clients])
    aggregate = aggregated(state, plan, received.ends, seeds, received.sizes, training.update_filter)
    return training.merged(state, cohort, plan, aggregate), plan


def summed_round(
    training: Training, state: State, assignment: Tensor, sizes: Tensor, moves: Tensor
) -> tuple[State, RoundPlan]:
    """Carry out the server's part of a round from sums over clusters alone.

    The federation's first n clients stand for the round's unknown clients, in the order of their clusters.

    Args:
        training: the training of a federation with at least n clients.
        state: the state before the round.
        assignment: (n,) int64, the clients' clusters.
        sizes: (n,) int64, any numbers of examples whose sum per cluster is right.
        moves: (K, P) float64, the mean update of each cluster's clients, weighted as the algorithm weighs them; 0 for a
            cluster without clients.

    Raises:
        InputError: the algorithm needs more of each update than the sum.
    """
    count, clusters = len(assignment), len(state.models)
    if not count:
        return replace(state, round=state.round + 1), RoundPlan(torch.empty(0, dtype=torch.int64), ())
    best = torch.nn.functional.one_hot(assignment, clusters) * sizes[:, None]
    cohort = _cohort(training, state, torch.arange(count), sizes, best)
    plan = replace(training.algorithm.plan(state, cohort), losses=None)
    for rule in training.defenses:
        if isinstance(rule, PlanRule):
            plan = rule.adjust_plan(plan, sizes)
    (sent,) = plan.trainings
    require(
        sent.weights is not None and sent.keep is None,
        "the algorithm needs each client's update, but secure sums reveal none",
    )
    assert sent.weights is not None
    models = state.models.double() + sent.weights.sum(dim=1, keepdim=True) * moves
    return training.merged(state, cohort, plan, Aggregate(models.float(), (None,))), plan


def _cohort(training: Training, state: State, clients: Tensor, sizes: Tensor, best: Tensor) -> Cohort:
    """The cohort as the server knows it: of losses only which is the lowest, and nothing of the tolerated risks."""
    count = len(best)

    def example_losses(models: Tensor) -> Tensor:
        del models
        lowest = torch.repeat_interleave(torch.arange(best.shape[1]).repeat(count), best.flatten())
        return chosen_losses(lowest, best.shape[1])

    return Cohort(
        round=state.round + 1,
        clients=clients,
        sizes=sizes,
        preferences=neutral_preferences(count),
        local=training.local.at_round(state.round + 1),
        layout=training.engine.model.layout,
        scores=lambda *_: chosen_losses(best.argmax(dim=1), best.shape[1]),
        stream=training.stream("round", state.round + 1, "server"),
        example_scores=example_losses,
        # Sizes are what clients say: nothing of their sum is allocated.
        labels=torch.zeros(1, dtype=torch.int64).expand(int(sizes.sum())),
    )
