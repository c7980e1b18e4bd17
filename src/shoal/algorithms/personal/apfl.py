"""APFL: each client uses a mixture of a shared and a personal model."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Derived
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.settings import settings
from shoal.engine import (
    Aggregate,
    ClientVectors,
    Cohort,
    DeployedModels,
    Gradient,
    LocalSGD,
    LocalTraining,
    PersonalModels,
    RoundPlan,
    State,
    require_plain_sgd,
)


@settings
class APFL(Derived):
    """Client i uses ``m_i = alpha_i * v_i + (1 - alpha_i) * w``, a mixture of its personal model v_i and the shared
    model w.

    A local step computes both gradients on one batch: ``w <- w - eta * g(w)`` and ``v_i <- v_i - eta * alpha_i *
    g(m_i)``. The server averages w, which equals the model of `FedAvg`. The personal model and ``alpha_i`` stay with
    the client. With ``alpha`` = 0 a client uses the model of `FedAvg`, and with ``alpha`` = 1 the model of `LocalOnly`.
    As in the paper, ``m_i`` mixes parameters; the authors' code mixes outputs.

    Args:
        alpha: the weight of the personal model (0.5 in the authors' code). With ``adaptive``, ``alpha`` is the initial
            weight.
        adaptive: whether each client adapts its own weight in every step: ``alpha_i <- alpha_i - eta * <v_i - w,
            g(m_i)>``, clipped to [0, 1].
        weighting: the clients' weights in the average: "equal" (the paper), or their numbers of "examples".

    Raises:
        InputError: local training has momentum, clipping, noise or an optimizer, or the network has batch norm or
            frozen layers.

    Source: Deng et al. 2020, arXiv:2003.13461, Algorithm 1; the authors' code (MLOPTPSU/FedTorch,
    'trainings/federated/apfl.py').

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithms = shoal.APFL(alpha=0.0), shoal.FedAvg(), shoal.APFL(alpha=1.0), shoal.LocalOnly()
        >>> results = [shoal.simulate(federation, model, rule, local, rounds=2) for rule in algorithms]
        >>> [round(float(result.clients["loss"].mean()), 2) for result in results]
        [0.69, 0.69, 0.05, 0.05]
    """

    alpha: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.5
    adaptive: bool = False
    weighting: Literal["equal", "examples"] = "equal"
    name: Literal["apfl"] = "apfl"
    title: ClassVar[str] = "APFL"

    @property
    def inner(self) -> FedAvg:
        return FedAvg(self.weighting)

    def check(self, local: LocalSGD, risk_period: int) -> None:
        require_plain_sgd(local, "APFL")

    def check_layout(self, layout: Layout) -> None:
        require(
            layout.trainable == layout.size,
            "APFL needs a network without batch norm and frozen layers",
        )

    def add_tensors(self, state: State, layout: Layout) -> State:
        personal = ClientVectors.same(state.models[0], len(state.assignment))
        alpha = torch.full((len(state.assignment),), self.alpha)
        return replace(state, clients={"apfl.alpha": alpha}, personal={"apfl": personal})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        plan = super().plan(state, cohort)
        (training,) = plan.trainings
        size = state.models.shape[1]
        personal, alpha = state.personal["apfl"][cohort.clients], state.clients["apfl.alpha"][cohort.clients]
        pair = LocalTraining(
            initial_params=torch.cat([state.models[0].expand(len(cohort), -1), personal, alpha[:, None]], dim=1),
            init_index=torch.arange(len(cohort)),
            weights=training.weights,
            keep=lambda update: update[:, size:],
            step_rule=_Pair(self.adaptive),
        )
        return replace(plan, trainings=(pair,))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        (update,) = aggregate.kept
        assert update is not None
        personal = state.personal["apfl"].add_rows(cohort.clients, update[:, :-1])
        # Rounding may take a sum of differences past the ends.
        alpha = state.clients["apfl.alpha"].index_add(0, cohort.clients, update[:, -1]).clamp(0, 1)
        return replace(state, models=aggregate.models, clients={"apfl.alpha": alpha}, personal={"apfl": personal})

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        everybody = torch.arange(len(cohort))

        def mixed(some: Tensor) -> Tensor:
            clients = cohort.clients[some]
            alpha = state.clients["apfl.alpha"][clients][:, None]
            return alpha * state.personal["apfl"][clients] + (1 - alpha) * state.models[0]

        return DeployedModels(PersonalModels(len(cohort), mixed), everybody, torch.zeros_like(everybody))


@dataclass(frozen=True)
class _Pair:
    """A local step of APFL on rows [w, v, alpha], (u, 2 P + 1)."""

    adaptive: bool
    batches: int = 1

    def step(self, rows: Tensor, gradient: Gradient, learning_rate: float) -> Tensor:
        """See `shoal.engine.StepRule`."""
        size = rows.shape[1] // 2
        w, v, alpha = rows[:, :size], rows[:, size:-1], rows[:, -1:]
        shared, mixed = gradient(w, 0), gradient(alpha * v + (1 - alpha) * w, 0)
        moved = alpha
        if self.adaptive:
            moved = (alpha - learning_rate * ((v - w) * mixed).sum(dim=1, keepdim=True)).clamp(0, 1)
        return torch.cat([w - learning_rate * shared, v - learning_rate * alpha * mixed, moved], dim=1)
