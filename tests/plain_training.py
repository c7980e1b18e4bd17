"""Rounds of a federation, and local training written plainly: batch by batch, by autograd and `torch.optim.SGD`."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.engine import Algorithm, DeployedModels, Engine, LocalSGD, RoundReport, State, Training
from shoal.models import Model

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
SEED = 5

Batch = tuple[Tensor, Tensor]


def played(
    model: Model, federation: Federation, algorithm: Algorithm, local: LocalSGD, rounds: int = 3, *,
    threads: int = 1, backend: str | None = None, seed: int = SEED, **options,
) -> tuple[list[State], list[RoundReport], DeployedModels]:  # fmt: skip
    """The states after each round, the initial one first; the reports; and what clients use in the end."""
    with Engine(model, threads=threads, backend=backend) as engine:
        training = Training(engine.prepare(federation), algorithm, local, engine, Stream(seed), **options)
        first = training.start()
        after = list(training.rounds(first, rounds))
        states = [first, *(state for state, _ in after)]
        return states, [report for _, report in after], training.deployed_models(states[-1])[0]


def batches(federation: Federation, i: int, local: LocalSGD, number: int = 1, phase: int | None = None) -> list[Batch]:
    """Client i's batches in a round, or in one phase of it."""
    clients = federation.clients
    mine, stream = clients.indices_of(i), Stream(SEED)("round", number, "batches")
    randomness = local.randomness(clients, federation.ids, stream if phase is None else stream("phase", phase))
    whole = [torch.arange(len(mine))] * local.steps_of(len(mine))
    parts = [
        mine[part]
        for order in [order[: len(mine)] for order in randomness.orders[i]] or whole
        for part in order.split(local.batch(len(mine)))
    ]
    return [(clients.x[part], clients.y[part]) for part in parts]


def losses_of(model: Model, theta: Tensor, batch: Batch) -> Tensor:
    """The loss of a model on each example of a batch."""
    return model.loss(torch.func.functional_call(model.network(), model.layout.views(theta), (batch[0],)), batch[1])


def gradient(
    model: Model, theta: Tensor, batch: Batch, decay: float = 0.0, term: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Of the mean loss on a batch with weight decay, plus a term of the objective."""
    theta = theta.clone().requires_grad_(True)
    objective = losses_of(model, theta, batch).mean() + decay / 2 * theta.square().sum()
    return torch.autograd.grad(objective if term is None else objective + term(theta), theta)[0]


def sgd(
    model: Model, start: Tensor, batches: Sequence[Batch], local: LocalSGD, *,
    weights: Tensor | None = None, pull: Callable[[Tensor], Tensor] | None = None, trained: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Local training of mean (weighted) losses and a further objective, perhaps of ``trained`` (P,) entries alone."""
    theta = nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([theta], local.learning_rate, local.momentum)
    for batch in batches:
        losses = losses_of(model, theta, batch)
        objective = (losses if weights is None else weights * losses).mean()
        optimizer.zero_grad()
        (objective if pull is None else objective + pull(theta)).backward()
        if trained is not None:
            theta.grad *= trained
        optimizer.step()
    return theta.detach()
