"""The outcome of a round: merged models, the updates that the server received, deployed models and a report."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.representation import one_line
from shoal.engine.local_sgd import LocalSGD
from shoal.engine.personal_models import PersonalModels
from shoal.engine.rounds.round_plan import RoundPlan


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The outcome of a round's local trainings.

    Args:
        models: (K, P), moved by the aggregation weights of all trainings.
        kept: per training the part of the updates that is kept (n, d), or None.

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
        models: (S, P): the K models of the clusters, or one personal model per client, possibly computed on access.
        model: (n,) int64, the index of each client's model.
        assignment: (n,) int64, the cluster of each client.
        fine_tuning: local trainings that every client takes from its model, in order, on all its examples, without
            sending anything; None stands for the run's. `Training.deployed` performs them.
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
        >>> import shoal
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     setting = (federation, shoal.FedAvg(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     training = shoal.Training(*setting, record_every=1)
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


@dataclass(frozen=True, eq=False)
class RoundReport:
    """The report of a round.

    Args:
        cohort: (n,) int64, positions of the clients that took part.
        plan: of the round.
        risks_estimated: whether risks were estimated at the end of this round.
        seconds: wall time of "choose", "train" and "red_team".
        updates: received by the server; None in a round that is not recorded (`Training.record_every`).
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


class UpdateCollector:
    """Copies what clients send while they train; threads may add concurrently, each its own clients.

    Args:
        models: (K, P), before the round.
        clients: (n,) int64, ids of the cohort.
        clusters: for each local training that is sent, (n,) int64, the cluster whose model each client moves.
    """

    def __init__(self, models: Tensor, clients: Tensor, clusters: Sequence[Tensor]) -> None:
        self._models = models.cpu()
        self._clients = clients.repeat(len(clusters))
        self._assignment = torch.cat([*clusters, torch.empty(0, dtype=torch.int64)])
        self._ends = torch.zeros(len(self._clients), models.shape[1])
        self._sent = torch.zeros(len(self._clients), dtype=torch.bool)

    def add(self, rows: Tensor, ends: Tensor) -> None:
        """Copy the parameters ``ends`` (u, P) that were sent; ``rows`` (u,) count the cohort once for each training."""
        self._ends[rows] = ends.to(self._ends)
        self._sent[rows] = True

    def updates(self, number: int) -> RoundUpdates:
        """The updates of round ``number``, after all of its trainings."""
        sent = self._sent
        clients, assignment = self._clients[sent], self._assignment[sent]
        return RoundUpdates(number, clients, assignment, self._models, self._ends[sent] - self._models[assignment])
