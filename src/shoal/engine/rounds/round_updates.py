"""The updates of a round as the server receives them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.representation import one_line


@dataclass(frozen=True, eq=False)
class RoundUpdates:
    """What an honest-but-curious server sees of a round: its models, and who sent which update.

    An update is what a client sent minus the model of its cluster, before the server's own filter: the client's
    defences (also `LaplaceNoise`) have changed it already, the server's (`NormClipping`) come after whoever looks at it
    there. So ``models[assignment] + updates`` are the parameters that the clients sent.

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


class UpdateCollector:
    """Copies what clients send while they train; threads may add at once, each its own clients.

    Args:
        models: (K, P), before the round.
        clients: (n,) int64, ids of the cohort.
        clusters: (n,) int64 each, the cluster whose model each client moves, of every local training that is sent.
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
        """The updates of round ``number``, once everybody who trained has sent."""
        sent = self._sent
        clients, assignment = self._clients[sent], self._assignment[sent]
        return RoundUpdates(number, clients, assignment, self._models, self._ends[sent] - self._models[assignment])
