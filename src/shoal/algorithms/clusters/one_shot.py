"""One-shot clustering by k-means of separately trained models, and the base class of algorithms with fixed clusters."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Derived
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Positive, settings
from shoal.data.federation import Federation
from shoal.engine import (
    Aggregate,
    Cohort,
    DeployedModels,
    Engine,
    LocalSGD,
    LocalTraining,
    RoundPlan,
    State,
    averaging_weights,
)


@settings
class OneShotClustering:
    """K-means clusters of models that clients train separately in the first round, then FedAvg per cluster.

    Each cluster's model starts at the mean of its clients' models, and the clusters do not change. A client that missed
    the first round trains the initial model in its own first round, and joins the cluster with the nearest mean. Until
    then, the client is assigned to the first cluster.

    The first round must be long enough for the clients' models to differ by group. If fewer than K clients take part in
    the first round, the remaining models stay random. Unlike in Ghosh et al. 2019, all clients start from one model,
    and plain k-means (scikit-learn's, best of 10 starts) replaces trimmed k-means.

    Args:
        clusters: K, the number of clusters.
        local: the local training of the first round and of a new client's first round; by default the same as in all
            other rounds.

    Source: the one-shot baseline in Ghosh et al. 2020, arXiv:2006.04088, section on experiments; earlier paper: Ghosh
    et al. 2019, arXiv:1906.06629.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> result = shoal.simulate(federation, model, shoal.OneShotClustering(clusters=2), local, rounds=3)
        >>> result.clients["cluster"].tolist(), result.summary.overall["train_accuracy.overall"]
        ([0, 0, 1, 1], 1.0)
    """

    clusters: Positive = 2
    local: LocalSGD | None = None
    name: Literal["one-shot"] = "one-shot"
    title: ClassVar[str] = "One-shot clustering"
    membership_barrier: ClassVar[str] = "decides clusters in its first round"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        require_counted(self.local, local)

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        state = IFCA(self.clusters).init(engine, federation, local, stream)
        server = {_INITIAL: state.models[0].clone(), _MEANS: state.models[:0].clone()}
        return replace(state, server=server, clients={_CLUSTER: torch.full((len(federation),), -1)})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        if not len(state.server[_MEANS]):
            return first_plan(state, cohort, self.local)
        initial, cluster = state.server[_INITIAL], state.clients[_CLUSTER][cohort.clients]

        def distances(update: Tensor) -> Tensor:
            return torch.cdist(update, (state.server[_MEANS] - initial).to(update))

        newcomers = LocalTraining(initial[None], torch.zeros_like(cluster), keep=distances, local=self.local)
        return newcomers_plan(state.models, cluster, cohort.sizes, newcomers)

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        if not len(state.server[_MEANS]):
            (update,) = aggregate.kept
            assert update is not None
            begun, cluster = group_updates(state, cohort, update)
            means = begun.models[: int(cluster.max()) + 1].clone()
            after = replace(begun, server={**state.server, _MEANS: means})
            return _assign_clusters(after, cohort, cluster, torch.ones_like(cluster, dtype=torch.bool))
        after = replace(state, models=aggregate.models)
        for training, distances in zip(plan.trainings, aggregate.kept, strict=True):
            if distances is not None and training.participates is not None:
                return _assign_clusters(after, cohort, distances.argmin(dim=1), training.participates)
        return after

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        assignment = state.clients[_CLUSTER][cohort.clients].clamp(min=0)
        return DeployedModels(state.models, assignment, assignment)


_INITIAL, _MEANS, _CLUSTER = "one_shot.initial", "one_shot.means", "one_shot.cluster"


def require_counted(first: LocalSGD | None, local: LocalSGD) -> None:
    """Raise `InputError` if the first round has its own settings under DP-SGD, which epsilon would not count."""
    require(
        first is None or not local.private,
        "'algorithm.local' cannot be combined with DP-SGD; remove 'algorithm.local'",
    )


def first_plan(state: State, cohort: Cohort, local: LocalSGD | None) -> RoundPlan:
    """Plan the separate training of the first model by all clients; the server keeps the updates."""
    plan = FedAvg().plan(state, cohort)
    weights = averaging_weights(plan.assignment, cohort.sizes, len(state.models))
    return replace(
        plan, trainings=(replace(plan.trainings[0], weights=weights, keep=lambda update: update, local=local),)
    )


def newcomers_plan(models: Tensor, cluster: Tensor, sizes: Tensor, newcomers: LocalTraining) -> RoundPlan:
    """Plan a round: clients train their cluster's model (K, P), and clients with cluster -1 train ``newcomers``.

    New clients do not change the ``models``; ``sizes`` (n,) are the weights of all other clients in the averages.
    """
    new, assignment = cluster < 0, cluster.clamp(min=0)
    weights = averaging_weights(assignment, sizes * ~new, len(models))
    members = LocalTraining(models, assignment, weights)
    if not bool(new.any()):
        return RoundPlan(assignment, (members,))
    newcomers = replace(newcomers, weights=torch.zeros_like(weights), participates=new)
    return RoundPlan(assignment, (replace(members, participates=~new), newcomers))


def group_updates(
    state: State, cohort: Cohort, update: Tensor, weighting: Literal["examples", "equal"] = "examples"
) -> tuple[State, Tensor]:
    """Cluster the updates (n, P) of `first_plan`; return the state with the clusters' means, and the clusters (n,)."""
    sizes = cohort.sizes if weighting == "examples" else torch.ones_like(cohort.sizes)
    seed = int(cohort.stream("k-means").numpy().integers(2**31))
    cluster = k_means(update, min(len(state.models), len(update)), seed, starts=10)
    weights = averaging_weights(cluster, sizes, int(cluster.max()) + 1)
    means = (state.models[0].double() + weights @ update.double()).to(state.models)
    models, trained = state.models.clone(), torch.zeros_like(state.trained)
    models[: len(means)] = means
    trained[cohort.clients, cluster] = cohort.round
    assignment = state.assignment.clone()
    assignment[cohort.clients] = cluster
    return replace(state, models=models, trained=trained, assignment=assignment), cluster


def k_means(vectors: Tensor, clusters: int, seed: int, starts: int) -> Tensor:
    """Return `canonical_labels` (n,) int64 of vectors (n, P) from the best of ``starts`` runs of k-means."""
    from sklearn.cluster import KMeans  # noqa: PLC0415 - scikit-learn takes a second to import

    # scikit-learn warns if there are fewer different vectors than clusters.
    clusters = min(clusters, len(vectors.unique(dim=0)))
    # scikit-learn's hints know n_init only by its default, a word.
    best = KMeans(clusters, n_init=starts, random_state=seed)  # pyright: ignore[reportArgumentType]
    return canonical_labels(torch.from_numpy(best.fit(vectors.cpu().double().numpy()).labels_))


def k_means_by_id(vectors: Tensor, ids: Tensor, clusters: int, stream: Stream) -> Tensor:
    """Return the clusters (N,) int64 of clients' vectors (N, D), independently of the order of the clients."""
    order = torch.argsort(ids)
    seed = int(torch.randint(2**31, (), generator=stream.generator()))
    cluster = torch.empty_like(order)
    cluster[order] = k_means(vectors[order], clusters, seed, starts=20)
    return cluster


def canonical_labels(labels: Tensor) -> Tensor:
    """Renumber labels (n,) int64 as 0, 1, ... in order of first appearance.

    >>> canonical_labels(torch.tensor([7, 2, 7, 5]))
    tensor([0, 1, 0, 2])
    """
    order = list(dict.fromkeys(labels.tolist()))
    return torch.tensor([order.index(label) for label in labels.tolist()], dtype=torch.int64)


def _assign_clusters(state: State, cohort: Cohort, cluster: Tensor, joins: Tensor) -> State:
    """Assign the cohort's clients in the mask ``joins`` (n,) to their ``cluster`` (n,)."""
    clusters, assignment = state.clients[_CLUSTER].clone(), state.assignment.clone()
    clusters[cohort.clients[joins]] = cluster[joins]
    assignment[cohort.clients[joins]] = cluster[joins]
    return replace(state, clients={**state.clients, _CLUSTER: clusters}, assignment=assignment)


class FixedClusters(Derived):
    """FedAvg within clusters that do not change; all models start from the same parameters."""

    membership_barrier: ClassVar[str] = "decides clusters once for all clients"
    weighting: Literal["examples", "equal"] = "examples"
    key: ClassVar[str]
    """The key of the clients' clusters in `State.clients`."""

    def init_clusters(self, state: State, cluster: Tensor, count: int) -> State:
        """Return an initial state with ``count`` copies of the model in ``state`` and the clients' ``cluster`` (N,)."""
        initial = State.initial(state.models.repeat(count, 1), len(cluster))
        return replace(initial, clients={self.key: cluster})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        return IFCA(weighting=self.weighting).plan_of(state.clients[self.key][cohort.clients], None, state, cohort)

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        assignment = state.clients[self.key][cohort.clients]
        return DeployedModels(state.models, assignment, assignment)
