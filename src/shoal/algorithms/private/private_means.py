"""Clusters from noisy means of the clients' inputs, with an epsilon."""

from typing import ClassVar

import torch
from torch import Tensor

from shoal.algorithms.clusters.one_shot import FixedClusters, k_means_by_id
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import NonNegativeFloat, Positive, PositiveFloat, settings
from shoal.data import Federation
from shoal.data.shards import Shards
from shoal.engine import Engine, LocalSGD, State


@settings
class PrivateMeans(FixedClusters):
    """FedAvg within clusters that k-means finds from noisy means of the clients' inputs.

    Client i with n_i inputs sends ``m_i = (sum_j x_j min(1, C / |x_j|) + N(0, (sigma C)^2 I)) / n_i`` once, before
    training. If the number of records is public, the noisy mean is a Gaussian mechanism with noise multiplier sigma for
    adding or removing one record. A client's cluster depends only on the noisy means, so the reported epsilon covers
    the assignment.

    Means of feature vectors of length 1 (see `Features`) separate groups at a smaller epsilon than means of pixels.

    Args:
        clusters: K, the number of clusters.
        max_norm: the largest norm C of an input; longer inputs are scaled down to this norm.
        noise_multiplier: the noise multiplier sigma; 0 adds no noise and gives no guarantee.

    Example:
        >>> import shoal
        >>> low, high = ([[0.1], [0.2]], [0, 1]), ([[0.8], [0.9]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([low, low, high, high], test=low)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> algorithm = shoal.PrivateMeans(clusters=2, noise_multiplier=0.1)
        >>> shoal.simulate(federation, model, algorithm, shoal.LocalSGD(), rounds=1).clients["cluster"].tolist()
        [0, 0, 1, 1]
    """

    clusters: Positive = 2
    max_norm: PositiveFloat = 1.0
    noise_multiplier: NonNegativeFloat = 2.0
    name: ClassVar[str] = "private-means"
    title: ClassVar[str] = "Private means"
    key: ClassVar[str] = "private_means.cluster"

    @property
    def choice_noise(self) -> float:
        return self.noise_multiplier

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """Create the initial state; raise `InputError` if inputs are texts, or if clients are fewer than clusters."""
        require(federation.kind != "texts", "PrivateMeans needs images or tables (got texts)")
        require(
            self.clusters <= len(federation),
            f"'clusters' must be at most the number of clients, {len(federation)} (got {self.clusters})",
        )
        means = self.means(federation.clients, federation.ids, stream("means"))
        cluster = k_means_by_id(means, federation.ids, self.clusters, stream("k-means"))
        return self.init_clusters(super().init(engine, federation, local, stream), cluster, self.clusters)

    def means(self, clients: Shards, ids: Tensor, stream: Stream) -> Tensor:
        """Compute the noisy mean inputs (N, D) float64; a client's noise depends on the stream and the client's id."""
        rows = []
        for position, client in enumerate(ids.tolist()):
            x = clients.x[clients.indices_of(position).to(clients.x.device)].flatten(1).cpu().double()
            norms = x.norm(dim=1, keepdim=True).clamp(min=1e-12)
            noise = torch.randn(x.shape[1], generator=stream(client).generator(), dtype=torch.float64)
            clipped = x * (self.max_norm / norms).clamp(max=1)
            rows.append((clipped.sum(dim=0) + self.noise_multiplier * self.max_norm * noise) / max(1, len(x)))
        return torch.stack(rows)
