"""Risk-aware choice: IFCA-MIR's rule over any algorithm in which clients choose by losses.

The rule is of Jung, Biswas, Palamidessi, "Mitigating Membership Inference Vulnerability in Personalized Federated
Learning", Algorithm 1, line 12, for IFCA. Over others it is ours.
"""

from dataclasses import replace
from typing import ClassVar, Literal

from torch import Tensor

from shoal.algorithms.clusters.hypcluster import HypCluster
from shoal.algorithms.wrapper import with_bases
from shoal.algorithms.wrappers.changed_losses import ChangedLosses
from shoal.algorithms.wrappers.choice import IFCAMIR
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import settings
from shoal.data.federation import Federation
from shoal.engine import Aggregate, Algorithm, Cohort, Deployed, Engine, LocalSGD, RoundPlan, State


@settings
class RiskAwareChoice:
    """Clients of ``base`` see ``alpha_i * loss_ik + beta_i * risk_k`` in the place of every loss by which they choose.

    So over HypCluster a client trains the model of least loss and risk; over FedSoft each example counts for the model
    of least loss and risk; over FedEM responsibilities are in proportion to
    ``pi_ik exp(-(alpha_i * loss + beta_i * risk_k))``, and over FedRC that over P_k(y). What training minimises is the
    loss alone. Over IFCA it is IFCA-MIR, and with beta = 0 for every client it is ``base``, bit for bit; so it is over
    an algorithm in which clients do not choose, such as FedAvg. The recorded losses are without the risk.

    Risks are in [0.5, 1] and losses in nats: in a mixture a risk that is 0.2 higher multiplies a model's odds by at
    least exp(-0.2) = 0.82, while in a choice of one model it decides wherever losses are close.

    Args:
        base: in which clients choose by their losses.

    Source: the rule is Algorithm 1, line 12 of Jung, Biswas, Palamidessi (IFCA-MIR), for IFCA; over others it is ours.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> local = shoal.LocalSGD(steps=5, learning_rate=1.0)
        >>> red_team = shoal.RedTeam(every=1, estimator="audit", attack=shoal.Gap())
        >>> algorithms = shoal.IFCAMIR(shoal.IFCA(clusters=2)), shoal.RiskAwareChoice(shoal.IFCA(clusters=2))
        >>> a, b = (shoal.simulate(federation, model, each, local, rounds=2, red_team=red_team) for each in algorithms)
        >>> a.state.models.allclose(b.state.models)
        True
    """

    base: Algorithm = HypCluster()
    name: Literal["risk-aware-choice"] = "risk-aware-choice"
    title: ClassVar[str] = "Risk-aware choice"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """It needs estimates of risk, which must not be weighed already."""
        require(
            risk_period > 0, "risk-aware choice chooses by risk, so the red team's 'every' must be at least 1; got 0"
        )
        for inside in with_bases(self.base):
            require(
                not isinstance(inside, IFCAMIR | RiskAwareChoice),
                f"{type(inside).__name__} weighs risk already, so it cannot be the 'base' of risk-aware choice; "
                "use IFCA, HypCluster, FedSoft, FedEM or FedRC",
            )
        self.base.check(local, risk_period)

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """See the base's."""
        return self.base.init(engine, federation, local, stream)

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """The base's plan for clients that weigh risk."""
        changed = _weighing(state, cohort)
        plan = self.base.plan(state, changed.cohort)
        return replace(plan, losses=changed.recorded(plan.losses))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """See the base's."""
        return self.base.server_update(state, cohort, plan, aggregate)

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """What clients of the base use that weigh risk."""
        return self.base.deployed(state, _weighing(state, cohort).cohort)


def _weighing(state: State, cohort: Cohort) -> ChangedLosses:
    """The cohort whose losses are weighed against the risks (K,) by each client's preferences."""
    alpha, beta = cohort.preferences.alpha, cohort.preferences.beta

    def weighed(losses: Tensor, clients: Tensor) -> Tensor:
        return alpha[clients][:, None] * losses + beta[clients][:, None] * state.risks

    return ChangedLosses(cohort, len(state.models), weighed)
