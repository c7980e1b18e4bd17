"""An algorithm of two fixed clusters, each with the directive that a test gives it."""

from dataclasses import dataclass, replace

import torch

from shoal.algorithms import IFCA
from shoal.engine import DeployedModels


@dataclass(frozen=True)
class Halves:
    """The first three clients train model 0 and the others model 1, under the directive "strength" of each."""

    strengths: tuple[float, float] = (0.0, 0.0)
    base: IFCA = IFCA(2)

    def check(self, local, risk_period):
        self.base.check(local, risk_period)

    def init(self, engine, federation, local, stream):
        state = self.base.init(engine, federation, local, stream)
        return replace(state, directives={"strength": torch.tensor(self.strengths, dtype=torch.float64)})

    def plan(self, state, cohort):
        return self.base.plan_of((cohort.clients >= 3).long(), None, state, cohort)

    def server_update(self, state, cohort, plan, aggregate):
        return self.base.server_update(state, cohort, plan, aggregate)

    def deployed_models(self, state, cohort):
        halves = (cohort.clients >= 3).long()
        return DeployedModels(state.models, halves, halves)
