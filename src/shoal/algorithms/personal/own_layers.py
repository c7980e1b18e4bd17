"""What algorithms have in common in which some layers stay with their clients, and the others are averaged."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from shoal.algorithms.wrapper import Derived
from shoal.core.layout import Layout
from shoal.engine import Aggregate, ClientVectors, Cohort, Deployed, PersonalModels, RoundPlan, State


class OwnLayers(Derived):
    """An algorithm of one model, of which each client has some layers for itself.

    Its ``plan`` begins at `own_models`, keeps the updates of the layers in `kept`, and shares `shared_tensors`.
    """

    key: ClassVar[str]
    """The name of the clients' layers in `State.personal`."""

    def kept(self, layout: Layout) -> Tensor:
        """(P,) bool, the parameters that stay with clients; `InputError` where a network has no such layers."""
        raise NotImplementedError

    def shared_tensors(self, layout: Layout) -> frozenset[str]:
        """The names of the tensors that clients send."""
        kept = self.kept(layout)
        return frozenset(slot.name for slot in layout.slots if not kept[slot.start])

    def check_layout(self, layout: Layout) -> None:
        """Raise `InputError` where a network has no such layers."""
        self.kept(layout)

    def begun(self, state: State, layout: Layout) -> State:
        """One random model, and its own layers for each client."""
        own = state.models[0, self.kept(layout)]
        return replace(state, personal={self.key: ClientVectors.same(own, len(state.assignment))})

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The averaged layers; and each client's own ones move."""
        (update,) = aggregate.kept
        assert update is not None
        own = state.personal[self.key].moved(cohort.clients, update)
        # Nobody sent these, so the server's stay to the last bit.
        models = torch.where(self.kept(cohort.layout), state.models, aggregate.models)
        return replace(state, models=models, personal={self.key: own})

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Everybody uses the averaged layers with its own ones."""
        everybody = torch.arange(len(cohort))
        models = PersonalModels(len(cohort), lambda some: self.own_models(state, cohort, some))
        return Deployed(models, everybody, torch.zeros_like(everybody))

    def own_models(self, state: State, cohort: Cohort, some: Tensor) -> Tensor:
        """(u, P), the shared layers with the own ones of each of the cohort's clients at ``some`` (u,)."""
        rows = state.models[0].repeat(len(some), 1)
        rows[:, self.kept(cohort.layout)] = state.personal[self.key][cohort.clients[some]]
        return rows
