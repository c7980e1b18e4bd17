"""FedOpt: a server optimizer, with the negative mean update as its gradient."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Wrapper, require_kept_models
from shoal.core.layout import Layout
from shoal.core.settings import PositiveFloat, settings
from shoal.engine import Aggregate, Algorithm, Cohort, LocalSGD, RemoteRounds, RoundPlan, State, remote_rounds

Beta = Annotated[float, Field(ge=0, lt=1, strict=True)]
"""The decay rate of a moment per round."""


@settings
class FedOpt(Wrapper):
    """A server optimizer per model, with the pseudo-gradient ``-delta = model - average``.

    - "sgd": ``m <- beta1 * m + delta``, ``model <- model + learning_rate * m``. With learning rate 1 and beta1 = 0, the
      result equals that of ``base``.
    - "adam" and "yogi": ``m <- beta1 * m + (1 - beta1) * delta``,
      ``model <- model + learning_rate * m / (sqrt(v) + tau)``. The second moment ``v`` follows the rule of Adam or
      Yogi, without bias correction, as in the paper.

    A model that no client trains in a round does not change, nor do its moments. Batch norm's statistics are averaged
    without the optimizer.

    Args:
        base: the algorithm that trains the models.
        optimizer: the server's optimizer.
        learning_rate: the learning rate of the server's optimizer.
        beta1: the decay rate of the first moment.
        beta2: the decay rate of the second moment.
        tau: the constant added to the denominator of a step; the second moment starts at ``tau ** 2``.

    Source: Reddi et al. 2021, arXiv:2003.00295, Algorithm 2. The optimizer "sgd" is server momentum: Hsu et al. 2019,
    arXiv:1909.06335, section 3.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithms = shoal.FedAvg(), shoal.FedOpt(optimizer="sgd", learning_rate=1.0, beta1=0.0), shoal.FedOpt()
        >>> models = [shoal.simulate(federation, model, rule, local, rounds=3).state.models for rule in algorithms]
        >>> models[0].allclose(models[1]), models[0].allclose(models[2])
        (True, False)
    """

    base: Algorithm = FedAvg()
    optimizer: Literal["sgd", "adam", "yogi"] = "adam"
    learning_rate: PositiveFloat = 0.01
    beta1: Beta = 0.9
    beta2: Beta = 0.99
    tau: PositiveFloat = 1e-3
    name: Literal["fedopt"] = "fedopt"
    title: ClassVar[str] = "FedOpt"
    moves_by_average: ClassVar[bool] = False

    def check(self, local: LocalSGD, risk_period: int) -> None:
        require_kept_models(self)
        super().check(local, risk_period)

    def add_tensors(self, state: State, layout: Layout) -> State:
        first = torch.zeros_like(state.models, dtype=torch.float64)
        return replace(state, server={**state.server, "fedopt.m": first, "fedopt.v": first + self.tau**2})

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        averaged = super().server_update(state, cohort, plan, aggregate)
        moved = (averaged.models != state.models).any(dim=1, keepdim=True)
        delta = averaged.models.double() - state.models.double()
        first, second = state.server["fedopt.m"], state.server["fedopt.v"]
        m, v, step = self._step(delta, first, second)
        models = (state.models.double() + self.learning_rate * step).float()
        models[:, cohort.layout.trainable :] = averaged.models[:, cohort.layout.trainable :]
        moments = {"fedopt.m": torch.where(moved, m, first), "fedopt.v": torch.where(moved, v, second)}
        server = {**averaged.server, **moments}
        return replace(averaged, models=torch.where(moved, models, state.models), server=server)

    def remote_rounds(self) -> RemoteRounds:
        base = remote_rounds(self.base)
        return replace(base, server=replace(self, base=base.server))

    def _step(self, delta: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the new moments, and the steps without the learning rate, (K, P) each."""
        if self.optimizer == "sgd":
            m = self.beta1 * m + delta
            return m, v, m
        m = self.beta1 * m + (1 - self.beta1) * delta
        square = delta.square()
        if self.optimizer == "adam":
            v = self.beta2 * v + (1 - self.beta2) * square
        else:
            v = v - (1 - self.beta2) * square * (v - square).sign()
        return m, v, m / (v.sqrt() + self.tau)
