"""FedProx: local training with a penalty on the distance from the initial model."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Wrapper
from shoal.core.errors import require
from shoal.core.settings import NonNegativeFloat, settings
from shoal.engine import Algorithm, Cohort, LinearTerm, LocalTraining, RemoteRounds, RoundPlan, State, remote_rounds


@settings
class FedProx(Wrapper):
    """Client i minimises ``f_i(theta) + mu / 2 * |theta - w|^2``, where w is the initial model of its local training.

    With mu = 0 the result equals that of ``base`` bit for bit. With few local steps, the penalty has almost no effect.

    Args:
        base: the algorithm whose local training gets the penalty.
        mu: the strength of the penalty (0.001 to 1 in the paper).

    Source: Li et al. 2020, arXiv:1812.06127, Algorithm 2.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithms = shoal.FedAvg(), shoal.FedProx(mu=0.0), shoal.FedProx(mu=1.0)
        >>> models = [shoal.simulate(federation, model, rule, local, rounds=3).state.models for rule in algorithms]
        >>> models[0].equal(models[1]), models[0].equal(models[2])
        (True, False)
    """

    base: Algorithm = FedAvg()
    mu: NonNegativeFloat = 0.01
    name: Literal["fedprox"] = "fedprox"
    title: ClassVar[str] = "FedProx"
    trains_clusters_alone: ClassVar[bool] = True

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        plan = super().plan(state, cohort)
        return replace(plan, trainings=tuple(map(self._add_pull, plan.trainings)))

    def remote_rounds(self) -> RemoteRounds:
        base = remote_rounds(self.base)
        return replace(base, client=replace(self, base=base.client))

    def _add_pull(self, training: LocalTraining) -> LocalTraining:
        if self.mu == 0:
            return training
        require(
            training.linear_term is None,
            "FedProx's 'base' must not have a linear term in its local steps",
        )
        require(
            training.init_index.dim() == 1,
            "FedProx's 'base' must start the local training of each client from one model",
        )
        strength = torch.full((len(training.init_index),), self.mu)
        return replace(training, linear_term=LinearTerm(strength, training.initial_params, training.init_index))
