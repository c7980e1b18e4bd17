"""Clustering by a known column, such as the sector, region or device of a client."""

from typing import ClassVar, Literal

import torch

from shoal.algorithms.clusters.one_shot import FixedClusters
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import settings
from shoal.data.federation import Federation
from shoal.engine import Engine, LocalSGD, State


@settings
class ByGroup(FixedClusters):
    """FedAvg within each group of the federation, with one model per group.

    Assignments reveal only the clients' groups. With one group, the result equals that of `FedAvg` bit for bit.

    Args:
        weighting: the clients' weights in a group's average: their numbers of "examples", or "equal".

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> clients, groups = [one, one, other], ["north", "north", "south"]
        >>> test = shoal.Examples([[-1.0], [1.0]], [0, 0], ["north", "south"])
        >>> federation = shoal.Federation.from_tensors(clients, test=test, groups=groups)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> result = shoal.simulate(federation, model, shoal.ByGroup(), shoal.LocalSGD(), rounds=3)
        >>> result.clients["cluster"].tolist()
        [0, 0, 1]
    """

    weighting: Literal["examples", "equal"] = "examples"
    name: Literal["by-group"] = "by-group"
    title: ClassVar[str] = "One model per group"
    trains_clusters_alone: ClassVar[bool] = True
    membership_barrier: ClassVar[str] = ""
    key: ClassVar[str] = "by-group.group"

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        require(
            not federation.row_groups,
            "by-group needs one group per client (got clients with examples of several groups); choose another column",
        )
        present, cluster = torch.unique(federation.group, return_inverse=True)
        return self.init_clusters(super().init(engine, federation, local, stream), cluster, len(present))
