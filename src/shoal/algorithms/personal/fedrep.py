"""FedRep: all clients train the network's body together, and each has a head of its own."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Derived
from shoal.algorithms.wrappers.shared_body import head_of
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.settings import Positive, settings
from shoal.engine import (
    Aggregate,
    ClientVectors,
    Cohort,
    Deployed,
    LocalSGD,
    LocalTraining,
    PersonalModels,
    RoundPlan,
    State,
    TrainingPhase,
)


@settings
class FedRep(Derived):
    """Client i trains its head h_i with a fixed body b, ``h_i <- h_i - eta * grad_h f_i(b, h)``; then b with h_i.

    The trained body is sent and averaged; the head stays with the client. Of the local epochs the last ``body_epochs``
    train the body and all before them the head, as in the authors' code (paper: ten epochs of the head and one of the
    body, so `LocalSGD(epochs=11)`). Clients use the averaged body and their own head as last trained, or the initial
    one. The authors' code trains all heads once more after the last round; `FineTuning` around this trains all of the
    model.

    Ours: the momentum of an optimizer begins anew with the body (the authors' code keeps one optimizer), and batch
    norm's statistics move in both phases and belong to the body. With DP-SGD each phase clips and noises what it
    trains, and epsilon covers both. N heads are kept, and the server's model has the initial one.

    Args:
        weighting: of clients' bodies: by "examples" (the authors' code), or "equal" (the paper).
        head: the layer that each client has for itself: "last", the last linear one, or a layer's name in the network.
        body_epochs: of the local epochs, those in which the body is trained.

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

    @property
    def inner(self) -> FedAvg:
        """FedAvg."""
        return FedAvg(self.weighting)

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """There must be epochs for the head beside those for the body, and all of them."""
        require(
            local.epochs is not None and local.epochs > self.body_epochs,
            f"FedRep trains the head in all local 'epochs' but the last {self.body_epochs}, which train the body, so "
            f"'epochs' must be at least {self.body_epochs + 1}; got {local.epochs or f'steps = {local.steps}'}",
        )
        require(local.share == 1, "FedRep needs all local steps, of which shorter training takes a share alone")

    def check_layout(self, layout: Layout) -> None:
        """Raise `InputError` where a network has no such head, or nothing beside it."""
        head_of(layout, self.head)

    def begun(self, state: State, layout: Layout) -> State:
        """One random model, and its head for each client."""
        head = state.models[0, head_of(layout, self.head)]
        return replace(state, personal={"fedrep": ClientVectors.same(head, len(state.assignment))})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Everybody trains its own head, then the body, and sends the body alone."""
        plan = super().plan(state, cohort)
        head, everybody = head_of(cohort.layout, self.head), torch.arange(len(cohort))
        theirs, body = _tensors(cohort.layout, self.head)
        assert cohort.local.epochs is not None
        (training,) = plan.trainings
        own = LocalTraining(
            initial_params=self._own(state, cohort, everybody),
            init_index=everybody,
            weights=training.weights,
            keep=lambda update: update[:, head.to(update.device)],
            phases=(
                TrainingPhase(cohort.local.epochs - self.body_epochs, theirs),
                TrainingPhase(self.body_epochs, body),
            ),
            shared=body,
        )
        return replace(plan, trainings=(own,))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The averaged body; and each client's head moves."""
        (update,) = aggregate.kept
        assert update is not None
        head = head_of(cohort.layout, self.head)
        heads = state.personal["fedrep"].moved(cohort.clients, update)
        # Nobody sent a head, so the server's stays to the last bit.
        models = torch.where(head, state.models, aggregate.models)
        return replace(state, models=models, personal={"fedrep": heads})

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Everybody uses the one body with its own head."""
        everybody = torch.arange(len(cohort))
        models = PersonalModels(len(cohort), lambda some: self._own(state, cohort, some))
        return Deployed(models, everybody, torch.zeros_like(everybody))

    def _own(self, state: State, cohort: Cohort, some: torch.Tensor) -> torch.Tensor:
        """(u, P), the body with the head of each of the cohort's clients at ``some`` (u,)."""
        rows = state.models[0].repeat(len(some), 1)
        rows[:, head_of(cohort.layout, self.head)] = state.personal["fedrep"][cohort.clients[some]]
        return rows


def _tensors(layout: Layout, head: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the head's tensors, and of all others."""
    inside = head_of(layout, head)
    theirs = frozenset(slot.name for slot in layout.slots if bool(inside[slot.start]))
    return theirs, frozenset(slot.name for slot in layout.slots) - theirs
