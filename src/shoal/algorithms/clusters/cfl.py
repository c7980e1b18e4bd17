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
    Deployed,
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
    """FedAvg within clusters, and after each round cluster c is divided in two where its clients disagree.

    With the updates u_i of its clients in the round, n_i examples each: where ``|sum_i n_i u_i / sum_i n_i| < eps1``
    (the cluster stands still) and ``max_i |u_i| > eps2`` (its clients do not), hierarchical clustering on
    ``cos(u_i, u_j)`` makes two parts, and a is the largest cosine across them. They are divided if
    ``gamma_max < sqrt((1 - a) / 2)``. All clients begin in one cluster. The server assigns, and a client is sent the
    model of its own cluster alone.

    A client that was absent at a division, or that joins later, walks down the tree of splits, one per round. It trains
    the model as it was before the split, which moves no current model, and goes to the part that has the client with
    the most similar update. Until it arrives it uses the larger part's model. A client that `admission` refuses stays
    where it is and is asked again in its next round, with the same model.

    Ours: a cluster of two clients may be divided (the authors' notebook: of three or more); both parts go on with the
    average of the round of their division; the larger part keeps the model's number; risks, directives and members are
    inherited by both; updates are of parameters, without batch norm's statistics; with partial participation the
    criteria are of this round's clients. Norms are exact and cosines are of sketches (`UpdateSketch`), so that the
    server keeps d numbers of an update. A refused division is refused whole: no other one is searched for. Not here:
    the encryption of updates (the paper's Algorithm 5), which changes neither norm nor cosine.

    Failures: eps1 and eps2 depend on network and local training, and must be set by a look at updates' norms; an eps2
    below the updates within a group breaks off single clients. CFL divides late, so groups have fewer rounds. Sybils
    that send updates of full length make it divide further (`shoal.attacks.ModelAcquisition`).

    Args:
        eps1: norm of the average update below which a cluster may be divided, in units of parameters; 0: never.
        eps2: norm that some client's update must exceed.
        gamma_max: bound of the noise of updates around their group's own direction; 0: every split passes.
        linkage: "single", the paper's; or "complete", the notebook's.
        warm_up: rounds after which clusters may be divided (the notebook: 20).
        min_clients: clients of the round that each part must have.
        min_examples: training examples that each part's clients of the round must have together. A bound on the
            predicted risk is the number of classes times `RiskPrediction.examples_per_class`.
        sketch: d, the numbers that are kept of an update for its cosines; exact where a model has no more parameters.
        walk: how a client that was absent or joins later walks down the tree. "stepwise", the paper's: it is sent the
            model of every split on its way; or "at-once": by one update, from the model at which it stands, it goes
            down all splits below, and is sent no model between that one and its cluster's.
        admission: the smallest cosine with some client's update at which it goes to that client's part; -1: any.

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
        """FedAvg's random model, and a tree of one node, at which every client is."""
        state = super().init(engine, federation, local, stream)
        length = engine.model.layout.trainable
        sketch = UpdateSketch.draw(length, self.sketch, stream("sketch"))
        tree = ParameterTree.root(engine.model.layout.size, min(length, self.sketch))
        drawn = {"cfl.order": sketch.order, "cfl.sign": sketch.sign}
        node = torch.zeros(len(federation), dtype=torch.int64)
        return replace(state, server={**tree.tensors(), **drawn}, clients={"cfl.node": node})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Everybody trains its cluster's model, or the one at which it stands in the tree."""
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
            return torch.cat([parameters.norm(dim=1, keepdim=True), sketch.sketched(parameters)], dim=1)

        return RoundPlan(assignment, (LocalTraining(starts, start, weights, keep),))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The averages are the new models; clients walk down the tree, and clusters that disagree are divided."""
        (kept,) = aggregate.kept
        after = replace(state, models=aggregate.models)
        if kept is None:
            return after
        tree, node = ParameterTree.from_tensors(state.server), state.clients["cfl.node"].clone()
        where = node[cohort.clients]
        walks = tree.split_of(where) >= 0
        arrived = self._arrived(tree, where, kept[:, 1:])
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
            tree = tree.divided(int(where[inside[0]]), state.models[k], kept[inside, 1:], second)
            parents.append(k)
        node[cohort.clients] = arrived
        assignment = state.assignment.clone()
        assignment[cohort.clients] = tree.cluster[arrived]
        after = replace(after, assignment=assignment, server={**state.server, **tree.tensors()})
        return inherited(replace(after, clients={**state.clients, "cfl.node": node}), torch.tensor(parents))

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Each client uses its cluster's model."""
        node = state.clients["cfl.node"][cohort.clients]
        assignment = ParameterTree.from_tensors(state.server).cluster[node]
        return Deployed(state.models, assignment, assignment)

    def remote_rounds(self) -> RemoteRounds:
        """The server assigns, and a client trains the one model that it is sent."""
        return RemoteRounds(self, self, choice="server")

    def _arrived(self, tree: "ParameterTree", where: Tensor, updates: Tensor) -> Tensor:
        """(n,) int64, the nodes that clients at ``where`` (n,) reach by their ``updates`` (n, d)."""
        arrived, walks = where.clone(), tree.split_of(where) >= 0
        while bool(walks.any()):
            reached = tree.below(arrived[walks], updates[walks], self.admission)
            goes_on = (reached != arrived[walks]) & (tree.split_of(reached) >= 0)
            arrived[walks] = reached
            if self.walk == "stepwise":
                break
            walks[walks.clone()] = goes_on
        return arrived

    def _parts(self, kept: Tensor, sizes: Tensor, moved: float, number: int) -> Tensor | None:
        """(m,) bool, which of a cluster's m clients are in the second, smaller part; None: it is not divided.

        Args:
            kept: (m, 1 + d), the norm and the sketch of each client's update.
            sizes: (m,) int64, examples of each.
            moved: norm of the cluster's average update.
            number: of the round.
        """
        still = moved < self.eps1 and number > self.warm_up
        if not still or len(kept) < 2 or float(kept[:, 0].max()) <= self.eps2:
            return None
        directions = unit(kept[:, 1:]).double()
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
    """What the server remembers of S splits, in order. Node 0 is the root; split s made the nodes 2 s + 1 and 2 s + 2.

    Source: Sattler, Mueller, Samek 2019, arXiv:1910.01991, section on clients that join later (its Algorithm 4).

    Args:
        split: (S,) int64, the node that each split divided.
        cluster: (2 S + 1,) int64, the model of each node; of a divided one, that of its first part.
        models: (S, P) float32, the model that was divided, as clients trained it in that round.
        updates: (U, d) float32, the updates by which parts were told apart, with norm 1 (or 0).
        owner: (U,) int64, the part, a node, of the client that sent each.
    """

    split: Tensor
    cluster: Tensor
    models: Tensor
    updates: Tensor
    owner: Tensor

    @staticmethod
    def root(parameters: int, size: int) -> "ParameterTree":
        """The tree before any split, for models of P ``parameters`` and updates of d = ``size`` numbers."""
        none = torch.zeros(0, dtype=torch.int64)
        return ParameterTree(none, none.new_zeros(1), torch.zeros(0, parameters), torch.zeros(0, size), none.clone())

    @staticmethod
    def from_tensors(server: Tensors) -> "ParameterTree":
        """The tree in `State.server`."""
        return ParameterTree(*(server[f"cfl.{name}"] for name in _NAMES))

    def tensors(self) -> Tensors:
        """As entries of `State.server`."""
        return {f"cfl.{name}": getattr(self, name) for name in _NAMES}

    def split_of(self, nodes: Tensor) -> Tensor:
        """(w,) int64, the split that divided each of the ``nodes`` (w,); -1 where none did."""
        splits = torch.full((len(self.cluster),), -1, dtype=torch.int64)
        splits[self.split] = torch.arange(len(self.split))
        return splits[nodes]

    def below(self, nodes: Tensor, updates: Tensor, admission: float = -1.0) -> Tensor:
        """(w,) int64, the part of each divided node that has the client with the most similar update.

        Args:
            nodes: (w,) int64, all divided.
            updates: (w, d), what w clients sent from the models that were divided.
            admission: the least cosine with the most similar update; a client below it stays at its node. -1: nobody
                stays.
        """
        reached = []
        for node, s, update in zip(nodes.tolist(), self.split_of(nodes).tolist(), unit(updates), strict=True):
            parts = 2 * s + 1, 2 * s + 2
            first, second = (float((self.updates[self.owner == part] @ update).max()) for part in parts)
            part = parts[0] if first >= second else parts[1]
            # At -1 nobody may be refused by a last bit below it.
            reached.append(part if admission <= -1 or max(first, second) >= admission else node)
        return torch.tensor(reached, dtype=torch.int64)

    def divided(self, node: int, model: Tensor, updates: Tensor, second: Tensor) -> "ParameterTree":
        """The tree after one more split; the second part gets the next model.

        Args:
            node: what is divided.
            model: (P,), as clients trained it.
            updates: (m, d), of its clients.
            second: (m,) bool, the clients in the second part.
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
    """(m, d) with norm 1 each; zeros stay.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return torch.nn.functional.normalize(updates, dim=1)


def bipartition(similarity: Tensor, linkage: str) -> Tensor:
    """(m,) bool, the two parts of the last merge of hierarchical clustering; the first of m >= 2 is in the False part.

    Args:
        similarity: (m, m) float64, symmetric.
        linkage: "single": the largest similarity across the parts is the smallest possible; or "complete".

    >>> bipartition(torch.tensor([[1.0, 0.1, 0.9], [0.1, 1.0, 0.2], [0.9, 0.2, 1.0]]), "single").tolist()
    [False, True, False]
    """
    from scipy.cluster import hierarchy  # noqa: PLC0415 - takes half a second to import

    rows, columns = torch.triu_indices(len(similarity), len(similarity), offset=1)
    merges = hierarchy.linkage((1 - similarity[rows, columns]).clamp(min=0).numpy(), linkage)
    # Not cut at a height, at which several merges may be: the two parts of the last merge are never fewer.
    parts = [[i] for i in range(len(similarity))]
    for one, other in merges[:, :2].astype(int).tolist():
        parts.append(parts[one] + parts[other])
    second = torch.zeros(len(similarity), dtype=torch.bool)
    second[parts[int(merges[-1, 1])]] = True
    return ~second if second[0] else second


def inherited(state: State, parents: Tensor) -> State:
    """``state``, in which model j of the next round continues model ``parents[j]`` (K,), with all that is said of it.

    Clients that trained a model have trained both that it became, since they hold what it learnt.
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

    Inner products are kept in expectation, with a standard deviation of about sqrt(2 / d) for unit vectors, so a
    cosine is off by about 0.02 with d = 4,096. Where P is at most d, the sketch is the update itself.

    Source: the count sketch of Charikar, Chen, Farach-Colton 2002, as a projection (Weinberger et al. 2009,
    arXiv:0902.2206); here with buckets of equal size.

    Args:
        order: (P,) int64, a random permutation: consecutive entries of it share a bucket; empty: nothing is mapped.
        sign: (P,) float32, 1 or -1 for each entry in that order.
        size: d.
    """

    order: Tensor
    sign: Tensor
    size: int

    @staticmethod
    def draw(length: int, size: int, stream: Stream) -> "UpdateSketch":
        """A sketch of ``size`` numbers for updates of ``length``."""
        if length <= size:
            return UpdateSketch(torch.zeros(0, dtype=torch.int64), torch.zeros(0), size)
        order = torch.randperm(length, generator=stream("order").generator())
        heads = torch.rand(length, generator=stream("sign").generator()) < 0.5
        return UpdateSketch(order, 1 - 2 * heads.float(), size)

    def sketched(self, updates: Tensor) -> Tensor:
        """(u, P) -> (u, d), or (u, P) as it is where P is at most d.

        >>> sketch = UpdateSketch(torch.tensor([2, 0, 1]), torch.tensor([1.0, -1.0, 1.0]), 2)
        >>> sketch.sketched(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[2., 2.]])
        """
        if not len(self.order):
            return updates
        mixed = updates[:, self.order.to(updates.device)] * self.sign.to(updates)
        width = -(-len(self.order) // self.size)
        padded = torch.nn.functional.pad(mixed, (0, width * self.size - len(self.order)))
        return padded.view(len(updates), self.size, width).sum(dim=2)
