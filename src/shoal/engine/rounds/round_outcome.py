"""The outcome of a round: merged models, the updates that the server received, deployed models and a report."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from shoal.core.formats import one_line
from shoal.engine.local_sgd import LocalSGD
from shoal.engine.rounds.round_plan import RoundPlan
from shoal.engine.state import ClientVectors


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
        >>> rows = ClientVectors.same(torch.zeros(2), 3).replaced(torch.tensor([2]), torch.ones(1, 2))
        >>> models = PersonalModels.from_rows(rows, torch.tensor([2, 0]))
        >>> len(models), models[0], models[1:].tensor(), models.tensor().shape
        (2, tensor([1., 1.]), tensor([[0., 0.]]), torch.Size([2, 2]))
    """

    count: int
    rows: Callable[[Tensor], Tensor]

    @staticmethod
    def from_rows(rows: ClientVectors, clients: Tensor) -> "PersonalModels":
        """The models of the clients at positions (n,) int64 of ``rows``."""
        return PersonalModels(len(clients), lambda some: rows[clients[some]])

    def __len__(self) -> int:
        return self.count

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> "PersonalModels": ...
    def __getitem__(self, client: "int | slice") -> "Tensor | PersonalModels":
        """(P,), the model of one client; or those of some, of which none is made yet."""
        if isinstance(client, slice):
            some = torch.arange(self.count)[client]
            return PersonalModels(len(some), lambda positions: self.rows(some[positions]))
        return self.rows(torch.tensor([client]))[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[client] for client in range(self.count))

    def tensor(self) -> Tensor:
        """All models at once: (n, P)."""
        return self.rows(torch.arange(self.count))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.count} clients)"


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
        """The updates of round ``number``, from what the clients with ``ids`` (n,) sent (`Aggregate.sent`)."""
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
class RoundReport:
    """The report of a round.

    Args:
        cohort: (n,) int64, positions of the clients that took part.
        plan: of the round.
        risks_estimated: whether risks were estimated at the end of this round.
        seconds: wall time of "choose", of "train" and its parts (`round_clock.TRAIN`), and of "red_team".
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
