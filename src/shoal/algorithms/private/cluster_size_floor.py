"""A minimum cluster size: random clients of larger clusters train the models of smaller clusters."""

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
    """An algorithm that can plan a given assignment of clients to models, as `IFCA.plan_of` does."""

    def plan_of(self, assignment: Tensor, losses: Tensor | None, state: State, cohort: Cohort) -> RoundPlan: ...


@settings
class ClusterSizeFloor(Wrapper):
    """A wrapper that moves random clients to models that fewer than ``min_clients`` clients chose in the round.

    Clients are drawn uniformly from models with more than ``min_clients`` clients, until every model has enough clients
    or no model has clients to spare. A moved client trains the small cluster's model for one round, but keeps the
    model that ``base`` assigns. A minimum cluster size is not a guarantee of differential privacy.

    A coordinator can lower a cluster's minimum size: its directive "size_floor", in [0, 1], is a factor. With 0 for all
    clusters, the result equals that of ``base`` bit for bit.

    Args:
        base: an algorithm with a method ``plan_of``, such as IFCA, IFCA-MIR or IFCA within limits. Put other wrappers
            around `ClusterSizeFloor`, not inside.
        min_clients: the smallest number of clients that train each model in a round.

    Source: inspired by RR-Cluster (Yang et al. 2025, arXiv:2508.06183), which rebalances clusters at random.

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
            f"'plan_of' (got {type(self.base).__name__})"
        )


def rebalance(assignment: Tensor, floors: Tensor, keep: int, order: Tensor) -> Tensor:
    """Move clients from models with more than ``keep`` clients to models below their minimum size.

    Args:
        assignment: the model that each client chose, (n,) int64.
        floors: the minimum number of clients per model, at most ``keep``, (K,) int64.
        keep: the number of clients that a model keeps when clients are moved away.
        order: a random permutation of the clients, (n,) int64.

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
