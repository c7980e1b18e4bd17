"""HypCluster: IFCA with a server optimizer."""

from typing import ClassVar, Literal

from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.one_model.fedopt import Beta, FedOpt
from shoal.algorithms.wrapper import Derived
from shoal.algorithms.wrappers.starts import FarthestFirstStart
from shoal.core.errors import require
from shoal.core.settings import Positive, PositiveFloat, settings
from shoal.engine import Algorithm, Cohort, LocalSGD, RemoteRounds, RoundPlan, State


@settings
class HypCluster(Derived):
    """IFCA weighted by examples, with a server optimizer per model.

    The pseudo-gradient of a model is the negative mean of its clients' updates, weighted by examples (see `FedOpt`).
    With optimizer "sgd", server learning rate 1 and clients of equal size, the result equals that of `IFCA`.

    The "farthest-first" start takes one round. Random clients train the first random model separately, and the server
    selects K of the trained models. The first selected model is random. Each further model is that of the client whose
    lowest loss over the selected models is highest. The farthest-first start refuses DP-SGD, because clients send the
    losses without noise. A selected model reveals one client's examples until other clients have trained the model.

    Args:
        clusters: K, the number of models.
        start: the choice of the K initial models: "random", or by the "farthest-first" start.
        candidates: the number of random clients that train in the farthest-first start.
        optimizer: the server's optimizer.
        server_learning_rate: the learning rate of the server's optimizer.
        beta1: the decay rate of the first moment; with "sgd", the momentum.
        beta2: the decay rate of the second moment.
        tau: the constant that "adam" and "yogi" add to the denominator of a step.

    Source: Mansour et al. 2020, arXiv:2002.10619. The server optimizer and the farthest-first start follow fedjax
    (`fedjax/algorithms/hyp_cluster.py`).

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithms = shoal.IFCA(clusters=2), shoal.HypCluster(clusters=2)
        >>> ifca, hypcluster = (shoal.simulate(federation, model, rule, local, rounds=3) for rule in algorithms)
        >>> hypcluster.state.models.allclose(ifca.state.models), hypcluster.clients["cluster"].tolist()
        (True, [0, 0, 1, 1])
    """

    clusters: Positive = 2
    start: Literal["random", "farthest-first"] = "random"
    candidates: Positive = 20
    optimizer: Literal["sgd", "adam", "yogi"] = "sgd"
    server_learning_rate: PositiveFloat = 1.0
    beta1: Beta = 0.0
    beta2: Beta = 0.99
    tau: PositiveFloat = 1e-3
    name: Literal["hypcluster"] = "hypcluster"
    title: ClassVar[str] = "HypCluster"

    @property
    def moves_by_average(self) -> bool:
        return (self.optimizer, self.server_learning_rate, self.beta1) == ("sgd", 1.0, 0.0)

    @property
    def membership_barrier(self) -> str:
        return FarthestFirstStart.membership_barrier if self.start == "farthest-first" else ""

    @property
    def inner(self) -> Algorithm:
        rate = self.server_learning_rate
        steps = FedOpt(self._ifca, self.optimizer, rate, self.beta1, self.beta2, self.tau)
        return steps if self.start == "random" else FarthestFirstStart(steps, self.candidates)

    def check(self, local: LocalSGD, risk_period: int) -> None:
        if self.start == "farthest-first":
            local.check_only_gradients_sent('their losses for HypCluster\'s "farthest-first" start')

    def plan_of(self, assignment: Tensor, losses: Tensor | None, state: State, cohort: Cohort) -> RoundPlan:
        inner = self.inner
        if isinstance(inner, FarthestFirstStart) and inner.starting(state):
            return inner.start_plan(state, cohort)
        return self._ifca.plan_of(assignment, losses, state, cohort)

    def remote_rounds(self) -> RemoteRounds:
        require(
            self.start == "random",
            "HypCluster's 'start' must be \"random\" for training on several machines",
        )
        return RemoteRounds(client=self._ifca, server=self)

    @property
    def _ifca(self) -> IFCA:
        return IFCA(self.clusters, weighting="examples")
