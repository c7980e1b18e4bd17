"""PINA: private clusters from noisy sketches of clients' adapters, and averages weighed by how normal a client is."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.fixed_clusters import FixedClusters
from shoal.algorithms.clusters.one_shot import k_means_by_id
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import NonNegativeFloat, Positive, PositiveFloat, settings
from shoal.core.update_sketch import UpdateSketch
from shoal.data import Federation
from shoal.engine import (
    Cohort,
    Engine,
    LocalSGD,
    LocalTraining,
    RoundPlan,
    State,
    averaging_weights,
    require_per_example_gradients,
)


@settings
class PINA(FixedClusters):
    """Clients send a noisy sketch of their adapter's first step once; the server clusters sketches, and weighs by them.

    1. All begin at one model. Client i with n_i examples sends ``s_i = (sum_j clip_C(S g_j) + N(0, (sigma C)^2 I)) /
       n_i``: g_j is the gradient of example j by what is trained (adapters and perhaps a head), S a count sketch to d
       numbers, which all share: of more than d parameters each goes to one of d places of equal size, with a sign. It
       is one Gaussian mechanism of noise multiplier sigma towards everybody, for a record that is present or left out
       while n_i is known.
    2. K-means of the sketches makes K clusters, whose centroids are then the medians by coordinate, which a few
       sketches far away do not move. A client's distance to its centroid is ``t_i = |s_i - c|^2 / v``, with v such that
       the cluster's median is that of a chi-squared distribution with d degrees of freedom, as t_i would have if
       sketches were normal around c. Its normality is ``p_i = P(chi2_d >= t_i)``.
    3. In all rounds clients train their cluster's model, by the run's local training, perhaps DP-SGD, and weigh by
       ``n_i p_i`` in its average: a client that noise or its data put at the edge of a cluster moves it little.

    Nothing but the sketch decides cluster and weight, so the epsilon that is stated covers both.

    Args:
        clusters: K, the number of models.
        sketch: d.
        max_norm: C, to which longer sketches of gradients are scaled.
        noise_multiplier: sigma; 0: no noise, and no guarantee.
        weighting: of clients in a cluster: by "normality", or by "examples" alone.

    Source: Xu, Mehmood, van Dalen, Saravanan, Ozay 2026, arXiv:2604.20596 (ICASSP). Only its abstract was at hand: each
    client fine-tunes a low-rank adapter "and privately shares a compressed sketch of the update", by which the server
    makes "robust cluster centroids"; then a "normality-driven aggregation mechanism". Ours: all formulas above. The
    fine-tuning is one full step, since a record moves a longer one by any amount up to its clipping bound, and the
    noise would have to be n_i times as large. The centroids are those of sketches: models cannot be made of d numbers.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithm = shoal.PINA(clusters=2, sketch=4, noise_multiplier=0.1)
        >>> shoal.simulate(federation, model, algorithm, local, rounds=3).clients["cluster"].tolist()
        [0, 0, 1, 1]
    """

    clusters: Positive = 2
    sketch: Positive = 16
    max_norm: PositiveFloat = 1.0
    noise_multiplier: NonNegativeFloat = 2.0
    weighting: Literal["normality", "examples"] = "normality"
    name: Literal["pina"] = "pina"
    title: ClassVar[str] = "PINA"
    key: ClassVar[str] = "pina.cluster"

    @property
    def choice_noise(self) -> float:
        """The noise multiplier of the one Gaussian mechanism by which a client's data decide its cluster and weight."""
        return self.noise_multiplier

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """One random model for each cluster, the same for all, and each client's cluster and weight.

        Raises:
            InputError: fewer clients than clusters, or a network whose examples have no gradients of their own.
        """
        require(
            self.clusters <= len(federation),
            f"'clusters' must be at most the federation's {len(federation)} clients; got {self.clusters}",
        )
        require_per_example_gradients(engine.model.network())
        state = super().init(engine, federation, local, stream)
        sketches = self.sketches(engine, state.models[0], federation, stream)
        cluster = k_means_by_id(sketches, federation.ids, self.clusters, stream("k-means"))
        begun = self.clustered(state, cluster, self.clusters)
        return replace(begun, clients={**begun.clients, _NORMALITY: normality(sketches, cluster)})

    def sketches(self, engine: Engine, row: Tensor, federation: Federation, stream: Stream) -> Tensor:
        """(N, d) float64, what each client sends of its gradients at the model ``row`` (P,).

        Noise depends on the stream and a client's id.
        """
        sketch = UpdateSketch.draw(engine.model.layout.trainable, self.sketch, stream("sketch"))
        width = min(self.sketch, engine.model.layout.trainable)

        def total(gradients: Tensor) -> Tensor:
            rows = sketch.sketched(gradients.cpu()).double()
            return (rows * (self.max_norm / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)).sum(dim=0)

        clients, rows = federation.clients, []
        for position, client in enumerate(federation.ids.tolist()):
            mine = clients.owned(position).to(clients.y.device)
            sums = engine.example_gradients_into(total, row, clients.x[mine], clients.y[mine])
            noise = torch.randn(width, generator=stream("noise", client).generator(), dtype=torch.float64)
            sent = sum(sums, torch.zeros(width, dtype=torch.float64))
            rows.append((sent + self.noise_multiplier * self.max_norm * noise) / max(1, len(mine)))
        return torch.stack(rows)

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Everybody trains its cluster's model; clients weigh by examples times normality."""
        assignment = state.clients[self.key][cohort.clients]
        normal = state.clients[_NORMALITY][cohort.clients] if self.weighting == "normality" else 1.0
        weights = averaging_weights(assignment, cohort.sizes * normal, len(state.models))
        return RoundPlan(assignment, (LocalTraining(state.models, assignment, weights),))


_NORMALITY = "pina.normality"


def normality(sketches: Tensor, cluster: Tensor) -> Tensor:
    """(n,) float64 in (0, 1], ``P(chi2_d >= |s_i - c|^2 / v)`` of each of n sketches (n, d) in its ``cluster`` (n,).

    c is the median of the cluster's sketches by coordinate, and v brings the median of the ratios to that of the
    distribution. A client that is at its cluster's centroid has 1, and so have all of a cluster without spread.

    >>> sketches = torch.tensor([[0.0, 0.1], [0.1, 0.0], [0.0, -0.1], [-0.1, 0.0], [3.0, 3.0]])
    >>> normality(sketches, torch.zeros(5, dtype=torch.int64)).mul(100).round().tolist()
    [50.0, 50.0, 50.0, 50.0, 0.0]
    """
    from scipy.stats import chi2  # noqa: PLC0415 - takes a third of a second to import

    dimensions, values = sketches.shape[1], torch.ones(len(sketches), dtype=torch.float64)
    for k in cluster.unique():
        mine = cluster == k
        inside = sketches[mine].double()
        squares = (inside - inside.quantile(0.5, dim=0)).square().sum(dim=1)
        scale = float(squares.quantile(0.5)) / float(chi2.median(dimensions))
        if scale > 0:
            # Not 0, so that a cluster whose clients are all far away still has an average.
            values[mine] = torch.from_numpy(chi2.sf((squares / scale).numpy(), dimensions)).clamp(min=1e-12)
    return values
