"""Clusters that are decided before the first round, from what clients send once."""

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from shoal.algorithms.wrapper import Derived
from shoal.engine import Cohort, Deployed, LocalTraining, RoundPlan, State, averaging_weights


class FixedClusters(Derived):
    """FedAvg within clusters that stay as they are; all models begin at the same parameters."""

    key: ClassVar[str]
    """The key of `State.clients` that has each client's cluster."""

    def clustered(self, state: State, cluster: Tensor, count: int) -> State:
        """``state`` of one model, with it as each of ``count`` models, and each client's ``cluster`` (N,)."""
        begun = State.initial(state.models.repeat(count, 1), len(cluster))
        return replace(begun, clients={self.key: cluster})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Everybody trains its cluster's model; clients weigh by examples."""
        assignment = state.clients[self.key][cohort.clients]
        weights = averaging_weights(assignment, cohort.sizes, len(state.models))
        return RoundPlan(assignment, (LocalTraining(state.models, assignment, weights),))

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Each client uses its cluster's model."""
        assignment = state.clients[self.key][cohort.clients]
        return Deployed(state.models, assignment, assignment)
