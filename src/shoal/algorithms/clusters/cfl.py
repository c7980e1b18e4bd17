"""CFL: the server splits clusters in which updates point in different directions."""

import logging
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms.wrapper import Derived
from shoal.core.randomness import Stream
from shoal.core.settings import Count, Fraction, NonNegativeFloat, Positive, settings
from shoal.data.federation import Federation
from shoal.engine import (
    Aggregate,
    Cohort,
    DeployedModels,
    Engine,
    LocalSGD,
    LocalTraining,
    RemoteRounds,
    RoundPlan,
    State,
    Tensors,
    averaging_weights,
)

LOG = logging.getLogger(__name__)


@settings
class CFL(Derived):
    """FedAvg within clusters that the server splits in two if the clients' updates disagree.

    All clients start in one cluster. After each round the server tests every cluster:

    1. The weighted mean of the clients' updates must have a norm below ``eps1``, and at least one client's update must
       have a norm above ``eps2``.
    2. Hierarchical clustering by cosine similarity of the updates proposes two parts.
    3. The cluster is split if ``gamma_max < sqrt((1 - a) / 2)``, where a is the largest cosine between updates of
       different parts.

    A client that missed a split, or joined later, moves down the tree of splits, one split per round. The client trains
    the model from before the split, and joins the part that contains the update most similar to its own. The server
    sends each client only the model of its cluster.

    Unlike in the paper, a cluster of two clients may be split, and updates exclude batch norm's statistics. The paper's
    encryption of updates (Algorithm 5) is not implemented.

    Suitable values of ``eps1`` and ``eps2`` depend on the network and on local training, so inspect the norms of the
    updates first. If ``eps2`` is smaller than the norms of updates within a group, CFL splits off individual clients.
    Malicious clients that send long updates cause further splits (`shoal.attacks.ModelAcquisition`).

    Args:
        eps1: the norm of a cluster's mean update below which the cluster may be split; 0 disables splits.
        eps2: the norm that at least one client's update must exceed before its cluster is split.
        gamma_max: the threshold in step 3, a bound on the relative noise of an update; 0 accepts every proposed split.
        linkage: the linkage of the hierarchical clustering: "single" (the paper) or "complete" (the authors' notebook).
        warm_up: the number of initial rounds without splits (20 in the authors' notebook).
        min_clients: the smallest number of this round's clients in each part of a split.
        min_examples: the smallest number of training examples in each part of a split, summed over this round's
            clients.
        sketch: the length of the sketches of updates (`UpdateSketch`), from which cosines are computed. Cosines are
            exact for models with at most ``sketch`` parameters.
        walk: how a client that missed splits moves down the tree of splits. With "stepwise" (the paper), the client
            trains the model of one split per round. With "at-once", a single update of the client decides its whole
            path.
        admission: the smallest cosine between updates at which a client that missed a split may join a part. A refused
            client tries again in its next round; -1 admits every client.

    Source: Sattler et al. 2019, arXiv:1910.01991, Algorithms 1 and 4. The implementation follows notes on the paper and
    the authors' notebook (felisat/clustered-federated-learning), because the paper's text was not available.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> result = shoal.simulate(federation, model, shoal.CFL(eps1=0.4, eps2=1.0, warm_up=1), local, rounds=3)
        >>> result.rounds.groupby("round")["cluster"].count().tolist(), result.clients["cluster"].tolist()
        ([1, 2, 2], [0, 0, 1, 1])
    """

    eps1: NonNegativeFloat = 0.4
    eps2: NonNegativeFloat = 1.6
    gamma_max: Fraction = 0.0
    linkage: Literal["single", "complete"] = "single"
    warm_up: Count = 0
    min_clients: Positive = 1
    min_examples: Count = 0
    sketch: Positive = 4096
    walk: Literal["stepwise", "at-once"] = "stepwise"
    admission: Annotated[float, Field(ge=-1, le=1, strict=True)] = -1.0
    name: Literal["cfl"] = "cfl"
    title: ClassVar[str] = "CFL"
    changes_clusters: ClassVar[bool] = True

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        state = super().init(engine, federation, local, stream)
        length = engine.model.layout.trainable
        sketch = UpdateSketch.draw(length, self.sketch, stream("sketch"))
        tree = ParameterTree.root(engine.model.layout.size, min(length, self.sketch))
        drawn = {"cfl.order": sketch.order, "cfl.sign": sketch.sign}
        node = torch.zeros(len(federation), dtype=torch.int64)
        return replace(state, server={**tree.tensors(), **drawn}, clients={"cfl.node": node})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        tree, node = ParameterTree.from_tensors(state.server), state.clients["cfl.node"][cohort.clients]
        assignment, split = tree.cluster[node], tree.split_of(node)
        walks = split >= 0
        starts = state.models
        if bool(walks.any()):
            starts = torch.cat([starts, tree.models.to(starts)])
        start = torch.where(walks, len(state.models) + split, assignment)
        weights = averaging_weights(assignment, cohort.sizes * ~walks, len(state.models))
        length = cohort.layout.trainable
        sketch = UpdateSketch(state.server["cfl.order"], state.server["cfl.sign"], self.sketch)

        def keep(update: Tensor) -> Tensor:
            parameters = update[:, :length]
            return torch.cat([parameters.norm(dim=1, keepdim=True), sketch.project(parameters)], dim=1)

        return RoundPlan(assignment, (LocalTraining(starts, start, weights, keep),))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        (kept,) = aggregate.kept
        after = replace(state, models=aggregate.models)
        if kept is None:
            return after
        tree, node = ParameterTree.from_tensors(state.server), state.clients["cfl.node"].clone()
        where = node[cohort.clients]
        walks = tree.split_of(where) >= 0
        arrived = self._walk_down(tree, where, kept[:, 1:])
        trained = plan.trainings[0].participants()
        parents = list(range(len(state.models)))
        for k in range(len(state.models)):
            inside = torch.nonzero(~walks & trained & (plan.assignment == k)).flatten()
            moved = (aggregate.models[k] - state.models[k])[: cohort.layout.trainable]
            second = self._parts(kept[inside], cohort.sizes[inside], float(moved.norm()), cohort.round)
            if second is None:
                continue
            LOG.info(
                "round %d: cluster %d is divided into %d and %d clients",
                cohort.round, k, int((~second).sum()), int(second.sum()),
            )  # fmt: skip
            arrived[inside] = len(tree.cluster) + second.long()
            tree = tree.divide(int(where[inside[0]]), state.models[k], kept[inside, 1:], second)
            parents.append(k)
        node[cohort.clients] = arrived
        assignment = state.assignment.clone()
        assignment[cohort.clients] = tree.cluster[arrived]
        after = replace(after, assignment=assignment, server={**state.server, **tree.tensors()})
        return inherit_models(replace(after, clients={**state.clients, "cfl.node": node}), torch.tensor(parents))

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        node = state.clients["cfl.node"][cohort.clients]
        assignment = ParameterTree.from_tensors(state.server).cluster[node]
        return DeployedModels(state.models, assignment, assignment)

    def remote_rounds(self) -> RemoteRounds:
        return RemoteRounds(self, self, choice="server")

    def _walk_down(self, tree: "ParameterTree", where: Tensor, updates: Tensor) -> Tensor:
        """Return the nodes (n,) int64 that clients at ``where`` (n,) reach with their ``updates`` (n, d)."""
        arrived, walks = where.clone(), tree.split_of(where) >= 0
        while bool(walks.any()):
            reached = tree.below(arrived[walks], updates[walks], self.admission)
            goes_on = (reached != arrived[walks]) & (tree.split_of(reached) >= 0)
            arrived[walks] = reached
            if self.walk == "stepwise":
                break
            walks[walks.clone()] = goes_on
        return arrived

    def _parts(self, sketches: Tensor, sizes: Tensor, average: float, number: int) -> Tensor | None:
        """Return a mask (m,) of the clients in the second, smaller part, or None if the cluster is not divided.

        Args:
            sketches: (m, 1 + d), the norm and the sketch of each client's update.
            sizes: the clients' numbers of examples, (m,) int64.
            average: the norm of the cluster's mean update.
            number: the round's number.
        """
        still = average < self.eps1 and number > self.warm_up
        if not still or len(sketches) < 2 or float(sketches[:, 0].max()) <= self.eps2:
            return None
        directions = unit(sketches[:, 1:]).double()
        cosines = directions @ directions.T
        second = bipartition(cosines, self.linkage)
        if int(second.sum()) * 2 > len(second):
            second = ~second
        across = float(cosines[~second][:, second].max().clamp(max=1))
        clients = min(int(second.sum()), int((~second).sum()))
        examples = min(int(sizes[second].sum()), int(sizes[~second].sum()))
        apart = self.gamma_max < ((1 - across) / 2) ** 0.5
        return second if apart and clients >= self.min_clients and examples >= self.min_examples else None


_NAMES = ("split", "cluster", "models", "updates", "owner")


@dataclass(frozen=True, eq=False)
class ParameterTree:
    """The server's record of S splits of clusters, as a binary tree. Node 0 is the root, and split s created the nodes
    2 s + 1 and 2 s + 2.

    Args:
        split: the node that each split divided, (S,) int64.
        cluster: the model of each node, (2 S + 1,) int64. A divided node has the model of its first part.
        models: the model that the clients received in the round of each split, (S, P) float32.
        updates: the updates of clients in a split, scaled to norm 1, (U, d) float32.
        owner: the node of the client that sent each update, (U,) int64.
    """

    split: Tensor
    cluster: Tensor
    models: Tensor
    updates: Tensor
    owner: Tensor

    @staticmethod
    def root(parameters: int, size: int) -> "ParameterTree":
        none = torch.zeros(0, dtype=torch.int64)
        return ParameterTree(none, none.new_zeros(1), torch.zeros(0, parameters), torch.zeros(0, size), none.clone())

    @staticmethod
    def from_tensors(server: Tensors) -> "ParameterTree":
        return ParameterTree(*(server[f"cfl.{name}"] for name in _NAMES))

    def tensors(self) -> Tensors:
        return {f"cfl.{name}": getattr(self, name) for name in _NAMES}

    def split_of(self, nodes: Tensor) -> Tensor:
        """Return the split (w,) int64 that divided each of the ``nodes`` (w,); -1 for an undivided node."""
        splits = torch.full((len(self.cluster),), -1, dtype=torch.int64)
        splits[self.split] = torch.arange(len(self.split))
        return splits[nodes]

    def below(self, nodes: Tensor, updates: Tensor, admission: float = -1.0) -> Tensor:
        """Return the part of each divided node that contains the client with the most similar update, as (w,) int64.

        Args:
            nodes: the divided nodes at which w clients are, (w,) int64.
            updates: the updates of these clients to the divided models, (w, d).
            admission: the smallest cosine with the most similar update for moving to a part; -1 admits every client.
        """
        reached = []
        for node, s, update in zip(nodes.tolist(), self.split_of(nodes).tolist(), unit(updates), strict=True):
            parts = 2 * s + 1, 2 * s + 2
            first, second = (float((self.updates[self.owner == part] @ update).max()) for part in parts)
            part = parts[0] if first >= second else parts[1]
            # At -1 nobody may be refused by a last bit below it.
            reached.append(part if admission <= -1 or max(first, second) >= admission else node)
        return torch.tensor(reached, dtype=torch.int64)

    def divide(self, node: int, model: Tensor, updates: Tensor, second: Tensor) -> "ParameterTree":
        """Divide a node, and give its second part the next free model.

        Args:
            node: the node to divide.
            model: the node's model before the split, (P,).
            updates: the updates of the node's m clients, (m, d).
            second: whether each client belongs to the second part, (m,) bool.
        """
        new = torch.stack([self.cluster[node], self.cluster.max() + 1])
        return replace(
            self,
            split=torch.cat([self.split, torch.tensor([node])]),
            cluster=torch.cat([self.cluster, new]),
            models=torch.cat([self.models, model[None].to(self.models)]),
            updates=torch.cat([self.updates, unit(updates)]),
            owner=torch.cat([self.owner, len(self.cluster) + second.long()]),
        )


def unit(updates: Tensor) -> Tensor:
    """Scale updates (m, d) to norm 1; zero vectors stay zero.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return torch.nn.functional.normalize(updates, dim=1)


def bipartition(similarity: Tensor, linkage: str) -> Tensor:
    """Return the two parts before the last merge of hierarchical clustering, (m,) bool; item 0 is in part False.

    Args:
        similarity: the symmetric matrix of similarities between m >= 2 items, (m, m) float64.
        linkage: the linkage, "single" or "complete".

    >>> bipartition(torch.tensor([[1.0, 0.1, 0.9], [0.1, 1.0, 0.2], [0.9, 0.2, 1.0]]), "single").tolist()
    [False, True, False]
    """
    from scipy.cluster import hierarchy  # noqa: PLC0415 - takes half a second to import

    rows, columns = torch.triu_indices(len(similarity), len(similarity), offset=1)
    merges = hierarchy.linkage((1 - similarity[rows, columns]).clamp(min=0).numpy(), linkage)
    # Not cut at a height, since several merges may have the same height.
    parts = [[i] for i in range(len(similarity))]
    for left, right in merges[:, :2].astype(int).tolist():
        parts.append(parts[left] + parts[right])
    second = torch.zeros(len(similarity), dtype=torch.bool)
    second[parts[int(merges[-1, 1])]] = True
    return ~second if second[0] else second


def inherit_models(state: State, parents: Tensor) -> State:
    """Return the state in which model j continues model ``parents[j]``, with the parent's risk and members."""
    if torch.equal(parents, torch.arange(len(state.models))):
        return state
    return replace(
        state,
        models=state.models[parents],
        risks=state.risks[parents],
        risk_intervals=state.risk_intervals[parents],
        directives={name: values[parents] for name, values in state.directives.items()},
        trained=state.trained[:, parents].clone(),
    )


@dataclass(frozen=True, eq=False)
class UpdateSketch:
    """Random linear map of updates (u, P) to sketches (u, d) with approximately the same inner products.

    Each entry of an update gets a random sign and is added to one of d buckets. For unit vectors the standard deviation
    of an inner product is about sqrt(2 / d), or 0.02 with d = 4,096.

    Source: the count sketch of Charikar et al. 2002, as a projection (Weinberger et al. 2009, arXiv:0902.2206).

    Args:
        order: a random permutation of the entries, (P,) int64; empty if the sketch equals the update. Consecutive
            entries share a bucket.
        sign: the random sign of each permuted entry, 1 or -1, (P,) float32.
        size: the number of buckets d.
    """

    order: Tensor
    sign: Tensor
    size: int

    @staticmethod
    def draw(length: int, size: int, stream: Stream) -> "UpdateSketch":
        if length <= size:
            return UpdateSketch(torch.zeros(0, dtype=torch.int64), torch.zeros(0), size)
        order = torch.randperm(length, generator=stream("order").generator())
        heads = torch.rand(length, generator=stream("sign").generator()) < 0.5
        return UpdateSketch(order, 1 - 2 * heads.float(), size)

    def project(self, updates: Tensor) -> Tensor:
        """Map updates (u, P) to sketches (u, d); updates with at most d entries are returned unchanged.

        >>> sketch = UpdateSketch(torch.tensor([2, 0, 1]), torch.tensor([1.0, -1.0, 1.0]), 2)
        >>> sketch.project(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[2., 2.]])
        """
        if not len(self.order):
            return updates
        mixed = updates[:, self.order.to(updates.device)] * self.sign.to(updates)
        width = -(-len(self.order) // self.size)
        padded = torch.nn.functional.pad(mixed, (0, width * self.size - len(self.order)))
        return padded.view(len(updates), self.size, width).sum(dim=2)
