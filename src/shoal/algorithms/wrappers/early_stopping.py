"""Early stopping per cluster."""

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
    """A wrapper that stops the training of clusters; clients can still choose a stopped cluster's model.

    A coordinator can stop a cluster for a round by the directive "stop" = 1. Without this directive, all clusters stop
    after ``after`` rounds. Clients of a stopped cluster neither train nor send anything. A cluster that stops before
    the groups separate keeps clients of several groups.

    Args:
        base: the algorithm that trains the models.
        after: the number of rounds after which all clusters stop; by default no cluster stops.

    Source: Song, Mittal 2021, arXiv:2003.10595, which finds that early stopping protects about as well as costlier
    defences.

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
        plan, stopped = super().plan(state, cohort), self._stop_mask(state, cohort)
        if not bool(stopped.any()):
            return plan
        trains = ~stopped[plan.assignment]
        return replace(plan, trainings=tuple(_restrict(training, trains, stopped) for training in plan.trainings))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        stopped = self._stop_mask(state, cohort)
        if not bool(stopped.any()):
            return super().server_update(state, cohort, plan, aggregate)
        trains = torch.nonzero(~stopped[plan.assignment]).flatten()
        if not len(trains):
            return state
        after = super().server_update(state, *_part(cohort, plan, aggregate, trains))
        # After a split or merge only the base knows which model is which.
        if len(after.models) != len(stopped):
            return after
        return replace(after, models=torch.where(stopped.to(after.models.device)[:, None], state.models, after.models))

    def _stop_mask(self, state: State, cohort: Cohort) -> Tensor:
        """Return a mask (K,) bool of the clusters that stop in the cohort's round."""
        if "stop" in state.directives:
            return state.strength("stop") >= 1
        return torch.full((len(state.models),), self.after is not None and cohort.round > self.after)


def _restrict(training: LocalTraining, trains: Tensor, stopped: Tensor) -> LocalTraining:
    """Restrict a local training to the clients ``trains`` (n,) bool and to models that are not ``stopped`` (K,)."""
    together = training.participants() & trains
    weights = None if training.weights is None else training.weights * (trains & ~stopped[:, None])
    return replace(training, weights=weights, participates=together)


def _part(cohort: Cohort, plan: RoundPlan, aggregate: Aggregate, rows: Tensor) -> tuple[Cohort, RoundPlan, Aggregate]:
    """Restrict a round to the clients at ``rows`` (u,) of the cohort."""
    part = RoundPlan(
        plan.assignment[rows],
        tuple(training.take(rows, cohort.sizes) for training in plan.trainings),
        None if plan.losses is None else plan.losses[rows],
    )
    kept = tuple(None if values is None else values[rows] for values in aggregate.kept)
    return cohort.take(rows), part, Aggregate(aggregate.models, kept)
