"""Early stopping by cluster: a model that is exposed enough is trained no more."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.wrapper import Wrapper
from shoal.core.settings import Count, settings
from shoal.engine import Aggregate, Algorithm, Cohort, LocalTraining, RoundPlan, State


@settings
class EarlyStopping(Wrapper):
    """Clients of ``base`` still choose a stopped cluster and use its model, but nobody trains it, and it stays.

    The directive "stop" of a cluster stops it in the rounds in which it is 1; below that, and so at 0, the cluster
    is the base's, bit for bit. Without the directive all clusters stop after a number of rounds. Clients of a stopped
    cluster sit the round out: they train nothing, not even a personal model of ``base``, they send nothing, and the
    base's own tensors of them stay. A cluster that is stopped before groups are found stays mixed.

    Args:
        base: trains the models.
        after: rounds after which all clusters stop, where the server does not say which do; left out: they do not.

    Source: ours by cluster. An overfitted model reveals its members (Yeom, Giacomelli, Fredrikson, Jha 2018,
    arXiv:1709.01604), and Song, Mittal 2021, arXiv:2003.10595, find that stopping early protects about as well as
    defences that cost more.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithm = shoal.EarlyStopping(shoal.IFCA(clusters=2), after=1)
        >>> first, last = (shoal.simulate(federation, model, algorithm, local, rounds=n).state.models for n in (1, 3))
        >>> first.equal(last)
        True
    """

    base: Algorithm = IFCA()
    after: Count | None = None
    name: Literal["early-stopping"] = "early-stopping"
    title: ClassVar[str] = "Early stopping"

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """The base's plan, in which clients of stopped clusters do not train."""
        plan, stopped = super().plan(state, cohort), self._stopped(state, cohort)
        if not bool(stopped.any()):
            return plan
        trains = ~stopped[plan.assignment]
        return replace(plan, trainings=tuple(_restricted(training, trains, stopped) for training in plan.trainings))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The base's update by those who trained; stopped models stay."""
        stopped = self._stopped(state, cohort)
        if not bool(stopped.any()):
            return super().server_update(state, cohort, plan, aggregate)
        trains = torch.nonzero(~stopped[plan.assignment]).flatten()
        if not len(trains):
            return state
        after = super().server_update(state, *_part(cohort, plan, aggregate, trains))
        # Of another number of models only the base knows which is which.
        if len(after.models) != len(stopped):
            return after
        return replace(after, models=torch.where(stopped.to(after.models.device)[:, None], state.models, after.models))

    def _stopped(self, state: State, cohort: Cohort) -> Tensor:
        """(K,) bool, the clusters that are not trained in the cohort's round."""
        if "stop" in state.directives:
            return state.strength("stop") >= 1
        return torch.full((len(state.models),), self.after is not None and cohort.round > self.after)


def _restricted(training: LocalTraining, trains: Tensor, stopped: Tensor) -> LocalTraining:
    """A local training in which only clients in ``trains`` (n,) bool take part, and no ``stopped`` (K,) model moves."""
    together = training.participants() & trains
    weights = None if training.weights is None else training.weights * (trains & ~stopped[:, None])
    return replace(training, weights=weights, participates=together)


def _part(cohort: Cohort, plan: RoundPlan, aggregate: Aggregate, some: Tensor) -> tuple[Cohort, RoundPlan, Aggregate]:
    """A round as if only the clients at ``some`` (u,) of the cohort had been asked."""
    trained = RoundPlan(
        plan.assignment[some],
        tuple(training.take(some, cohort.sizes) for training in plan.trainings),
        None if plan.losses is None else plan.losses[some],
    )
    return cohort.take(some), trained, Aggregate(aggregate.models, tuple(_rows(kept, some) for kept in aggregate.kept))


def _rows(kept: Tensor | None, some: Tensor) -> Tensor | None:
    return None if kept is None else kept[some]
