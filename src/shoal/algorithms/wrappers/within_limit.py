"""IFCA for clients with limits: each takes the model of least loss among those that are no riskier than it tolerates.

Ours: IFCA-MIR's thresholds (`Preferences.threshold`), with which its paper judges a choice, decide it here.
"""

from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Inline, settings
from shoal.data.federation import Federation
from shoal.engine import Aggregate, Cohort, Deployed, Engine, LocalSGD, RoundPlan, State


@settings
class IFCAWithinLimit:
    """Client i trains the model of least loss among those with ``risk_k <= threshold_i``.

    If there is none, it trains the model of least risk; of several with that risk the one of least loss. So some
    clients are beyond their limit still, and reports count them. With thresholds of 1 for every client it is IFCA, bit
    for bit. How much a client weighs risk (beta) does not matter here.

    Args:
        ifca: initial models, averaging, and the examples on which clients score the models.

    Source: ours, by the thresholds of Jung, Biswas, Palamidessi (IFCA-MIR).

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> red_team = shoal.RedTeam(every=1, estimator="audit", attack=shoal.Gap())
        >>> for threshold in (1.0, 0.5):
        ...     federation = shoal.Federation.from_tensors([one, one, other, other], test=one, threshold=threshold)
        ...     algorithm = shoal.IFCAWithinLimit(shoal.IFCA(clusters=2))
        ...     result = shoal.simulate(federation, model, algorithm, shoal.LocalSGD(), rounds=3, red_team=red_team)
        ...     print(threshold, result.clients["cluster"].tolist())
        ...
        1.0 [0, 0, 1, 1]
        0.5 [0, 0, 0, 0]
    """

    ifca: Annotated[IFCA, Inline()] = IFCA()
    name: Literal["ifca-within-limit"] = "ifca-within-limit"
    title: ClassVar[str] = "IFCA within limits"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """It needs estimates of risk."""
        require(
            risk_period > 0, "IFCA within limits chooses by risk, so the red team's 'every' must be at least 1; got 0"
        )
        self.ifca.check(local, risk_period)

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """See `IFCA.init`."""
        return self.ifca.init(engine, federation, local, stream)

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Each client trains the best model within its limit."""
        losses = cohort.losses(state.models, self.ifca.choose_by)
        return self.ifca.plan_of(_choice(losses, state, cohort), losses, state, cohort)

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """See `IFCA.server_update`."""
        return self.ifca.server_update(state, cohort, plan, aggregate)

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Each client uses the best model within its limit."""
        assignment = _choice(cohort.losses(state.models), state, cohort)
        return Deployed(state.models, assignment, assignment)


def _choice(losses: Tensor, state: State, cohort: Cohort) -> Tensor:
    """From losses (n, K), risks (K,) and thresholds (n,) to clusters (n,)."""
    within = state.risks <= cohort.preferences.threshold[:, None]
    least = state.risks == state.risks.min()
    allowed = torch.where(within.any(dim=1, keepdim=True), within, least)
    return losses.masked_fill(~allowed, torch.inf).argmin(dim=1)
