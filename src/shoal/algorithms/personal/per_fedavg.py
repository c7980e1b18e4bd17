"""Per-FedAvg: a shared model from which one gradient step on a client's own examples leads to a good personal one."""

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
    """A client's step is ``w <- w - beta * g(w - alpha * g(w; D); D')``, with two batches D and D' and without Hessian.

    beta is local training's learning rate. D and D' are two consecutive batches of local training, so an epoch is half
    as many steps as FedAvg's; a last batch alone is both, and so is a batch of all examples. Models are averaged as in
    FedAvg. In the end every client uses ``w - alpha * g(w)``, one step of adaptation on all its examples (ours; the
    paper: on a batch), with the defences of local training. Nothing of this step is sent.

    Args:
        alpha: learning rate of the adaptation (0.01, with beta 0.001, as the paper's experiments are
            recalled; not verified).
        weighting: the weights of clients: "equal" (the paper), or by "examples".

    Raises:
        InputError: local training with momentum, clipping, noise or an optimizer, or a network with batch norm or
            frozen layers.

    Source: Fallah, Mokhtari, Ozdaglar 2020, arXiv:2002.07948, Algorithm 1 with the first-order approximation of its
    section on practical implementations (FO-MAML), which leaves the Hessian out.

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
            "Per-FedAvg adapts all parameters, so the network must have neither batch norm nor frozen layers",
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
    """A step of rows w (u, P) by the gradient where one step of adaptation leads."""

    alpha: float
    batches: int = 2

    def step(self, rows: Tensor, gradient: Gradient, learning_rate: float) -> Tensor:
        """See `shoal.engine.StepRule`."""
        adapted = rows - self.alpha * gradient(rows, 0)
        return rows - learning_rate * gradient(adapted, 1)
