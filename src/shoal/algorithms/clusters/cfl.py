"""CFL: clusters that the server divides in two where clients' updates point in different directions."""

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
    """FedAvg within clusters; after each round a cluster is divided in two if its clients disagree.

    Let u_i be the updates of the cluster's clients in the round, and n_i their numbers of examples. If
    ``|sum_i n_i u_i / sum_i n_i| < eps1`` (the cluster stands still) and ``max_i |u_i| > eps2`` (its clients do not),
    hierarchical clustering on ``cos(u_i, u_j)`` makes two parts, and a is the largest cosine across them. The cluster
    is divided if ``gamma_max < sqrt((1 - a) / 2)``. All clients begin in one cluster. The server assigns clients, and
    sends each client only its cluster's model.

    A client that was absent at a division, or that joins later, walks down the tree of splits, one per round. It trains
    the model from before the split, which moves no current model, and goes to the part that has the client with the
    most similar update. Until it arrives it uses the larger part's model. A client that `admission` refuses stays where
    it is and tries again in its next round, with the same model.

    Ours: a cluster of two clients may be divided (the authors' notebook: three or more); both parts continue from the
    average of the round of their division; the larger part keeps the model's number; both inherit risks, directives and
    members; updates exclude batch norm's statistics; with partial participation the criteria use this round's clients.
    Norms are exact and cosines are of sketches (`UpdateSketch`), so the server keeps d numbers per update. After a
    refused division no other one is tried. The encryption of updates (the paper's Algorithm 5), which changes neither
    norm nor cosine, is not implemented.

    Failures: eps1 and eps2 depend on network and local training, so look at updates' norms first; an eps2 below the
    updates within a group breaks off single clients. CFL divides late, so groups have fewer rounds. Sybils that send
    updates of full length make it divide further (`shoal.attacks.ModelAcquisition`).

    Args:
        eps1: norm of the average update below which a cluster may be divided, in units of parameters; 0: never.
        eps2: norm that some client's update must exceed.
        gamma_max: bound of the noise of updates around their group's own direction; 0: every split passes.
        linkage: "single", the paper's; or "complete", the notebook's.
        warm_up: rounds after which clusters may be divided (the notebook: 20).
        min_clients: clients of the round that each part must have.
        min_examples: training examples that each part's clients of the round must have together. A bound on the
            predicted risk is the number of classes times `RiskPrediction.examples_per_class`.
        sketch: d, the size of the sketch of an update for its cosines; exact for models with at most d parameters.
        walk: how a client that was absent or joins later walks down the tree. "stepwise" (the paper): it receives the
            model of every split on its way. "at-once": one update, from the model at its node, takes it down all splits
            below, so it receives no model in between.
        admission: the smallest cosine with a client's update for joining that client's part; -1: any.

    Source: Sattler, Mueller, Samek 2019, arXiv:1910.01991: the bipartition of Algorithm 1, the conditions for a split
    with eps1, eps2 and gamma_max, and Algorithm 4 for clients that join later. The paper's text was not at hand: these
    are from notes on it and from the authors' notebook (felisat/clustered-federated-learning), as are the settings.

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
        """Plan training of the clusters' models, and of the models at the tree's nodes for clients on their way."""
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
        """Take the averages as models, move clients down the tree, and divide clusters that disagree."""
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
        """Return a mask (m,) of the cluster's clients in the second, smaller part; None: it is not divided.

        Args:
            sketches: (m, 1 + d), the norm and the sketch of each client's update.
            sizes: (m,) int64, their numbers of examples.
            average: norm of the cluster's average update.
            number: the round.
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
    """The server's record of S splits, in order. Node 0 is the root; split s made the nodes 2 s + 1 and 2 s + 2.

    Source: Sattler, Mueller, Samek 2019, arXiv:1910.01991, section on clients that join later (its Algorithm 4).

    Args:
        split: (S,) int64, the node that each split divided.
        cluster: (2 S + 1,) int64, the model of each node; for a divided node, the model of its first part.
        models: (S, P) float32, the divided model, as clients received it in that round.
        updates: (U, d) float32, the updates that told parts apart, with norm 1 (or 0).
        owner: (U,) int64, the part (a node) of the client that sent each update.
    """

    split: Tensor
    cluster: Tensor
    models: Tensor
    updates: Tensor
    owner: Tensor

    @staticmethod
    def root(parameters: int, size: int) -> "ParameterTree":
        """Return the tree before any split, for models of P ``parameters`` and updates of d = ``size`` numbers."""
        none = torch.zeros(0, dtype=torch.int64)
        return ParameterTree(none, none.new_zeros(1), torch.zeros(0, parameters), torch.zeros(0, size), none.clone())

    @staticmethod
    def from_tensors(server: Tensors) -> "ParameterTree":
        """Read the tree from `State.server`."""
        return ParameterTree(*(server[f"cfl.{name}"] for name in _NAMES))

    def tensors(self) -> Tensors:
        """Return the tree as entries of `State.server`."""
        return {f"cfl.{name}": getattr(self, name) for name in _NAMES}

    def split_of(self, nodes: Tensor) -> Tensor:
        """Return the split (w,) int64 that divided each of the ``nodes`` (w,); -1: none."""
        splits = torch.full((len(self.cluster),), -1, dtype=torch.int64)
        splits[self.split] = torch.arange(len(self.split))
        return splits[nodes]

    def below(self, nodes: Tensor, updates: Tensor, admission: float = -1.0) -> Tensor:
        """Return the part (w,) int64 of each divided node that has the client with the most similar update.

        Args:
            nodes: (w,) int64, all divided.
            updates: (w, d), the updates of w clients to the divided models.
            admission: the least cosine with the most similar update; a client below it stays at its node. -1: any.
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
        """Divide a node whose m clients sent ``updates`` (m, d) to ``model`` (P,); the second part gets the next model.

        ``second`` (m,) bool are the clients in the second part.
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
    """Scale updates (m, d) to norm 1; zeros stay.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return torch.nn.functional.normalize(updates, dim=1)


def bipartition(similarity: Tensor, linkage: str) -> Tensor:
    """Return the parts (m,) bool of the last merge of hierarchical clustering; the first of m >= 2 is in part False.

    Args:
        similarity: (m, m) float64, symmetric.
        linkage: "single": the largest similarity across the parts is the smallest possible; or "complete".

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
    """Let model j of the next round continue model ``parents[j]`` (K,), with its risk, directives and members.

    The members of a divided model are members of both parts.
    """
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
    """Map of updates (u, P) to short vectors (u, d): every entry gets a random sign and is added to one of d buckets.

    Inner products keep their expectation, with a standard deviation of about sqrt(2 / d) for unit vectors: a cosine is
    off by about 0.02 with d = 4,096. If P is at most d, the sketch is the update itself.

    Source: the count sketch of Charikar, Chen, Farach-Colton 2002, as a projection (Weinberger et al. 2009,
    arXiv:0902.2206); here with buckets of equal size.

    Args:
        order: (P,) int64, a random permutation, whose consecutive entries share a bucket; empty: the identity.
        sign: (P,) float32, 1 or -1 per entry in that order.
        size: d.
    """

    order: Tensor
    sign: Tensor
    size: int

    @staticmethod
    def draw(length: int, size: int, stream: Stream) -> "UpdateSketch":
        """Draw a sketch of ``size`` numbers for updates of ``length``."""
        if length <= size:
            return UpdateSketch(torch.zeros(0, dtype=torch.int64), torch.zeros(0), size)
        order = torch.randperm(length, generator=stream("order").generator())
        heads = torch.rand(length, generator=stream("sign").generator()) < 0.5
        return UpdateSketch(order, 1 - 2 * heads.float(), size)

    def project(self, updates: Tensor) -> Tensor:
        """Map updates (u, P) to sketches (u, d), or return them if P is at most d.

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
