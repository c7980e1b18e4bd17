"""FedProx: local training that is pulled towards the model at which it starts.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020, arXiv:1812.06127, Algorithm 2.
"""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import NonNegativeFloat, settings
from shoal.data.federation import Federation
from shoal.engine import (
    Aggregate,
    Algorithm,
    Cohort,
    Deployed,
    Engine,
    LinearTerm,
    LocalSGD,
    LocalTraining,
    RoundPlan,
    State,
)


@settings
class FedProx:
    """Client i minimises ``f_i(theta) + mu / 2 * |theta - w|^2``, where w is the model that it starts from.

    With mu = 0 it is ``base``, bit for bit. How exactly a client minimises (the paper's gamma) is the epochs of local
    training.

    Args:
        base: the algorithm whose local training is pulled.
        mu: the strength of the pull (the paper: 0.001 to 1).

    Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020, arXiv:1812.06127, Algorithm 2.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> local = shoal.LocalSGD(steps=5, learning_rate=1.0)
        >>> algorithms = shoal.FedAvg(), shoal.FedProx(mu=0.0), shoal.FedProx(mu=1.0)
        >>> models = [shoal.simulate(federation, model, each, local, rounds=3).state.models for each in algorithms]
        >>> models[0].equal(models[1]), models[0].equal(models[2])
        (True, False)
    """

    base: Algorithm = FedAvg()
    mu: NonNegativeFloat = 0.01
    name: Literal["fedprox"] = "fedprox"
    title: ClassVar[str] = "FedProx"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """See the base's."""
        self.base.check(local, risk_period)

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """See the base's."""
        return self.base.init(engine, federation, local, stream)

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """The base's plan, with the proximal term in every local training."""
        plan = self.base.plan(state, cohort)
        return replace(plan, trainings=tuple(self._pulled(each) for each in plan.trainings))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """See the base's."""
        return self.base.server_update(state, cohort, plan, aggregate)

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """See the base's."""
        return self.base.deployed(state, cohort)

    def _pulled(self, training: LocalTraining) -> LocalTraining:
        if self.mu == 0:
            return training
        require(
            training.linear_term is None,
            "FedProx cannot wrap an algorithm whose local steps have a linear term already",
        )
        require(
            training.init_index.dim() == 1, "FedProx needs clients that start from one model each, not from mixtures"
        )
        strength = torch.full((len(training.init_index),), self.mu)
        return replace(training, linear_term=LinearTerm(strength, training.initial_params, training.init_index))
