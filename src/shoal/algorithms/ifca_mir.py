"""IFCA-MIR: IFCA in which clients weigh a model's membership-inference risk against its loss.

Source: Jung, Biswas, Palamidessi, "Mitigating Membership Inference Vulnerability in Personalized Federated
Learning", Algorithm 1. The risk l(theta) is the red team's (Algorithm 2; `attacks.red_team`), sent with the models.
"""

from typing import Annotated, ClassVar, Literal

from torch import Tensor

from shoal.algorithms.ifca import IFCA
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Inline, settings
from shoal.data.federation import Federation, Preferences
from shoal.engine import Engine, LocalSGD


@settings
class IFCAMIR:
    """Client i trains the model of least ``alpha_i * loss_ik + beta_i * risk_k`` (Algorithm 1, line 12).

    The loss is in nats and the risk is a probability in [0.5, 1]; the paper adds them as they are, and so does
    this. With beta = 0 for every client it is IFCA, bit for bit.

    Args:
        ifca: everything else.
    """

    title: ClassVar[str] = "IFCA-MIR"

    ifca: Annotated[IFCA, Inline()] = IFCA()
    name: Literal["ifca-mir"] = "ifca-mir"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """It needs estimates of risk."""
        require(risk_period > 0, "IFCA-MIR chooses by risk, so the red team's 'every' must be at least 1; got 0")
        self.ifca.check(local, risk_period)

    @property
    def clusters(self) -> int:
        """K, as IFCA."""
        return self.ifca.clusters

    @property
    def chooses_by(self) -> Literal["all", "batch"]:
        """As IFCA."""
        return self.ifca.chooses_by

    def init(self, engine: Engine, federation: Federation, stream: Stream) -> Tensor:
        """As IFCA."""
        return self.ifca.init(engine, federation, stream)

    def choose(self, losses: Tensor, risks: Tensor, preferences: Preferences) -> Tensor:
        """Losses (n, K), risks (K,), alpha and beta (n,) -> choices (n,)."""
        alpha, beta = preferences.alpha[:, None], preferences.beta[:, None]
        return (alpha * losses + beta * risks).argmin(dim=1)

    def shares(self, assignment: Tensor, sizes: Tensor) -> Tensor:
        """As IFCA."""
        return self.ifca.shares(assignment, sizes)
