"""PACFL: clusters of clients whose data span similar subspaces, computed once."""

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
    """Clusters by subspace: client i sends U_i, the first p left singular vectors of its data, and close ones cluster.

    The data are a matrix of features by examples. The principal angles of two clients are ``arccos s`` for the singular
    values s of ``U_i' U_j``; their distance is the smallest angle or the sum of all, in degrees. Hierarchical
    clustering merges clusters up to the distance ``threshold``, which decides their number. FedAvg trains a model per
    cluster, all from one initial model. With one cluster the result is FedAvg's.

    The authors' code takes the smallest arccos of the *entries* of ``U_i' U_j``, which depends on the basis vectors and
    their signs, and p vectors per label, which are not orthogonal. Its thresholds do not apply here. Ours: U_i is of
    all examples of a client, with fewer than p vectors if it has fewer examples; average linkage weighs by clients, as
    in scipy.

    U_i shows the server directions of a client's data, and no defence of local training acts on it; DP-SGD is refused,
    since its epsilon would not hold. Groups that differ only in labels are not found.

    Args:
        threshold: beta, in degrees; larger values give fewer clusters. It must lie between the distances within and
            across groups, which depend on the data; the log has the number of clusters.
        vectors: p (the authors: 3 to 5).
        distance: the "smallest" principal angle, or the "sum" of all.
        linkage: the linkage of the hierarchical clustering: "average", "complete" or "single".

    Source: Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin 2022, arXiv:2209.10526 (AAAI 2023): the
    signatures, the proximity matrix of principal angles and its hierarchical clustering, without its clients that join
    later. The paper's text was not at hand: these and the settings are from notes on it and from the authors' code
    (MMorafah/PACFL).

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
        """Cluster the clients and start all models at one random model.

        Raises:
            InputError: texts, whose words are numbers that span nothing.
        """
        require(federation.kind != "texts", "PACFL needs inputs that are measured, such as images or rows; got texts")
        cluster = self.clusters_of(federation.clients, federation.ids)
        count = int(cluster.max()) + 1
        LOG.info("PACFL finds %d clusters in the clients' data", count)
        return self.init_clusters(super().init(engine, federation, local, stream), cluster, count)

    def clusters_of(self, clients: Shards, ids: Tensor) -> Tensor:
        """Return each client's cluster (N,) int64, numbered by the smallest of its clients' ``ids`` (N,)."""
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
    """Return the first p left singular vectors (F, p) float64 of the data matrix of ``examples`` (m, F)."""
    left, _, _ = torch.linalg.svd(examples.cpu().double().T, full_matrices=False)
    return left[:, :vectors]


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    """Return the angles (min(p, q),) in degrees, ascending, between two orthonormal bases (F, p) and (F, q).

    >>> quarter = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> rotated = torch.tensor([[0.0], [0.5**0.5], [0.5**0.5]])
    >>> principal_angles(quarter.double(), rotated.double()).round()
    tensor([45.], dtype=torch.float64)
    """
    return torch.linalg.svdvals(first.T @ second).clamp(max=1).acos().rad2deg()
