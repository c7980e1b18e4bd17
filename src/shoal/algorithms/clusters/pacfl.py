"""PACFL: clusters of clients whose data, or whose adapters' updates, span similar subspaces, found once."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.adapter_subspaces import kept_bases, mean_by_cluster, sides_of
from shoal.algorithms.clusters.cfl import inherited
from shoal.algorithms.clusters.fixed_clusters import FixedClusters
from shoal.algorithms.clusters.one_shot import canonical_labels, newcomers_plan
from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Derived
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.core.settings import Positive, PositiveFloat, settings
from shoal.data.federation import Federation
from shoal.data.shards import Shards
from shoal.engine import Aggregate, Cohort, Deployed, Engine, LocalSGD, LocalTraining, RoundPlan, State

LOG = logging.getLogger(__name__)

Linkage = Literal["average", "complete", "single"]
"""Of clusters in hierarchical clustering."""


@settings
class PACFL(FixedClusters):
    """Client i sends U_i, the first p left singular vectors of its data, and clients with close ones are one cluster.

    The data are a matrix of features by examples. Between two clients the principal angles are ``arccos s`` for the
    singular values s of ``U_i' U_j``; the distance of clients is the smallest angle or the sum of all, in degrees.
    Hierarchical clustering merges clusters up to the distance ``threshold``, which so decides their number, and FedAvg
    trains a model for each, all from one initial model. With all clients in one cluster it is FedAvg.

    The authors' code takes the smallest arccos of the *entries* of ``U_i' U_j``, which depends on the choice of basis
    vectors within a subspace and on their signs. It takes p vectors of each label, which are not orthogonal. Thresholds
    for it do not apply here. Ours: U_i is of all examples of a client, with fewer than p vectors where it has fewer
    examples; average linkage weighs by clients, as scipy's does. The formulas were taken from notes on the paper and
    from its code, not from its text.

    U_i shows the server directions of a client's data, and no defence of local training acts on it; DP-SGD is refused,
    since its epsilon would not hold. Groups that differ in labels alone are not seen.

    Args:
        threshold: beta, in degrees; larger ones give fewer clusters. It must lie between the distances within groups
            and across, which depend on the data; the log says how many clusters are found.
        vectors: p (the authors: 3 to 5).
        distance: the "smallest" principal angle, or the "sum" of all.
        linkage: of the hierarchical clustering: "average", "complete" or "single".

    Source: Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin 2022, arXiv:2209.10526 (AAAI 2023); settings of the
    authors' code (MMorafah/PACFL).

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0, 0.0], [1.0, 0.0]], [0, 1]), ([[0.0, -1.0], [0.0, 1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one)
        >>> for threshold in (20.0, 100.0):
        ...     algorithm = shoal.PACFL(threshold=threshold, vectors=1)
        ...     print(threshold, algorithm.clusters_of(federation.clients, federation.ids).tolist())
        ...
        20.0 [0, 0, 1, 1]
        100.0 [0, 0, 0, 0]
    """

    threshold: PositiveFloat = 20.0
    vectors: Positive = 3
    distance: Literal["smallest", "sum"] = "smallest"
    linkage: Linkage = "average"
    name: Literal["pacfl"] = "pacfl"
    title: ClassVar[str] = "PACFL"
    key: ClassVar[str] = "pacfl.cluster"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Steps must not be private: the singular vectors that are sent are not."""
        local.check_only_gradients_sent("PACFL's singular vectors of their examples")

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """One random model for each cluster that the clients' data make, the same for all.

        Raises:
            InputError: texts, whose words are numbers that span nothing.
        """
        require(federation.kind != "texts", "PACFL needs inputs that are measured, such as images or rows; got texts")
        cluster = self.clusters_of(federation.clients, federation.ids)
        count = int(cluster.max()) + 1
        LOG.info("PACFL finds %d clusters in the clients' data", count)
        return self.clustered(super().init(engine, federation, local, stream), cluster, count)

    def clusters_of(self, clients: Shards, ids: Tensor) -> Tensor:
        """(N,) int64, each client's cluster, numbered by the smallest of its clients' ``ids`` (N,)."""
        if len(clients) == 1:
            return torch.zeros(1, dtype=torch.int64)
        # In the order of ids, so that ties are broken in the same way whatever the order of clients.
        order = torch.argsort(ids)
        bases = [basis(clients.x[clients.owned(i)].flatten(1), self.vectors) for i in order.tolist()]
        pairs = torch.triu_indices(len(bases), len(bases), offset=1).T.tolist()
        angles = [principal_angles(bases[i], bases[j]) for i, j in pairs]
        distances = torch.stack([angle[0] if self.distance == "smallest" else angle.sum() for angle in angles])
        cluster = torch.empty(len(bases), dtype=torch.int64)
        cluster[order] = merged_up_to(self.threshold, distances, self.linkage)
        return cluster


def basis(examples: Tensor, vectors: int) -> Tensor:
    """(F, p) float64, the first left singular vectors of the data matrix of ``examples`` (m, F); fewer if m or F is."""
    left, _, _ = torch.linalg.svd(examples.cpu().double().T, full_matrices=False)
    return left[:, :vectors]


def merged_up_to(threshold: float, distances: Tensor, linkage: Linkage) -> Tensor:
    """(n,) int64, hierarchical clusters of n >= 2 clients, by their distances (n (n - 1) / 2,) above the diagonal."""
    from scipy.cluster import hierarchy  # noqa: PLC0415 - takes half a second to import

    labels = hierarchy.fcluster(hierarchy.linkage(distances.numpy(), linkage), threshold, "distance")
    return canonical_labels(torch.from_numpy(labels))


def principal_angles(one: Tensor, other: Tensor) -> Tensor:
    """(min(p, q),) float64, in degrees, ascending: between the subspaces of two orthonormal bases (F, p) and (F, q).

    Leading axes are of several subspaces at once.

    >>> quarter = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> rotated = torch.tensor([[0.0], [0.5**0.5], [0.5**0.5]])
    >>> principal_angles(quarter.double(), rotated.double()).round()
    tensor([45.], dtype=torch.float64)
    """
    return torch.linalg.svdvals(one.mT @ other).clamp(max=1).acos().rad2deg()


@settings
class AdapterPACFL(Derived):
    """`PACFL` by the subspaces of what clients' adapters learnt, in the place of their data's.

    1. ``root_rounds`` rounds of FedAvg, of all clients.
    2. Of what each client sends in the last of these, the server takes each layer's update ``dW_i = B_i A_i - B A``,
       and of it U_i, the first ``vectors`` singular vectors of outputs, and V_i of inputs. Between two clients the
       principal angles of a side are ``arccos s`` for the singular values s of ``U_i' U_j``; the distance of clients is
       the smallest angle or the sum of all, in degrees, averaged over both sides of all layers.
    3. Hierarchical clustering merges clusters up to the distance ``threshold``, and FedAvg goes on in each, from the
       model of all.

    Without adapters the updates are of the network's weights. A client that was not in the last of the first rounds
    trains their model in its next one, which moves no model, and joins the cluster with the least mean distance.
    Clusters follow from updates as they are sent, so with DP-SGD the epsilon covers them, and noise blurs them.
    Subspaces have no sign: groups that push the same directions the other way look alike.

    Args:
        threshold: in degrees; larger ones give fewer clusters. It must lie between the distances within groups and
            across, which depend on the network, the data and the length of training; the log says how many clusters
            are found.
        vectors: singular vectors of each side; where an update has fewer directions, the rest are arbitrary.
        distance: the "smallest" principal angle of a side, or the "sum" of all.
        linkage: of the hierarchical clustering: "average", "complete" or "single".
        root_rounds: of FedAvg.

    Source: ours, after PACFL (Vahidian et al. 2022, arXiv:2209.10526), whose angles are of data, and HiLoRA (Peng et
    al. 2026, arXiv:2603.02785), which clusters adapters by their subspaces.

    Example:
        >>> import shoal, torch
        >>> from torch import nn
        >>> x = torch.eye(4)[torch.arange(8) % 4]
        >>> labels = [torch.arange(8) % 2, torch.arange(8) // 2 % 2]
        >>> federation = shoal.Federation.from_tensors([(x, labels[i // 3]) for i in range(6)], test=(x, labels[0]))
        >>> model = shoal.Model(lambda: shoal.lora(nn.Linear(4, 2), rank=2))
        >>> algorithm = shoal.AdapterPACFL(threshold=20.0, root_rounds=1)
        >>> local = shoal.LocalSGD(steps=10, learning_rate=1.0)
        >>> shoal.simulate(federation, model, algorithm, local, rounds=3).clients["cluster"].tolist()
        [0, 0, 0, 1, 1, 1]
    """

    threshold: PositiveFloat = 45.0
    vectors: Positive = 1
    distance: Literal["smallest", "sum"] = "smallest"
    linkage: Linkage = "average"
    root_rounds: Positive = 3
    name: Literal["adapter-pacfl"] = "adapter-pacfl"
    title: ClassVar[str] = "PACFL on adapters"
    changes_clusters: ClassVar[bool] = True

    @property
    def inner(self) -> FedAvg:
        """FedAvg, of all clients and then of each cluster's."""
        return FedAvg()

    def begun(self, state: State, layout: Layout) -> State:
        """The state of FedAvg, without clusters."""
        none = torch.zeros(0, dtype=torch.int64)
        server = {_ROOT: state.models[:0].clone(), _BASES: none[None].double(), _OF: none}
        return replace(state, server=server, clients={_CLUSTER: torch.full((len(state.assignment),), -1)})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Everybody trains one model; then each client its cluster's, and newcomers that of all."""
        root, cluster = state.server[_ROOT], state.clients[_CLUSTER][cohort.clients]
        if len(root):
            newcomer = LocalTraining(root, torch.zeros_like(cluster), keep=self._bases(root[0], cohort.layout))
            return newcomers_plan(state.models, cluster, cohort.sizes, newcomer)
        plan, last = super().plan(state, cohort), cohort.round >= self.root_rounds
        keep = self._bases(state.models[0], cohort.layout) if last else None
        return replace(plan, trainings=(replace(plan.trainings[0], keep=keep),))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The averages, and the clusters of those whose subspaces were kept."""
        after, joined = replace(state, models=aggregate.models), state.clients[_CLUSTER].clone()
        for training, kept in zip(plan.trainings, aggregate.kept, strict=True):
            if kept is None:
                continue
            if len(state.server[_ROOT]):
                present = training.participants()
                apart = self.distances(kept[present], state.server[_BASES], cohort.layout)
                nearest = mean_by_cluster(apart, state.server[_OF], len(state.models)).argmin(dim=1)
                joined[cohort.clients[present]] = nearest
                continue
            of = self.clusters_of(kept, cohort.layout)
            after = inherited(after, torch.zeros(int(of.max()) + 1, dtype=torch.int64))
            after = replace(after, server={_ROOT: after.models[:1].clone(), _BASES: kept, _OF: of})
            joined[cohort.clients] = of
            LOG.info("PACFL on adapters finds %d clusters", len(after.models))
        assignment = state.assignment.clone()
        assignment[cohort.clients] = joined[cohort.clients].clamp(min=0)
        return replace(after, clients={_CLUSTER: joined}, assignment=assignment)

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Each client uses its cluster's model, and without one the first."""
        assignment = state.clients[_CLUSTER][cohort.clients].clamp(min=0)
        return Deployed(state.models, assignment, assignment)

    def clusters_of(self, kept: Tensor, layout: Layout) -> Tensor:
        """(n,) int64, the clusters of clients by their subspaces (n, F p), of `kept_bases`."""
        if len(kept) == 1:
            return torch.zeros(1, dtype=torch.int64)
        rows, columns = torch.triu_indices(len(kept), len(kept), offset=1)
        return merged_up_to(self.threshold, self.distances(kept, kept, layout)[rows, columns], self.linkage)

    def distances(self, one: Tensor, other: Tensor, layout: Layout) -> Tensor:
        """(n, m) float64, in degrees, of clients with the subspaces (n, F p) and (m, F p), of `kept_bases`."""
        parts = list[Tensor]()
        for u, v in zip(sides_of(one, layout, self.vectors), sides_of(other, layout, self.vectors), strict=True):
            angles = principal_angles(u[:, None], v[None])
            parts.append(angles[..., 0] if self.distance == "smallest" else angles.sum(dim=2))
        return torch.stack(parts).mean(dim=0)

    def _bases(self, start: Tensor, layout: Layout) -> Callable[[Tensor], Tensor]:
        return kept_bases(start, layout, self.vectors)


_ROOT, _BASES, _OF, _CLUSTER = "adapter_pacfl.root", "adapter_pacfl.bases", "adapter_pacfl.of", "adapter_pacfl.cluster"
