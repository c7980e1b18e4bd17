"""HiLoRA: low-rank adapters in three tiers, of all clients, of clusters and of clients, trained one after another."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.adapter_subspaces import adapter_slots, kept_bases, mean_by_cluster, rank_axis, similarity
from shoal.algorithms.clusters.cfl import inherited
from shoal.algorithms.clusters.one_shot import canonical_labels, newcomers_plan
from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Derived
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.settings import NonNegativeFloat, Positive, settings
from shoal.engine import (
    Aggregate,
    ClientVectors,
    Cohort,
    Deployed,
    Gradient,
    LocalSGD,
    LocalTraining,
    PersonalModels,
    RoundPlan,
    State,
    require_plain_sgd,
)


@settings
class HiLoRA(Derived):
    """The ranks of each LoRA adapter are divided in three: root, cluster and leaf, trained one after another.

    With them a layer's weight is ``W + s (B_r A_r + B_c A_c + B_l A_l)``, which is one adapter of `shoal.lora` of the
    sum of their ranks.

    1. ``tier_rounds[0]`` rounds: everybody trains the root's ranks, which are averaged over all.
    2. From what its clients send in the last of these rounds the server makes clusters: with the update ``dW_i`` of
       each layer's ``B_r A_r``, U_i the first ``directions`` singular vectors of ``dW_i`` on one side, the similarity
       of clients is ``|U_i' U_j|_F^2 / directions``, the mean of the squared cosines of the principal angles (as in
       `PACFL`, of adapters in the place of data), averaged over both sides of all layers. Average linkage gives the
       clusters, as many as have the largest silhouette.
    3. ``tier_rounds[1]`` rounds: the root is fixed, and each cluster trains the second tier.
    4. All later rounds: root and cluster are fixed, and each client trains the third tier, of which it sends nothing.

    A tier with matrix A_t is trained on the loss plus ``orthogonality * |A_t Q|_F^2``, where the columns of Q are an
    orthonormal basis of the rows of the earlier tiers' matrices. What is trained beside adapters, such as a head, is
    trained by the first two tiers. A network without adapters has no leaves: clusters go on, and are made of the
    updates of its weights. A client that was not in the last root round trains the root in its next one, which moves no
    model, and joins the cluster that it is most similar to on average.

    The server sees in which directions each client's adapter moved, as it sees every update. Subspaces have no sign:
    groups that push the same directions the other way, such as two that swap two labels, look alike.

    Args:
        tier_rounds: rounds of the root, and then of the clusters' tier.
        max_clusters: the most clusters; never one cluster alone, unless this is 1.
        directions: singular vectors of each side.
        orthogonality: strength of the penalty.

    Raises:
        InputError: adapters of a rank below 3, a network with batch norm, or local training that is more than SGD.

    Source: Peng, Zou, Zeng, Li, Chen, Li, Wang 2026, arXiv:2603.02785. Only its abstract was at hand: adapters at three
    tiers, "cross-tier orthogonality and cascaded optimization", and clusters by "subspace similarity analysis". Ours:
    what is orthogonal and by which penalty (as in O-LoRA, arXiv:2310.14152), that ranks are divided in thirds, the
    subspaces and linkage above, the choice of K, and that a client's leaf is its own alone.

    Example:
        >>> import shoal, torch
        >>> from torch import nn
        >>> x = torch.eye(4)[torch.arange(8) % 4]
        >>> swapped = [torch.arange(8) % 2, torch.arange(8) // 2 % 2]
        >>> federation = shoal.Federation.from_tensors([(x, swapped[i // 3]) for i in range(6)], test=(x, swapped[0]))
        >>> model = shoal.Model(lambda: shoal.lora(nn.Linear(4, 2), rank=3))
        >>> algorithm = shoal.HiLoRA(tier_rounds=(1, 5), max_clusters=2, directions=1)
        >>> local = shoal.LocalSGD(steps=10, learning_rate=1.0)
        >>> shoal.simulate(federation, model, algorithm, local, rounds=8).clients["cluster"].tolist()
        [0, 0, 0, 1, 1, 1]
    """

    tier_rounds: tuple[Positive, Positive] = (10, 20)
    max_clusters: Positive = 8
    directions: Positive = 2
    orthogonality: NonNegativeFloat = 0.1
    name: Literal["hilora"] = "hilora"
    title: ClassVar[str] = "HiLoRA"
    changes_clusters: ClassVar[bool] = True

    @property
    def inner(self) -> FedAvg:
        """FedAvg, of the root."""
        return FedAvg()

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Local steps must be plain gradient steps, of which some ranks are taken."""
        require_plain_sgd(local, "HiLoRA")

    def check_layout(self, layout: Layout) -> None:
        """Adapters must have a rank for each tier, and nothing else may move than what is trained."""
        moving = [slot.name for slot in layout.slots if slot.start >= layout.trainable]
        require(not moving, f"HiLoRA averages trained parameters alone, but the network has the buffers {moving}")
        for a, b in adapter_slots(layout):
            require(b.shape[1] >= 3, f"HiLoRA needs adapters of rank 3 at least; '{a.name}' has {b.shape[1]}")

    def begun(self, state: State, layout: Layout) -> State:
        """The state of FedAvg, and everybody's leaf as it begins."""
        leaf = state.models[0, tiers(layout) == 2]
        none = torch.zeros(0, dtype=torch.int64)
        server = {_ROOT: state.models[:0].clone(), _BASES: none[None].double(), _OF: none}
        count = len(state.assignment)
        personal = {_LEAF: ClientVectors.same(leaf, count)} if len(leaf) else {}
        return replace(
            state,
            server={**server, _BEGAN: torch.zeros(1, dtype=torch.int64)},
            clients={_CLUSTER: torch.full((count,), -1)},
            personal=personal,
        )

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """The root; then each cluster's tier; then each client's own."""
        if not self._clustered(state):
            plan = super().plan(state, cohort)
            keep = self._bases(state.models[0], cohort.layout) if cohort.round >= self.tier_rounds[0] else None
            return replace(plan, trainings=(self._tier(plan.trainings[0], 0, cohort.layout, keep),))
        root, cluster = state.server[_ROOT], state.clients[_CLUSTER][cohort.clients]
        newcomer = LocalTraining(root, torch.zeros_like(cluster))
        newcomer = self._tier(newcomer, 0, cohort.layout, self._bases(root[0], cohort.layout))
        plan = newcomers_plan(state.models, cluster, cohort.sizes, newcomer)
        members, *others = plan.trainings
        if not self._leaves(state, cohort):
            return replace(plan, trainings=(self._tier(members, 1, cohort.layout), *others))
        inside = tiers(cohort.layout) == 2
        own = LocalTraining(
            self._own(state, cohort, torch.arange(len(cohort))),
            torch.arange(len(cohort)),
            participates=members.participates,
        )
        own = self._tier(own, 2, cohort.layout, lambda update: update[:, inside.to(update.device)])
        return replace(plan, trainings=(own, *others))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The averages, the clusters after the last round of the root, newcomers' clusters, and leaves."""
        # What is fixed stays to the last bit.
        moves = _inside(tiers(cohort.layout), int(self._clustered(state)))
        if self._clustered(state) and self._leaves(state, cohort):
            moves = torch.zeros_like(moves)
        after = replace(state, models=torch.where(moves, aggregate.models, state.models))
        if not self._clustered(state):
            (bases,) = aggregate.kept
            return after if bases is None else self._divided(after, cohort, bases)
        cluster, personal = state.clients[_CLUSTER].clone(), state.personal
        for training, kept in zip(plan.trainings, aggregate.kept, strict=True):
            present = training.participants()
            if kept is not None and isinstance(training.step_rule, _Tier) and training.step_rule.tier == 2:
                moved = state.personal[_LEAF].moved(cohort.clients[present], kept[present].cpu())
                personal = {_LEAF: moved}
            elif kept is not None:
                alike = similarity(kept[present].cpu(), state.server[_BASES], cohort.layout, self.directions)
                nearest = mean_by_cluster(alike, state.server[_OF], len(state.models)).argmax(dim=1)
                cluster[cohort.clients[present]] = nearest
        assignment = state.assignment.clone()
        assignment[cohort.clients] = cluster[cohort.clients]
        return replace(after, clients={_CLUSTER: cluster}, assignment=assignment, personal=personal)

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Each client uses its cluster's model, with its own leaf once leaves were trained; one without a cluster, the
        root.
        """
        cluster = state.clients[_CLUSTER][cohort.clients]
        assignment, begun = cluster.clamp(min=0), self._leaves(state, replace(cohort, round=cohort.round - 1))
        if not state.personal or not self._clustered(state) or (not begun and bool((cluster >= 0).all())):
            return Deployed(state.models, assignment, assignment)
        models = PersonalModels(len(cohort), lambda some: self._own(state, cohort, some))
        return Deployed(models, torch.arange(len(cohort)), assignment)

    def _clustered(self, state: State) -> bool:
        return len(state.server[_ROOT]) > 0

    def _leaves(self, state: State, cohort: Cohort) -> bool:
        """Whether clients train their own tier in this round."""
        return bool(state.personal) and cohort.round > int(state.server[_BEGAN]) + self.tier_rounds[1]

    def _own(self, state: State, cohort: Cohort, some: Tensor) -> Tensor:
        """(u, P), the models that the cohort's clients at ``some`` (u,) use."""
        clients = cohort.clients[some]
        cluster = state.clients[_CLUSTER][clients]
        rows = torch.where((cluster >= 0)[:, None], state.models[cluster.clamp(min=0)], state.server[_ROOT])
        rows[:, tiers(cohort.layout) == 2] = state.personal[_LEAF][clients]
        return rows

    def _tier(
        self, training: LocalTraining, tier: int, layout: Layout, keep: Callable[[Tensor], Tensor] | None = None
    ) -> LocalTraining:
        """The training of one tier alone."""
        return replace(training, keep=keep, step_rule=_Tier(tier, layout, tiers(layout), self.orthogonality))

    def _bases(self, start: Tensor, layout: Layout) -> Callable[[Tensor], Tensor]:
        return kept_bases(start, layout, self.directions, tiers(layout) == 0)

    def _divided(self, state: State, cohort: Cohort, kept: Tensor) -> State:
        """``state`` after the last round of the root, with clusters."""
        alike = similarity(kept.cpu(), kept.cpu(), cohort.layout, self.directions)
        of = linked(1 - alike, self.max_clusters)
        count = int(of.max()) + 1
        after = inherited(state, torch.zeros(count, dtype=torch.int64))
        cluster, assignment = state.clients[_CLUSTER].clone(), state.assignment.clone()
        cluster[cohort.clients], assignment[cohort.clients] = of, of
        server = {_ROOT: state.models[:1].clone(), _BASES: kept.cpu(), _OF: of, _BEGAN: torch.tensor([cohort.round])}
        return replace(after, server=server, clients={_CLUSTER: cluster}, assignment=assignment)


_ROOT, _BASES, _OF, _BEGAN = "hilora.root", "hilora.bases", "hilora.of", "hilora.began"
_CLUSTER, _LEAF = "hilora.cluster", "hilora.leaf"


@dataclass(frozen=True, eq=False)
class _Tier:
    """A step of the ranks of one tier, with the penalty on what they share with earlier tiers."""

    tier: int
    layout: Layout
    tiers: Tensor
    orthogonality: float
    batches: int = 1

    def step(self, rows: Tensor, gradient: Gradient, learning_rate: float) -> Tensor:
        """See `shoal.engine.StepRule`."""
        moves = gradient(rows, 0)
        inside = _inside(self.tiers, self.tier).to(rows.device)
        going = (moves != 0).any(dim=1, keepdim=True)
        return rows - learning_rate * inside * going * (moves + self._penalty(rows))

    def _penalty(self, rows: Tensor) -> Tensor:
        """The gradient (u, P) of ``orthogonality * |A_t Q|_F^2`` by A_t."""
        total = torch.zeros_like(rows)
        if self.tier == 0 or self.orthogonality == 0:
            return total
        for a, b in adapter_slots(self.layout):
            axis = rank_axis(a, b)
            of = torch.arange(b.shape[1]) * 3 // b.shape[1]
            matrices = a.view(rows).movedim(axis + 1, 1).flatten(2)
            earlier, mine = matrices[:, of < self.tier], matrices[:, of == self.tier]
            place = a.view(total).movedim(axis + 1, 1)
            basis = torch.linalg.qr(earlier.mT).Q
            moves = 2 * self.orthogonality * mine @ basis @ basis.mT
            place[:, of == self.tier] = moves.reshape(place[:, of == self.tier].shape)
        return total


def tiers(layout: Layout) -> Tensor:
    """(P,) int64, the tier of each parameter: 0, 1 or 2 of an adapter's, and -1 of others."""
    of = torch.full((layout.size,), -1)
    for a, b in adapter_slots(layout):
        ranks = torch.arange(b.shape[1]) * 3 // b.shape[1]
        for slot, axis in ((a, rank_axis(a, b)), (b, 1)):
            view = slot.view(of).movedim(axis, -1)
            view.copy_(ranks.expand(view.shape))
    return of


def _inside(of: Tensor, tier: int) -> Tensor:
    """(P,) bool, the parameters that are trained with a tier."""
    return (of == tier) | ((of == -1) & (tier < 2))


def linked(distances: Tensor, most: int) -> Tensor:
    """(n,) int64, clusters by average linkage of distances (n, n), as many, from 2 to ``most``, as have the largest
    silhouette; one cluster where ``most`` is 1 or there are fewer than three clients.

    >>> linked(torch.tensor([[0.0, 0.1, 0.9], [0.1, 0.0, 0.8], [0.9, 0.8, 0.0]]), 2).tolist()
    [0, 0, 1]
    """
    from scipy.cluster import hierarchy  # noqa: PLC0415 - takes half a second to import
    from sklearn.metrics import silhouette_score  # noqa: PLC0415 - scikit-learn takes a second to import

    count = len(distances)
    if count < 3 or most == 1:
        return torch.zeros(count, dtype=torch.int64)
    square = ((distances + distances.T) / 2).clamp(min=0).fill_diagonal_(0)
    rows, columns = torch.triu_indices(count, count, offset=1)
    merges = hierarchy.linkage(square[rows, columns].numpy(), "average")
    cuts = [hierarchy.fcluster(merges, k, "maxclust") for k in range(2, min(most, count - 1) + 1)]
    cuts = [cut for cut in cuts if len(set(cut.tolist())) > 1]
    if not cuts:
        return torch.zeros(count, dtype=torch.int64)
    best = max(cuts, key=lambda cut: float(silhouette_score(square.numpy(), cut, metric="precomputed")))
    return canonical_labels(torch.from_numpy(best))
