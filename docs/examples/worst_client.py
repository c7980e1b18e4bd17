"""A metric: the accuracy of the client that fares worst, in the federation, in each group and with each model."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.audit.measurement import FinishedTraining
from shoal.metrics import Metric
from shoal.metrics.summary import Summary


@dataclass(frozen=True)
class WorstClient:
    """Of each client its model's accuracy on test examples of its group. Pages call it as ``metrics`` says."""

    name: ClassVar[str] = "worst_client"
    title: ClassVar[str] = "accuracy of the worst client"
    metrics: ClassVar[tuple[Metric, ...]] = (Metric(name, title, "The lowest of its clients'.", "percent", "higher"),)

    def measure(self, finished: FinishedTraining) -> Summary:
        """``worst_client``, ``worst_client.<group>`` and ``clusters.<k>.worst_client``."""
        clients = finished.clients
        by_group, by_model = (clients.groupby(column)["accuracy"].min() for column in ("group", "cluster"))
        return Summary(
            overall={self.name: float(clients["accuracy"].min())},
            by_group={str(group): {self.name: float(value)} for group, value in by_group.items()},
            by_cluster={int(k): {self.name: float(value)} for k, value in by_model.items()},
        )
