"""FeSEM: each client joins the cluster with the nearest center in parameter space."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.clusters.one_shot import first_plan, group_updates, newcomers_plan, require_counted
from shoal.core.randomness import Stream
from shoal.core.settings import Positive, settings
from shoal.data.federation import Federation
from shoal.engine import Aggregate, Cohort, DeployedModels, Engine, LocalSGD, LocalTraining, RoundPlan, State


@settings
class FeSEM:
    """Clusters by parameter distance: each client trains its cluster's center, then joins the nearest center.

    The server sets each center to the unweighted mean of its clients' trained parameters, including batch norm's
    statistics. A client that changes its cluster counts as a member of both models.

    Unlike in the paper, all clients train one initial model in the first round, and the first centers are the k-means
    centers of the trained models (as in `OneShotClustering`). A new client trains the initial model in its first round
    and joins the nearest center, but does not change the center.

    Args:
        clusters: K, the number of clusters.
        local: the local training of the first round and of a new client's first round; by default the same as in all
            other rounds.

    Source: Xie et al. 2020, arXiv:2005.01026, section 4.3. The implementation follows notes on the paper, because the
    paper's text was not available.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> result = shoal.simulate(federation, model, shoal.FeSEM(clusters=2), local, rounds=3)
        >>> result.clients["cluster"].tolist(), result.clients["train_accuracy"].tolist()
        ([0, 0, 1, 1], [1.0, 1.0, 1.0, 1.0])
    """

    clusters: Positive = 2
    local: LocalSGD | None = None
    name: Literal["fesem"] = "fesem"
    title: ClassVar[str] = "FeSEM"
    membership_barrier: ClassVar[str] = "decides clusters in its first round"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        require_counted(self.local, local)

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        state = IFCA(self.clusters).init(engine, federation, local, stream)
        server = {_INITIAL: state.models[0].clone(), _CENTERS: torch.zeros(1, dtype=torch.int64)}
        return replace(state, server=server, clients={_CLUSTER: torch.full((len(federation),), -1)})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        if not int(state.server[_CENTERS]):
            return first_plan(state, cohort, self.local)
        cluster = state.clients[_CLUSTER][cohort.clients]
        newcomers = LocalTraining(state.server[_INITIAL][None], torch.zeros_like(cluster), local=self.local)
        plan = newcomers_plan(state.models, cluster, torch.ones_like(cluster), newcomers)
        return replace(plan, trainings=tuple(replace(part, keep=lambda update: update) for part in plan.trainings))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        clusters = state.clients[_CLUSTER].clone()
        if not int(state.server[_CENTERS]):
            (update,) = aggregate.kept
            assert update is not None
            begun, cluster = group_updates(state, cohort, update, weighting="equal")
            clusters[cohort.clients] = cluster
            server = {**state.server, _CENTERS: cluster.max()[None] + 1}
            return replace(begun, server=server, clients={**state.clients, _CLUSTER: clusters})
        centers = state.models[: int(state.server[_CENTERS])]
        cluster, sums = plan.assignment.clone(), torch.zeros(centers.shape, dtype=torch.float64)
        count = torch.zeros(len(centers), 1, dtype=torch.float64)
        trained, took_part = state.trained.clone(), torch.zeros(len(cohort), dtype=torch.bool)
        for training, update in zip(plan.trainings, aggregate.kept, strict=True):
            if update is None:
                continue
            rows = torch.nonzero(training.participants()).flatten()
            ends = training.initial_params[training.init_index[rows]].double() + update[rows].double()
            cluster[rows] = torch.cdist(ends, centers.double()).argmin(dim=1)
            took_part[rows] = True
            if training.weights is not None and bool(training.weights.any()):
                sums.index_add_(0, cluster[rows], ends)
                count.index_add_(0, cluster[rows], torch.ones(len(rows), 1, dtype=torch.float64))
                trained[cohort.clients[rows], cluster[rows]] = cohort.round
        models = state.models.clone()
        models[: len(centers)] = torch.where(count > 0, (sums / count.clamp(min=1)).to(centers), centers)
        clusters[cohort.clients[took_part]] = cluster[took_part]
        assignment = state.assignment.clone()
        assignment[cohort.clients] = cluster
        clients = {**state.clients, _CLUSTER: clusters}
        return replace(state, models=models, trained=trained, assignment=assignment, clients=clients)

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        assignment = state.clients[_CLUSTER][cohort.clients].clamp(min=0)
        return DeployedModels(state.models, assignment, assignment)


_INITIAL, _CENTERS, _CLUSTER = "fesem.initial", "fesem.centers", "fesem.cluster"
