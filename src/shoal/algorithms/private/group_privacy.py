"""Group privacy for personalised federated learning: the server groups obfuscated models by k-means."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.wrapper import Derived
from shoal.core.layout import Layout
from shoal.core.settings import Positive, settings
from shoal.engine import Aggregate, Cohort, RoundPlan, State


@settings
class GroupPrivacy(Derived):
    """IFCA in which client i trains ``k = argmin_k loss_ik`` and sends its model without k; the server clusters models.

    The server runs k-means on the n received models from the K models (the hypotheses) of the round, and each model
    becomes the mean of its cluster: ``model_k = mean of {sent_i : |sent_i - centroid_k| is the smallest}``. With noise
    (`LaplaceNoise`, a defence of clients) a received model may fall into another cluster than its client chose. Without
    noise, and if models are farther apart than clients move, this is IFCA with equal weights.

    Ours, as far as the paper is known: equal weights, at most ``iterations`` of Lloyd's algorithm (ties to the first),
    and a model without a nearest received model does not change. In all tables a client's cluster is its own choice;
    the members of a model (`State.trained`) follow the server's clusters. Recorded updates name the client's choice,
    which the server does not receive here, so its attacks by cluster know too much.

    Args:
        clusters: K, the number of models.
        iterations: the most that k-means does in a round.

    Source: Galli, Biswas, Jung, Cucinotta, Palamidessi 2023, arXiv:2206.03396; extended in arXiv:2309.00416; from
    memory of it, not checked against its text. No code of its authors was found.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithms = shoal.IFCA(clusters=2), shoal.GroupPrivacy(clusters=2)
        >>> models = [shoal.simulate(federation, model, rule, local, rounds=3).state.models for rule in algorithms]
        >>> models[0].allclose(models[1])
        True
    """

    clusters: Positive = 2
    iterations: Positive = 20
    name: Literal["group-privacy"] = "group-privacy"
    title: ClassVar[str] = "Group privacy"

    @property
    def inner(self) -> IFCA:
        return IFCA(self.clusters)

    def add_tensors(self, state: State, layout: Layout) -> State:
        return replace(state, clients={_TRAINED: state.trained.clone()})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        plan = super().plan(state, cohort)
        return replace(plan, trainings=(replace(plan.trainings[0], keep=lambda update: update),))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        (update,) = aggregate.kept
        assert update is not None
        received = state.models[plan.assignment] + update.to(state.models)
        models, cluster = private_k_means(received, state.models, self.iterations)
        trained = state.clients[_TRAINED].clone()
        trained[cohort.clients, cluster] = cohort.round
        # A clone, since a checkpoint does not store one tensor twice.
        return replace(state, models=models, trained=trained, clients={_TRAINED: trained.clone()})


_TRAINED = "group-privacy.trained"


def private_k_means(points: Tensor, centroids: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Run Lloyd's algorithm on points (n, P) from centroids (K, P); a centroid without points stays.

    Returns:
        The centroids (K, P), each the mean of its points; and the cluster (n,) int64 of each point.

    >>> private_k_means(torch.tensor([[0.0], [1.0], [8.0]]), torch.tensor([[0.5], [2.0], [-9.0]]), 10)
    (tensor([[ 0.5000],
            [ 8.0000],
            [-9.0000]]), tensor([0, 0, 1]))
    """
    moved, cluster = centroids.double(), torch.full((len(points),), -1)
    for _ in range(iterations):
        # One centroid at a time: memory stays that of the points.
        distances = torch.stack([(points - centroid).norm(dim=1) for centroid in moved.to(points)], dim=1)
        nearest = distances.argmin(dim=1)
        if torch.equal(nearest, cluster):
            break
        cluster = nearest
        for k in cluster.unique().tolist():
            moved[k] = points[cluster == k].double().mean(dim=0)
    return moved.to(centroids), cluster
