"""Per-FedAvg: a shared model that each client adapts by one gradient step on its own examples."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Derived
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.settings import PositiveFloat, settings
from shoal.engine import Cohort, DeployedModels, Gradient, LocalSGD, RoundPlan, State, require_plain_sgd


@settings
class PerFedAvg(Derived):
    """FedAvg with the local step ``w <- w - beta * g(w - alpha * g(w; D); D')`` on two batches D and D', without
    Hessian.

    beta is the learning rate of local training. An epoch has half as many steps as in `FedAvg`, because each step uses
    two consecutive batches. After the last round every client takes the adaptation step ``w - alpha * g(w)`` on all its
    examples with the defences of local training. Clients do not send their adapted models.

    Args:
        alpha: the learning rate of the adaptation step.
        weighting: the clients' weights in the average: "equal" (the paper), or their numbers of "examples".

    Raises:
        InputError: local training has momentum, clipping, noise or an optimizer, or the network has batch norm or
            frozen layers.

    Source: Fallah et al. 2020, arXiv:2002.07948, Algorithm 1 with the first-order approximation (FO-MAML).

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithms = shoal.FedAvg(), shoal.PerFedAvg(alpha=1.0)
        >>> results = [shoal.simulate(federation, model, rule, local, rounds=3) for rule in algorithms]
        >>> [result.summary.overall["train_accuracy.overall"] for result in results]
        [0.5, 1.0]
    """

    alpha: PositiveFloat = 0.01
    weighting: Literal["equal", "examples"] = "equal"
    name: Literal["per-fedavg"] = "per-fedavg"
    title: ClassVar[str] = "Per-FedAvg"

    @property
    def inner(self) -> FedAvg:
        return FedAvg(self.weighting)

    def check(self, local: LocalSGD, risk_period: int) -> None:
        require_plain_sgd(local, "Per-FedAvg")

    def check_layout(self, layout: Layout) -> None:
        require(
            layout.trainable == layout.size,
            "Per-FedAvg needs a network without batch norm and frozen layers",
        )

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        plan = super().plan(state, cohort)
        (training,) = plan.trainings
        return replace(plan, trainings=(replace(training, step_rule=_AdaptedStep(self.alpha)),))

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        step = LocalSGD(steps=1, batch_size="all", learning_rate=self.alpha)
        return replace(super().deployed_models(state, cohort), fine_tuning=(step,))


@dataclass(frozen=True)
class _AdaptedStep:
    """A local step of Per-FedAvg on rows w (u, P), with the gradient after one adaptation step."""

    alpha: float
    batches: int = 2

    def step(self, rows: Tensor, gradient: Gradient, learning_rate: float) -> Tensor:
        """See `shoal.engine.StepRule`."""
        adapted = rows - self.alpha * gradient(rows, 0)
        return rows - learning_rate * gradient(adapted, 1)
