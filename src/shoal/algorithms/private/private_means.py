"""Clusters from noisy means of the clients' inputs, sent once; the choice of a cluster has an epsilon."""

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
    """FedAvg within clusters by k-means of noisy means of clients' inputs, sent once.

    Client i with n_i inputs sends ``m_i = (sum_j x_j min(1, C / |x_j|) + N(0, (sigma C)^2 I)) / n_i``. This is a
    Gaussian mechanism with noise multiplier sigma for every view, for one record present or left out with n_i known.
    Nothing else of a client's data decides its cluster, so the reported epsilon covers it. All models begin at the same
    parameters.

    Means of pixels separate groups badly; means of `Features` at unit length separate rotated groups at a small
    epsilon.

    Args:
        clusters: K, the number of models.
        max_norm: C, the largest norm of an input; longer inputs are scaled.
        noise_multiplier: sigma; 0: no noise, and no guarantee.

    Source: ours; R-DPCFL (`RDPCFL`) clusters noisy updates.

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
        """The noise multiplier of the Gaussian mechanism that assigns a client to its cluster."""
        return self.noise_multiplier

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """Cluster the clients and start all models at one random model.

        Raises:
            InputError: texts, whose words have no mean, or fewer clients than clusters.
        """
        require(federation.kind != "texts", "private means are of inputs that are measured, not of texts")
        require(
            self.clusters <= len(federation),
            f"'clusters' must be at most the federation's {len(federation)} clients; got {self.clusters}",
        )
        means = self.means(federation.clients, federation.ids, stream("means"))
        cluster = k_means_by_id(means, federation.ids, self.clusters, stream("k-means"))
        return self.init_clusters(super().init(engine, federation, local, stream), cluster, self.clusters)

    def means(self, clients: Shards, ids: Tensor, stream: Stream) -> Tensor:
        """Return the noisy mean (N, D) float64 of each client; its noise depends on the stream and its id."""
        rows = []
        for position, client in enumerate(ids.tolist()):
            x = clients.x[clients.indices_of(position).to(clients.x.device)].flatten(1).cpu().double()
            norms = x.norm(dim=1, keepdim=True).clamp(min=1e-12)
            noise = torch.randn(x.shape[1], generator=stream(client).generator(), dtype=torch.float64)
            clipped = x * (self.max_norm / norms).clamp(max=1)
            rows.append((clipped.sum(dim=0) + self.noise_multiplier * self.max_norm * noise) / max(1, len(x)))
        return torch.stack(rows)
