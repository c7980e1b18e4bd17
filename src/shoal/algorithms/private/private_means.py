"""Clusters from noisy means of the clients' inputs, sent once; the choice of a cluster has an epsilon."""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from shoal.algorithms.clusters.one_shot import canonical_labels
from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Derived
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import NonNegativeFloat, Positive, PositiveFloat, settings
from shoal.data import Federation
from shoal.data.shards import Shards
from shoal.engine import (
    Cohort,
    Deployed,
    Engine,
    LocalSGD,
    LocalTraining,
    RoundPlan,
    State,
    averaging_weights,
)


@settings
class PrivateMeans(Derived):
    """Clients send a noisy mean of their inputs once; the server clusters these by k-means, and averages by cluster.

    Client i with n_i inputs sends ``m_i = (sum_j x_j min(1, C / |x_j|) + N(0, (sigma C)^2 I)) / n_i``, which is a
    Gaussian mechanism of noise multiplier sigma towards everybody, for a record that is present or left out while
    n_i is known. Nothing else of a client's data decides its cluster, so the epsilon that is stated covers it. All
    models begin at the same parameters.

    Means of pixels say little; those of `Features`, at unit length, tell rotated groups apart at a small epsilon.

    Args:
        clusters: K, the number of models.
        max_norm: C, to which longer inputs are scaled.
        noise_multiplier: sigma; 0: no noise, and no guarantee.

    Of ours; relatives are R-DPCFL (`RDPCFL`, clusters from noisy updates) and PINA (arXiv:2604.20596, from noisy
    sketches of adapters).

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

    @property
    def inner(self) -> FedAvg:
        """FedAvg, which moves each model to the average."""
        return FedAvg()

    @property
    def choice_noise(self) -> float:
        """The noise multiplier of the one Gaussian mechanism by which a client's data decide its cluster."""
        return self.noise_multiplier

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """One random model for each cluster, the same for all, and each client's cluster.

        Raises:
            InputError: texts, whose words have no mean, or fewer clients than clusters.
        """
        require(federation.kind != "texts", "private means are of inputs that are measured, not of texts")
        require(
            self.clusters <= len(federation),
            f"'clusters' must be at most the federation's {len(federation)} clients; got {self.clusters}",
        )
        state = super().init(engine, federation, local, stream)
        means = self.means(federation.clients, federation.ids, stream("means"))
        begun = State.initial(state.models.repeat(self.clusters, 1), len(federation))
        cluster = self._clusters(means, federation.ids, stream("k-means"))
        return replace(begun, clients={"private_means.cluster": cluster})

    def means(self, clients: Shards, ids: Tensor, stream: Stream) -> Tensor:
        """(N, D) float64, what each client sends; its noise depends on the stream and its id."""
        rows = []
        for position, client in enumerate(ids.tolist()):
            x = clients.x[clients.owned(position).to(clients.x.device)].flatten(1).cpu().double()
            norms = x.norm(dim=1, keepdim=True).clamp(min=1e-12)
            noise = torch.randn(x.shape[1], generator=stream(client).generator(), dtype=torch.float64)
            clipped = x * (self.max_norm / norms).clamp(max=1)
            rows.append((clipped.sum(dim=0) + self.noise_multiplier * self.max_norm * noise) / max(1, len(x)))
        return torch.stack(rows)

    def _clusters(self, means: Tensor, ids: Tensor, stream: Stream) -> Tensor:
        from sklearn.cluster import KMeans  # noqa: PLC0415 (takes half a second to import)

        # In the order of ids, so that the draws are the same whatever the order of clients.
        order = torch.argsort(ids)
        seed = int(torch.randint(2**31, (), generator=stream.generator()))
        # Its annotations know "auto" alone.
        starts: Any = 20
        labels = KMeans(self.clusters, n_init=starts, random_state=seed).fit(means[order].numpy()).labels_
        cluster = torch.empty(len(means), dtype=torch.int64)
        cluster[order] = canonical_labels(torch.from_numpy(labels))
        return cluster

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Everybody trains its cluster's model; clients weigh by examples."""
        assignment = state.clients["private_means.cluster"][cohort.clients]
        weights = averaging_weights(assignment, cohort.sizes, len(state.models))
        return RoundPlan(assignment, (LocalTraining(state.models, assignment, weights),))

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Each client uses its cluster's model."""
        assignment = state.clients["private_means.cluster"][cohort.clients]
        return Deployed(state.models, assignment, assignment)
