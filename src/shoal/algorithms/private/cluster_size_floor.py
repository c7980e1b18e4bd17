"""A floor on cluster sizes: random clients fill up small clusters."""

from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.wrapper import Wrapper
from shoal.core.errors import InputError
from shoal.core.settings import Positive, settings
from shoal.engine import Algorithm, Cohort, LocalSGD, RoundPlan, State


@runtime_checkable
class PlansAnyAssignment(Protocol):
    """An algorithm that plans any assignment, as `IFCA.plan_of` does."""

    def plan_of(self, assignment: Tensor, losses: Tensor | None, state: State, cohort: Cohort) -> RoundPlan:
        """Plan training of each client's model by ``assignment`` (n,)."""
        ...


@settings
class ClusterSizeFloor(Wrapper):
    """A wrapper that moves random clients to models that fewer than B clients of the round chose.

    A client is drawn uniformly from all whose model has more than B clients, and trains the smallest model (the first
    of several), until every model has B clients or none has more. The draw affects one round's training: clients use
    the model that the base assigns, and choose again in the next round.

    The directive "size_floor" of a cluster, in [0, 1], lowers its floor to round(B * directive); without it the floor
    is B. At 0 the cluster receives no client, but may give some. At 0 for all clusters this is ``base``, bit for bit.

    Args:
        base: an algorithm that plans by ``plan_of``, itself or in its ``ifca``: IFCA, IFCA-MIR, IFCA within limits, or
            your own. Wrap other wrappers around this one.
        min_clients: B, the clients that train each model in a round.

    A floor is not a guarantee of differential privacy. Models that more clients train reveal less about each.

    Source: no paper's algorithm. Inspired by RR-Cluster (Yang, Hu, Kim, Li 2025, arXiv:2508.06183), which guarantees a
    minimum number of clients per cluster by random rebalancing, so that client-level noise costs less.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> federation = shoal.Federation.from_tensors([one, one, one, other], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> algorithm = shoal.ClusterSizeFloor(shoal.IFCA(clusters=2), min_clients=2)
        >>> result = shoal.simulate(federation, model, algorithm, shoal.LocalSGD(), rounds=3)
        >>> result.rounds["clients"].tolist(), result.clients["cluster"].tolist()
        ([2, 2, 2, 2, 2, 2], [0, 0, 0, 1])
    """

    base: Algorithm = IFCA()
    min_clients: Positive = 5
    name: Literal["cluster-size-floor"] = "cluster-size-floor"
    title: ClassVar[str] = "Cluster size floor"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        self._planner()
        super().check(local, risk_period)

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        plan = super().plan(state, cohort)
        floors = (self.min_clients * state.strength("size_floor")).round().long()
        order = torch.randperm(len(cohort), generator=cohort.stream("cluster-size-floor").generator())
        assignment = rebalance(plan.assignment, floors, self.min_clients, order)
        if torch.equal(assignment, plan.assignment):
            return plan
        return self._planner().plan_of(assignment, plan.losses, state, cohort)

    def _planner(self) -> PlansAnyAssignment:
        for algorithm in (self.base, getattr(self.base, "ifca", None)):
            if isinstance(algorithm, PlansAnyAssignment):
                return algorithm
        raise InputError(
            "ClusterSizeFloor's 'base' must be IFCA, IFCA-MIR, IFCA within limits, or an algorithm with a method "
            f"'plan_of'; got {type(self.base).__name__}"
        )


def rebalance(assignment: Tensor, floors: Tensor, keep: int, order: Tensor) -> Tensor:
    """Move clients until no model is below its floor while another has more than ``keep`` clients.

    Args:
        assignment: (n,) int64, each client's choice.
        floors: (K,) int64, the least clients per model, at most ``keep``.
        keep: the least clients of a model after it gave some away.
        order: (n,) int64, a random permutation of the clients. One pass is enough: a model that gave all it can, or
            received a client, never has clients to give again. So each move is a uniform draw.

    >>> rebalance(torch.tensor([0, 0, 0, 1]), torch.tensor([2, 2]), 2, torch.tensor([3, 1, 0, 2]))
    tensor([0, 1, 0, 1])
    """
    models, least = assignment.tolist(), floors.tolist()
    sizes = torch.bincount(assignment, minlength=len(least)).tolist()
    for client in order.tolist():
        short = [floor - size for floor, size in zip(least, sizes, strict=True)]
        receiver, giver = short.index(max(short)), models[client]
        if short[receiver] <= 0:
            break
        if sizes[giver] > keep:
            models[client] = receiver
            sizes[giver] -= 1
            sizes[receiver] += 1
    return torch.tensor(models, dtype=torch.int64)
