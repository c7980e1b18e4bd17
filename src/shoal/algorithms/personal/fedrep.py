"""FedRep: all clients train the network's body together, and each has a head of its own."""

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
    """Client i trains its head h_i with a fixed body b, ``h_i <- h_i - eta * grad_h f_i(b, h)``; then b with h_i.

    The trained body is sent and averaged; the head stays with the client. Of the local epochs the last ``body_epochs``
    train the body and all before them the head, as in the authors' code (paper: ten epochs of the head and one of the
    body, so `LocalSGD(epochs=11)`). Clients use the averaged body and their own head as last trained, or the initial
    one. The authors' code trains all heads once more after the last round; `FineTuning` around FedRep trains all of the
    model.

    Ours: the momentum of an optimizer begins anew with the body (the authors' code keeps one optimizer), and batch
    norm's statistics move in both phases and belong to the body. With DP-SGD each phase clips and noises what it
    trains, and epsilon covers both. N heads are kept, and the server's model has the initial one.

    Args:
        weighting: the weights of clients' bodies: by "examples" (the authors' code), or "equal" (the paper).
        head: the layer that each client has for itself: "last", the last linear one, or a layer's name in the network.
        body_epochs: the number of last local epochs, which train the body.

    Source: Collins, Hassani, Mokhtari, Shakkottai 2021, arXiv:2102.07078, Algorithm 1, and the authors' code
    (lgcollins/FedRep, 'main_fedrep.py' and 'models/Update.py').

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
            f"FedRep trains the head in all local 'epochs' but the last {self.body_epochs}, which train the body, so "
            f"'epochs' must be at least {self.body_epochs + 1}; got {local.epochs or f'steps = {local.steps}'}",
        )
        require(local.share == 1, "FedRep needs all local steps, but shorter training leaves some out")

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
