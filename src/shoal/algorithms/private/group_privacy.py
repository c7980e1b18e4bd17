"""Group privacy: the server clusters noisy models by k-means."""

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
    """IFCA in which clients do not send their choice of a model; the server clusters the received models by k-means.

    The server starts k-means from the K models of the round, and each model becomes the mean of its cluster. With
    `LaplaceNoise` at the clients, the server may assign a client's model to a different cluster than the client chose.
    Without noise, the result equals that of `IFCA` if updates are much shorter than the distances between models.

    Reports show a client's own choice as its cluster. A model's members (`State.trained`) are the clients that the
    server assigned to the model. Attacks by the server are too strong in this implementation, because recorded updates
    contain clients' choices, which a real server does not receive.

    Args:
        clusters: K, the number of models.
        iterations: the largest number of k-means iterations per round.

    Source: Galli et al. 2023, arXiv:2206.03396, extended in arXiv:2309.00416. The implementation has not been checked
    against the text of the papers.

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
    """Run Lloyd's algorithm on points (n, P) from centroids (K, P); a centroid without points does not change.

    Returns:
        The centroids (K, P), and the cluster of each point (n,) int64.

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
