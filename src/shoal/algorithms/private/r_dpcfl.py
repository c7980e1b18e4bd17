"""R-DPCFL: clusters from the first round's updates on full batches, by a Gaussian mixture; later from losses."""

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
    """Clusters by a Gaussian mixture of updates on full batches, where DP-SGD's noise is smallest; later by losses.

    1. First round: all clients train one model on full batches. The server projects the updates on their first two
       principal components, scales both to [0, 1], and fits a mixture of K round Gaussians with equal weights:
       ``p_ik``, the probability of cluster k for client i. It draws each client's cluster by p_i, and model k begins at
       the first model plus the mean update of its clients.
    2. Next rounds: client i trains a cluster drawn by p_i in each round. The first two phases last
       ``soft_rounds * (1 - overlap)`` rounds, with the overlap ``1 - erf(s / sqrt(2))`` of the two closest clusters,
       ``s = |mean_k - mean_l| / (2 * max(std_k, std_l))``: a confident mixture is used longer.
    3. ``loss_rounds`` rounds: client i trains ``argmin_k loss_ik``; then it keeps its last choice.

    The epsilon of DP-SGD counts the first round with its full batches; the draws of phase 2 read only sent updates. It
    does not cover choices by loss (phase 3); the paper spends some budget on them by an exponential mechanism.

    Ours: no budget for phase 3; the start of the models (the authors' code: all at one client's model); plain principal
    components (the authors' code: of standardised updates). A client that was not in the first round is drawn from all
    clusters uniformly. A cluster without clients in the draw begins at the mean of all.

    Args:
        clusters: K, the number of models.
        soft_rounds: rounds of the first two phases at most (the paper: half of its 200).
        loss_rounds: rounds in which clients choose by loss (the authors' code: a tenth of 200).

    Source: Malekmohammadi, Taik, Farnadi 2025, "Differentially Private Clustered Federated Learning" (TMLR 09/2025),
    and the authors' code (Saber-mm/DPCFL, main/DPCFL.py and utils/aggregate.py).

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
        """Plan full batches on one model, then draws by the mixture, then choices by loss.

        Raises:
            InputError: fewer clients than clusters in the first round.
        """
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
            f"R-DPCFL's first round needs a client for each of {self.clusters} clusters; it has {len(cohort)}",
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
        """The first round in which clients choose by loss."""
        return int(state.server[_FIRST]) + max(1, int(state.server[_SOFT]))

    def _soft(self, state: State, cohort: Cohort) -> bool:
        return cohort.round < self._end_of_soft(state)


_FIRST, _SOFT = "r-dpcfl.first_round", "r-dpcfl.soft_rounds"
_PROBABILITIES, _CHOICE = "r-dpcfl.probabilities", "r-dpcfl.choice"


def principal_components(updates: Tensor) -> Tensor:
    """Return the first two principal components (n, 2) float64 of updates (n, P), each scaled to [0, 1].

    Components without spread are 0. The sign of a component makes its entry of largest magnitude positive.
    """
    centred = updates.double() - updates.double().mean(dim=0)
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    scores = torch.zeros(len(updates), 2, dtype=torch.float64)
    for j in range(min(2, len(updates))):
        component = vectors[:, -1 - j] * values[-1 - j].clamp(min=0).sqrt()
        scores[:, j] = component * component[component.abs().argmax()].sign()
    scores = scores - scores.amin(dim=0)
    return scores / scores.amax(dim=0).clamp(min=1e-300)


def mixture(points: Tensor, clusters: int, stream: Stream) -> tuple[Tensor, float]:
    """Fit a mixture of K round Gaussians with equal weights to points (n, d), n at least K.

    Returns:
        The probabilities (n, K) float64 of each cluster, and the overlap of the two closest clusters in [0, 1]; 0 for
        a single cluster.
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
