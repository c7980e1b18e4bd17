"""Rounds with clients on other machines, divided into the client's part and the server's part.

Both parts use the functions of a simulated round (`Training.round`). A client plans as the only client of its cohort,
and the server plans for all clients from their replies.
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
    """The parts of an algorithm's rounds that run on clients and on the server.

    Args:
        client: the algorithm that runs on each client, given the offered models, risks and directives. The client's
            plan has one training with ``weights``, because a client sends one update.
        server: the algorithm that runs on the server, given the updates, the clients' choices and their numbers of
            examples.
        choice: who assigns models to clients. With "client", clients choose among all models. With "server", the server
            offers each client one model. With "shares", clients train all models and send how many of their examples
            fit each model best (`ClientUpdate.best`).
    """

    client: Algorithm
    server: Algorithm
    choice: Literal["client", "server", "shares"] = "client"


@runtime_checkable
class RunsRemotely(Protocol):
    """An algorithm that can be deployed, because its rounds can be divided among several machines."""

    def remote_rounds(self) -> RemoteRounds:
        """Return the parts of the rounds that run on clients and on the server.

        Raises:
            InputError: the algorithm's settings need more than one update per client and round.
        """
        ...


def remote_rounds(algorithm: Algorithm) -> RemoteRounds:
    """Return the parts of an algorithm's rounds that run on clients and on the server.

    Raises:
        InputError: the algorithm cannot be deployed with its settings.

    Example:
        >>> import shoal
        >>> from shoal.engine import remote_rounds
        >>> remote_rounds(shoal.FedAvg()).client
        FedAvg()
    """
    require(
        isinstance(algorithm, RunsRemotely),
        f"{type(algorithm).__name__} cannot run on several machines, because it has no method 'remote_rounds'",
    )
    assert isinstance(algorithm, RunsRemotely)
    return algorithm.remote_rounds()


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """The reply of a client in a round.

    Args:
        cluster: the index of the offered model that the client chose.
        examples: the number of the client's training examples.
        end: the client's parameters after local training, (P,) float32.
        best: the number of the client's examples with the lowest loss on each offered model, (K,) int64; ``None`` if
            the algorithm does not need these numbers.
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
        clients: the clients' positions in the federation, (n,) int64.
        sizes: the number of examples per client, (n,) int64.
        best: the number of each client's examples with the lowest loss on each model, (n, K) int64. A client that sent
            only its cluster counts with all examples for the cluster's model.
        ends: the clients' parameters, (n, P) float32, as a tensor or as `Rows` of a file.
    """

    clients: Tensor
    sizes: Tensor
    best: Tensor
    ends: Tensor | Rows
    __repr__ = one_line


def client_round(training: Training, state: State, *, count_best: bool = False) -> tuple[ClientUpdate, State]:
    """Return a client's reply in the round after ``state``, and the state after the client's local training.

    Args:
        training: the training of a federation with only this client, without the server's treatment of updates.
        state: the offered models, risks and directives, with the client's tensors.
        count_best: whether the server requests `ClientUpdate.best`.

    Returns:
        The client's reply, and the state with the client's new tensors.

    Raises:
        InputError: training diverged, or the algorithm does not request exactly one update per client.

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
        "deployed clients must send exactly one update per round; choose another algorithm",
    )
    # With weight 1, the mean is the client's parameters, bit for bit.
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
    """Return the server's plan of ``clients`` (n,) in the round after ``state``.

    ``sizes`` and ``best`` are described in `ReceivedUpdates`.
    """
    return replace(training.algorithm.plan(state, _cohort(training, state, clients, sizes, best)), losses=None)


def server_round(training: Training, state: State, received: ReceivedUpdates) -> tuple[State, RoundPlan]:
    """Aggregate the replies of the round after ``state``, and return the new state and the plan.

    If no client replied, only the number of the round changes. `Training.with_risks` estimates the risks of the new
    state.
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
    """Return the new state and the plan of a round, computed from one sum of updates per cluster.

    The federation's first n clients represent the round's unknown clients, in the order of their clusters.

    Args:
        training: the training of a federation with at least n clients.
        assignment: the clients' clusters, (n,) int64.
        sizes: assumed numbers of examples per client, with the correct sum per cluster, (n,) int64.
        moves: the mean update of each cluster's clients, with the algorithm's weights, (K, P) float64; 0 for a cluster
            without clients.

    Raises:
        InputError: the algorithm needs individual updates.
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
        "secure aggregation hides each client's update, which this algorithm needs; choose another algorithm",
    )
    assert sent.weights is not None
    models = state.models.double() + sent.weights.sum(dim=1, keepdim=True) * moves
    return training.merged(state, cohort, plan, Aggregate(models.float(), (None,))), plan


def _cohort(training: Training, state: State, clients: Tensor, sizes: Tensor, best: Tensor) -> Cohort:
    """Return the server's view of the cohort: each client's best model, but no losses and no tolerated risks."""
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
        # Clients report sizes, so the server must not allocate memory for their sum.
        labels=torch.zeros(1, dtype=torch.int64).expand(int(sizes.sum())),
    )
