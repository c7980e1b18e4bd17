"""FedRep: all clients train the network's body together, and each client trains its own head."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrappers.shared_body import OwnLayers, head_of
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.settings import Positive, settings
from shoal.engine import Cohort, LocalSGD, LocalTraining, RoundPlan, State, TrainingPhase


@settings
class FedRep(OwnLayers):
    """Client i trains its head with the body fixed, then the body with its head fixed; the server averages the bodies.

    The paper uses ten epochs for the head and one for the body: ``LocalSGD(epochs=11)``. A client uses the averaged
    body with its own last-trained head. Batch norm's statistics belong to the body, and change in both phases. With
    DP-SGD the epsilon covers both phases.

    Unlike in the authors' code, momentum restarts at 0 before the body's epochs, and heads are not trained again after
    the last round.

    Args:
        weighting: the clients' weights in the average of the bodies: their numbers of "examples" (the authors' code),
            or "equal" (the paper).
        head: the layer that each client keeps: "last" (the last linear layer), or the name of a layer in the network.
        body_epochs: the number of final local epochs in each round that train the body; the earlier epochs train the
            head.

    Source: Collins et al. 2021, arXiv:2102.07078, Algorithm 1; the authors' code (lgcollins/FedRep).

    Example:
        >>> import shoal.toy
        >>> federation, *_ = shoal.toy.two_groups()
        >>> model = shoal.create_model("mlp", shoal.VectorShape(inputs=1, classes=2), hidden=8)
        >>> result = shoal.simulate(federation, model, shoal.FedRep(), shoal.LocalSGD(epochs=11), rounds=3)
        >>> len(result.models), result.clients["train_accuracy"].tolist()
        (1, [1.0, 1.0, 1.0, 1.0])
    """

    weighting: Literal["examples", "equal"] = "examples"
    head: str = "last"
    body_epochs: Positive = 1
    name: Literal["fedrep"] = "fedrep"
    title: ClassVar[str] = "FedRep"
    key: ClassVar[str] = "fedrep"

    @property
    def inner(self) -> FedAvg:
        return FedAvg(self.weighting)

    def check(self, local: LocalSGD, risk_period: int) -> None:
        require(
            local.epochs is not None and local.epochs > self.body_epochs,
            f"'local.epochs' must be above FedRep's 'body_epochs', {self.body_epochs} (got "
            f"{local.epochs or f'steps = {local.steps}'})",
        )
        require(local.share == 1, f"'share_of_steps' must be 1 with FedRep (got {local.share:g})")

    def own_mask(self, layout: Layout) -> Tensor:
        return head_of(layout, self.head)

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        plan = super().plan(state, cohort)
        head, everybody = self.own_mask(cohort.layout), torch.arange(len(cohort))
        body = self.shared_tensors(cohort.layout)
        own_tensors = frozenset(slot.name for slot in cohort.layout.slots) - body
        assert cohort.local.epochs is not None
        (training,) = plan.trainings
        own = LocalTraining(
            initial_params=self.own_models(state, cohort, everybody),
            init_index=everybody,
            weights=training.weights,
            keep=lambda update: update[:, head.to(update.device)],
            phases=(
                TrainingPhase(cohort.local.epochs - self.body_epochs, own_tensors),
                TrainingPhase(self.body_epochs, body),
            ),
            shared=body,
        )
        return replace(plan, trainings=(own,))
