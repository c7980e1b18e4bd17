"""An algorithm: IFCA in which a client changes its cluster only for a clearly better model."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from shoal import IFCA, Federation, LocalSGD, Stream
from shoal.core.settings import NonNegativeFloat, Positive, settings
from shoal.engine import Aggregate, Cohort, DeployedModels, Engine, RoundPlan, State


@settings
class StickyIFCA:
    """Client i leaves cluster k for j when ``loss_ij < loss_ik - margin``.

    Args:
        clusters: K.
        margin: in nats; 0 is IFCA.
    """

    clusters: Positive = 2
    margin: NonNegativeFloat = 0.1
    title: ClassVar[str] = "Sticky IFCA"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Any local training will do."""

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """K random models, and for each client its last choice and the number of changes."""
        state = IFCA(self.clusters).init(engine, federation, local, stream)
        last = state.assignment.clone()
        return replace(state, clients={"last": last, "changes": torch.zeros_like(last)})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Each client trains its own choice, and the server averages by cluster."""
        losses = cohort.losses(state.models)
        return IFCA(self.clusters).plan_of(self._choice(losses, state, cohort), losses, state, cohort)

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The averages are the new models; a client whose choice is another than its last is counted."""
        last, now = state.clients["last"][cohort.clients], plan.assignment
        changed = ((last >= 0) & (last != now)).long()
        clients = {
            "last": state.clients["last"].index_copy(0, cohort.clients, now),
            "changes": state.clients["changes"].index_add(0, cohort.clients, changed),
        }
        return replace(state, models=aggregate.models, clients=clients)

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        """Each client uses its choice."""
        choice = self._choice(cohort.losses(state.models), state, cohort)
        return DeployedModels(state.models, choice, choice)

    def _choice(self, losses: Tensor, state: State, cohort: Cohort) -> Tensor:
        before, best = state.assignment[cohort.clients], losses.argmin(dim=1)
        own = losses.gather(1, before.clamp(min=0)[:, None])[:, 0]
        leaves = (before < 0) | (losses.min(dim=1).values < own - self.margin)
        return torch.where(leaves, best, before)
