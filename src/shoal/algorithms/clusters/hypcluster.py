"""HypCluster: IFCA's choice by loss, weighted by examples, with an optimizer at the server."""

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
    """IFCA weighted by examples, with a server optimizer: model k's pseudo-gradient is the mean update of its clients.

    Client i trains ``k = argmin_k loss_ik``, and each model has its own optimizer (`FedOpt`) on
    ``sum_i n_i (end_i - model_k) / sum_i n_i`` over its clients, with n_i examples each. With "sgd", learning rate 1
    and clients of equal sizes it is IFCA.

    The "farthest-first" start takes the first round with clients. Some of them train the first random model separately,
    and the server selects K of the results: the first at random, each further one from the client with the highest loss
    under the best model so far. These losses are sent without noise, so DP-SGD is refused. Each of these models shows
    one client's examples until others train it. If fewer clients than K train, the remaining models stay random. In
    fedjax candidates train in advance; training them in a round is ours.

    Args:
        clusters: K, the number of models.
        start: "random": K independent random models; or "farthest-first".
        candidates: clients that train for the farthest-first start, drawn at random.
        optimizer: the server's, "sgd", "adam" or "yogi".
        server_learning_rate: the server's.
        beta1: decay of the first moment; with "sgd", the momentum.
        beta2: decay of the second moment.
        tau: degree of adaptivity of "adam" and "yogi".

    Source: Mansour, Mohri, Ro, Suresh 2020, arXiv:2002.10619, the algorithm HypCluster of the section on user
    clustering; server optimizer and farthest-first start as in fedjax (`fedjax/algorithms/hyp_cluster.py`), a library
    of the same group.

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
        """Whether each model moves by the weighted mean of its updates."""
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
        """See `IFCA.plan_of`; a farthest-first start ignores the assignment."""
        inner = self.inner
        if isinstance(inner, FarthestFirstStart) and inner.starting(state):
            return inner.start_plan(state, cohort)
        return self._ifca.plan_of(assignment, losses, state, cohort)

    def remote_rounds(self) -> RemoteRounds:
        require(self.start == "random", "HypCluster's 'start' must be \"random\" on several machines")
        return RemoteRounds(client=self._ifca, server=self)

    @property
    def _ifca(self) -> IFCA:
        return IFCA(self.clusters, weighting="examples")
