"""Federations whose groups see the same inputs and call the classes by other names, trained on a linear model."""

import torch

from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.engine import Engine, LocalSGD, State, Training
from shoal.metrics.group_metrics import adjusted_rand_index
from shoal.models import Logistic, Model

RELABELLED = [[0, 1, 2, 3], [1, 0, 2, 3], [2, 3, 0, 1], [3, 2, 0, 1]]
"""What four groups call the classes: the first two, and the last two, disagree on half of them, others on all."""

TWO = [0, 2, 0, 2, 2, 0]
FOUR = [0, 2, 3, 1, 2, 3, 0, 1, 3, 1, 2, 0]
"""Groups of clients, mixed, so that positions within a cluster are not those in the federation."""

FULL = LocalSGD(steps=5, batch_size="all", learning_rate=0.5)


LINEAR = Model(lambda: Logistic(8, 4))


def relabelled(groups: list[int], count: int = 40) -> Federation:
    """Clients whose examples look alike, with the labels of their groups."""
    draw, clients = torch.Generator().manual_seed(1), []
    for group in groups:
        kind = torch.randint(0, 4, (count,), generator=draw)
        x = 0.3 * torch.randn(count, 8, generator=draw)
        x[torch.arange(count), kind] += 1.5
        clients.append((x, torch.tensor(RELABELLED[group])[kind]))
    return Federation.from_tensors(clients, test=clients[0], classes=4)


def trained(federation: Federation, algorithm, rounds: int, state: State | None = None, **others) -> list[State]:
    with Engine(LINEAR, threads=1) as engine:
        training = Training(engine.prepare(federation), algorithm, FULL, engine, Stream(3), **others)
        first = training.start() if state is None else state
        return [first, *(each for each, _ in training.rounds(first, first.round + rounds))]


def ari(state: State, groups: list[int]) -> float:
    return adjusted_rand_index(state.assignment.numpy(), torch.tensor(groups).numpy())
