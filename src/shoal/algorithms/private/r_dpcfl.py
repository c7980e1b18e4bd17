"""R-DPCFL: clusters from a Gaussian mixture of full-batch updates, and later from losses."""

import math
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.wrapper import Derived
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.core.settings import Positive, settings
from shoal.engine import (
    Aggregate,
    ClientTrainings,
    Cohort,
    LocalSGD,
    LocalTraining,
    RoundPlan,
    State,
    averaging_weights,
)


@settings
class RDPCFL(Derived):
    """Clusters first by full-batch updates, in which DP-SGD's noise is smallest, and later by losses.

    1. In the first round all clients train one model on full batches. The server fits a mixture of K spherical
       Gaussians with equal weights to the first two principal components of the updates. Each client's cluster is drawn
       from the mixture's probabilities.
    2. In each following round the cluster of each client is drawn again. Phases 1 and 2 last ``soft_rounds * (1 -
       overlap)`` rounds, where the overlap of the two closest clusters is in [0, 1].
    3. For ``loss_rounds`` rounds each client trains the model with the lowest loss on its examples. After these rounds
       each client keeps the model that it chose last.

    The epsilon of DP-SGD covers the first round and the draws of phase 2, which depend only on sent updates. The
    epsilon does not cover the choices by loss in phase 3; the paper uses an exponential mechanism for these choices.
    The cluster of a client that missed the first round is drawn uniformly.

    Args:
        clusters: K, the number of clusters.
        soft_rounds: the largest number of rounds in phases 1 and 2 (100 of 200 in the paper).
        loss_rounds: the number of rounds in which clients choose a model by loss (20 of 200 in the authors' code).

    Source: Malekmohammadi et al. 2025, "Differentially Private Clustered Federated Learning" (TMLR 09/2025); the
    authors' code (Saber-mm/DPCFL).

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithm = shoal.RDPCFL(clusters=2, soft_rounds=2, loss_rounds=1)
        >>> result = shoal.simulate(federation, model, algorithm, local, rounds=4)
        >>> result.rounds.pivot(index="round", columns="cluster", values="clients").values.tolist()
        [[4, 0], [2, 2], [2, 2], [2, 2]]
    """

    clusters: Positive = 2
    soft_rounds: Positive = 100
    loss_rounds: Positive = 20
    name: Literal["r-dpcfl"] = "r-dpcfl"
    title: ClassVar[str] = "R-DPCFL"
    membership_barrier: ClassVar[str] = "decides clusters in its first round"

    @property
    def inner(self) -> IFCA:
        return IFCA(self.clusters)

    def client_trainings(self, local: LocalSGD) -> ClientTrainings:
        return ClientTrainings((local,), first=(replace(local, batch_size="all"),))

    def add_tensors(self, state: State, layout: Layout) -> State:
        count = len(state.assignment)
        uniform = torch.full((count, self.clusters), 1 / self.clusters, dtype=torch.float64)
        return replace(
            state,
            server={_FIRST: torch.zeros(1, dtype=torch.int64), _SOFT: torch.zeros(1, dtype=torch.int64)},
            clients={_PROBABILITIES: uniform, _CHOICE: torch.full((count,), -1)},
        )

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Plan a round; raise `InputError` if the first round has fewer clients than clusters."""
        if not self._has_clusters(state):
            return self._first(state, cohort)
        if self._soft(state, cohort):
            drawn = _draw_clusters(state.clients[_PROBABILITIES][cohort.clients], cohort.stream("r-dpcfl"))
            return self.inner.plan_of(drawn, None, state, cohort)
        chosen = state.clients[_CHOICE][cohort.clients]
        over = cohort.round >= self._end_of_soft(state) + self.loss_rounds
        if over and bool((chosen >= 0).all()):
            return self.inner.plan_of(chosen, None, state, cohort)
        losses = cohort.losses(state.models)
        best = losses.argmin(dim=1)
        return self.inner.plan_of(torch.where(chosen >= 0, chosen, best) if over else best, losses, state, cohort)

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        if not self._has_clusters(state):
            return self._cluster_updates(state, cohort, aggregate)
        after = super().server_update(state, cohort, plan, aggregate)
        if self._soft(state, cohort):
            return after
        choice = state.clients[_CHOICE].clone()
        choice[cohort.clients] = plan.assignment
        return replace(after, clients={**state.clients, _CHOICE: choice})

    def _first(self, state: State, cohort: Cohort) -> RoundPlan:
        require(
            len(cohort) >= self.clusters,
            f"R-DPCFL needs at least {self.clusters} clients in its first round, one per cluster (got {len(cohort)})",
        )
        together = torch.zeros(len(cohort), dtype=torch.int64)
        weights = averaging_weights(together, torch.ones(len(cohort), dtype=torch.float64), self.clusters)
        full = replace(cohort.local, batch_size="all")
        training = LocalTraining(state.models, together, weights, keep=lambda update: update, local=full)
        return RoundPlan(together, (training,))

    def _cluster_updates(self, state: State, cohort: Cohort, aggregate: Aggregate) -> State:
        (update,) = aggregate.kept
        assert update is not None
        stream = cohort.stream("r-dpcfl")
        probabilities, overlap = mixture(principal_components(update), self.clusters, stream("mixture"))
        drawn = _draw_clusters(probabilities, stream)
        models, trained = aggregate.models[:1].repeat(self.clusters, 1), torch.zeros_like(state.trained)
        for k in range(self.clusters):
            members = drawn == k if bool((drawn == k).any()) else torch.ones_like(drawn, dtype=torch.bool)
            models[k] = (state.models[0].double() + update[members].double().mean(dim=0)).to(models)
            trained[cohort.clients[members], k] = cohort.round
        assignment, of_clients = state.assignment.clone(), state.clients[_PROBABILITIES].clone()
        assignment[cohort.clients], of_clients[cohort.clients] = drawn, probabilities
        server = {_FIRST: torch.tensor([cohort.round]), _SOFT: torch.tensor([int((1 - overlap) * self.soft_rounds)])}
        clients = {**state.clients, _PROBABILITIES: of_clients}
        return replace(state, models=models, trained=trained, assignment=assignment, server=server, clients=clients)

    def _has_clusters(self, state: State) -> bool:
        return bool(state.server[_FIRST])

    def _end_of_soft(self, state: State) -> int:
        """Return the first round in which clients choose by loss."""
        return int(state.server[_FIRST]) + max(1, int(state.server[_SOFT]))

    def _soft(self, state: State, cohort: Cohort) -> bool:
        return cohort.round < self._end_of_soft(state)


_FIRST, _SOFT = "r-dpcfl.first_round", "r-dpcfl.soft_rounds"
_PROBABILITIES, _CHOICE = "r-dpcfl.probabilities", "r-dpcfl.choice"


def principal_components(updates: Tensor) -> Tensor:
    """Compute the first two principal components (n, 2) float64 of updates (n, P), each scaled to [0, 1]."""
    centred = updates.double() - updates.double().mean(dim=0)
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    scores = torch.zeros(len(updates), 2, dtype=torch.float64)
    for j in range(min(2, len(updates))):
        component = vectors[:, -1 - j] * values[-1 - j].clamp(min=0).sqrt()
        scores[:, j] = component * component[component.abs().argmax()].sign()
    scores = scores - scores.amin(dim=0)
    return scores / scores.amax(dim=0).clamp(min=1e-300)


def mixture(points: Tensor, clusters: int, stream: Stream) -> tuple[Tensor, float]:
    """Fit a mixture of K spherical Gaussians with equal weights to at least K points (n, d).

    Returns:
        The probabilities of the clusters for each point, (n, K) float64, and the overlap of the two closest clusters in
        [0, 1] (0 for one cluster).
    """
    from sklearn.mixture import GaussianMixture  # noqa: PLC0415 - scikit-learn takes a second to import

    fitted = GaussianMixture(
        clusters,
        covariance_type="spherical",
        tol=1e-6,
        init_params="k-means++",
        weights_init=np.full(clusters, 1 / clusters),
        random_state=stream.key() % 2**32,
    ).fit(points.numpy())
    fitted.weights_ = np.full(clusters, 1 / clusters)
    means, std = np.asarray(fitted.means_), np.sqrt(np.asarray(fitted.covariances_))
    overlap = 0.0
    for k in range(clusters):
        for other in range(k):
            separation = np.linalg.norm(means[k] - means[other]) / (2 * max(std[k], std[other]))
            overlap = max(overlap, 1 - math.erf(separation / math.sqrt(2)))
    return torch.from_numpy(np.asarray(fitted.predict_proba(points.numpy()))), overlap


def _draw_clusters(probabilities: Tensor, stream: Stream) -> Tensor:
    """Draw a cluster (n,) int64 for each client by its probabilities (n, K)."""
    uniform = torch.rand(len(probabilities), 1, generator=stream("clusters").generator(), dtype=torch.float64)
    return (uniform > probabilities.cumsum(dim=1)).sum(dim=1).clamp(max=probabilities.shape[1] - 1)
