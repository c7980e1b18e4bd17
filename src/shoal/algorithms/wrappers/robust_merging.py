"""Robust merging: aggregation of updates that a few malicious clients cannot change much."""

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from shoal.algorithms.wrapper import Wrapper
from shoal.core.errors import require
from shoal.engine import Aggregate, Cohort, LocalTraining, RemoteRounds, RoundPlan, State, remote_rounds


class RobustMerging(Wrapper):
    """A wrapper that merges the updates of each cluster by `merge` instead of the weighted mean of ``base``.

    All clients of a cluster have equal weights, because a malicious client could overstate its number of examples. The
    server needs individual updates, so secure aggregation is refused. Robust merging also ignores some honest clients
    with unusual data (see docs/defenses.md).

    Raises:
        InputError: a client's update has a weight in several models of ``base``, or ``base`` keeps the clients'
            updates, as CFL does (raised in the first round).
    """

    moves_by_average: ClassVar[bool] = False

    def merge(self, updates: Tensor) -> Tensor:
        """Merge the updates of a cluster's m clients, (m, P) float64, to the update (P,) of the cluster's model."""
        raise NotImplementedError

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        plan = super().plan(state, cohort)
        if not plan.trainings:
            return plan
        index, training = self._shared_training(plan)
        kept = replace(training, keep=lambda update: update)
        return replace(plan, trainings=(*plan.trainings[:index], kept, *plan.trainings[index + 1 :]))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        if not plan.trainings:
            return super().server_update(state, cohort, plan, aggregate)
        without_keep = tuple(replace(training, keep=None) for training in plan.trainings)
        index, training = self._shared_training(replace(plan, trainings=without_keep))
        updates, models = aggregate.kept[index], aggregate.models.clone()
        assert updates is not None
        assert training.weights is not None
        layout, before = cohort.layout, state.models.cpu()
        ends = training.initial_rows()[:, : layout.size].cpu() + updates[:, : layout.size]
        for k, weights in enumerate(training.weights):
            members = weights != 0
            if bool(members.any()):
                moves = training.shared_part(ends[members] - before[k], layout).double()
                models[k] = (before[k].double() + self.merge(moves)).to(models)
        kept = (*aggregate.kept[:index], None, *aggregate.kept[index + 1 :])
        return super().server_update(state, cohort, plan, replace(aggregate, models=models, kept=kept))

    def remote_rounds(self) -> RemoteRounds:
        base = remote_rounds(self.base)
        return replace(base, server=replace(self, base=base.server))  # pyright: ignore (a dataclass of settings)

    def _shared_training(self, plan: RoundPlan) -> tuple[int, LocalTraining]:
        """Return the only training whose results are sent, and its index."""
        shared = [(index, training) for index, training in enumerate(plan.trainings) if training.weights is not None]
        training = shared[0][1] if len(shared) == 1 else None
        fits = training is not None and training.keep is None and bool(((training.weights != 0).sum(dim=0) <= 1).all())
        require(
            fits,
            f"{type(self).__name__}'s 'base' must merge one update per client into one model and keep no updates",
        )
        return shared[0]
