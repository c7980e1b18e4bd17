"""IFCA-MIR: IFCA in which clients weigh a model's membership-inference risk against its loss.

Source: Jung, Biswas, Palamidessi, "Mitigating Membership Inference Vulnerability in Personalized Federated
Learning", Algorithm 1. The risk l(theta) is the red team's (Algorithm 2; `attacks.red_team`), sent with the models.
"""

from typing import Annotated, ClassVar, Literal

from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Inline, settings
from shoal.data.federation import Federation
from shoal.engine import Aggregate, Cohort, Deployed, Engine, LocalSGD, RoundPlan, State


@settings
class IFCAMIR:
    """Client i trains the model of least ``alpha_i * loss_ik + beta_i * risk_k`` (Algorithm 1, line 12).

    The loss is in nats and the risk is a probability in [0.5, 1]; the paper adds them as they are, and so does
    this. With beta = 0 for every client it is IFCA, bit for bit.

    Args:
        ifca: initial models, averaging, and the examples on which clients score the models.

    Source: Jung, Biswas, Palamidessi, "Mitigating Membership Inference Vulnerability in Personalized Federated
    Learning", Algorithm 1.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> red_team = shoal.RedTeam(every=1, estimator="audit", attack=shoal.Gap())
        >>> for beta in (0.0, 1.0):
        ...     federation = shoal.Federation.from_tensors([one, one, other, other], test=one, beta=beta)
        ...     algorithm = shoal.IFCAMIR(shoal.IFCA(clusters=2))
        ...     result = shoal.simulate(federation, model, algorithm, shoal.LocalSGD(), rounds=3, red_team=red_team)
        ...     print(beta, result.clients["cluster"].tolist())
        ...
        0.0 [0, 0, 1, 1]
        1.0 [0, 0, 0, 0]
    """

    ifca: Annotated[IFCA, Inline()] = IFCA()
    name: Literal["ifca-mir"] = "ifca-mir"
    title: ClassVar[str] = "IFCA-MIR"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """It needs estimates of risk."""
        require(risk_period > 0, "IFCA-MIR chooses by risk, so the red team's 'every' must be at least 1; got 0")
        self.ifca.check(local, risk_period)

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """See `IFCA.init`."""
        return self.ifca.init(engine, federation, local, stream)

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Each client trains the model of least loss and risk."""
        losses = cohort.losses(state.models, self.ifca.choose_by)
        return self.ifca.plan_of(_choice(losses, state, cohort), losses, state, cohort)

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """See `IFCA.server_update`."""
        return self.ifca.server_update(state, cohort, plan, aggregate)

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Each client uses the model of least loss and risk."""
        assignment = _choice(cohort.losses(state.models), state, cohort)
        return Deployed(state.models, assignment, assignment)


def _choice(losses: Tensor, state: State, cohort: Cohort) -> Tensor:
    """From losses (n, K), risks (K,), alpha and beta (n,) to clusters (n,)."""
    alpha, beta = cohort.preferences.alpha[:, None], cohort.preferences.beta[:, None]
    return (alpha * losses + beta * state.risks).argmin(dim=1)
