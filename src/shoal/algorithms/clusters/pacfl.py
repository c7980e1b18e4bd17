"""PACFL: clusters of clients with similar data subspaces, computed once before training."""

import logging
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.one_shot import FixedClusters, canonical_labels
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Positive, PositiveFloat, settings
from shoal.data.federation import Federation
from shoal.data.shards import Shards
from shoal.engine import Engine, LocalSGD, State

LOG = logging.getLogger(__name__)


@settings
class PACFL(FixedClusters):
    """Clusters by the principal angles between the subspaces of the clients' data, then FedAvg per cluster.

    Each client sends the first p left singular vectors of its data matrix (features by examples). The distance of two
    clients is the smallest principal angle between their subspaces, or the sum of all angles. Hierarchical clustering
    merges clusters up to the distance ``threshold``, which determines the number of clusters. With one cluster the
    result equals that of `FedAvg`.

    Unlike in the authors' code, the angles are exact principal angles, and the singular vectors are computed from all
    examples of a client. The authors' thresholds therefore do not apply.

    The singular vectors reveal directions of a client's data to the server, and no defence of local training protects
    them. PACFL refuses DP-SGD, because the epsilon would not cover the singular vectors. PACFL cannot find groups that
    differ only in labels.

    Args:
        threshold: the largest distance at which clusters are merged, in degrees. A suitable threshold is above the
            distances within groups and below the distances between groups.
        vectors: p, the number of singular vectors per client (3 to 5 in the authors' code).
        distance: the distance of two clients: the "smallest" principal angle, or the "sum" of all angles.
        linkage: the linkage of the hierarchical clustering.

    Source: Vahidian et al. 2022, arXiv:2209.10526. The implementation follows notes on the paper and the authors' code
    (MMorafah/PACFL), because the paper's text was not available.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0, 0.0], [1.0, 0.0]], [0, 1]), ([[0.0, -1.0], [0.0, 1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one)
        >>> for threshold in (20.0, 100.0):
        ...     algorithm = shoal.PACFL(threshold=threshold, vectors=1)
        ...     print(threshold, algorithm.clusters_of(federation.clients, federation.ids).tolist())
        ...
        20.0 [0, 0, 1, 1]
        100.0 [0, 0, 0, 0]
    """

    threshold: PositiveFloat = 20.0
    vectors: Positive = 3
    distance: Literal["smallest", "sum"] = "smallest"
    linkage: Literal["average", "complete", "single"] = "average"
    name: Literal["pacfl"] = "pacfl"
    title: ClassVar[str] = "PACFL"
    key: ClassVar[str] = "pacfl.cluster"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        local.check_only_gradients_sent("PACFL's singular vectors of their examples")

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """Create the initial state; raise `InputError` if the inputs are texts."""
        require(federation.kind != "texts", "PACFL needs images or tables (got texts)")
        cluster = self.clusters_of(federation.clients, federation.ids)
        count = int(cluster.max()) + 1
        LOG.info("PACFL finds %d clusters in the clients' data", count)
        return self.init_clusters(super().init(engine, federation, local, stream), cluster, count)

    def clusters_of(self, clients: Shards, ids: Tensor) -> Tensor:
        """Return each client's cluster (N,) int64, numbered in order of the clients' ``ids`` (N,)."""
        from scipy.cluster import hierarchy  # noqa: PLC0415 - takes half a second to import

        if len(clients) == 1:
            return torch.zeros(1, dtype=torch.int64)
        # In the order of ids, so that the order of clients does not break ties.
        order = torch.argsort(ids)
        bases = [basis(clients.x[clients.indices_of(i)].flatten(1), self.vectors) for i in order.tolist()]
        pairs = torch.triu_indices(len(bases), len(bases), offset=1).T.tolist()
        angles = [principal_angles(bases[i], bases[j]) for i, j in pairs]
        distances = torch.stack([angle[0] if self.distance == "smallest" else angle.sum() for angle in angles])
        cluster = torch.empty(len(bases), dtype=torch.int64)
        labels = hierarchy.fcluster(hierarchy.linkage(distances.numpy(), self.linkage), self.threshold, "distance")
        cluster[order] = canonical_labels(torch.from_numpy(labels))
        return cluster


def basis(examples: Tensor, vectors: int) -> Tensor:
    """Compute the first left singular vectors (F, p) float64 of the data matrix of ``examples`` (m, F)."""
    left, _, _ = torch.linalg.svd(examples.cpu().double().T, full_matrices=False)
    return left[:, :vectors]


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    """Compute the principal angles (min(p, q),) between orthonormal bases (F, p) and (F, q), in degrees, ascending.

    >>> quarter = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> rotated = torch.tensor([[0.0], [0.5**0.5], [0.5**0.5]])
    >>> principal_angles(quarter.double(), rotated.double()).round()
    tensor([45.], dtype=torch.float64)
    """
    return torch.linalg.svdvals(first.T @ second).clamp(max=1).acos().rad2deg()
