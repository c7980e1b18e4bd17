"""FedBN: clients average all layers but their batch norms, which stay with them."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Derived
from shoal.algorithms.wrappers.shared_body import head_of
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.settings import settings
from shoal.engine import Aggregate, ClientVectors, Cohort, Deployed, PersonalModels, RoundPlan, State

BATCH_NORM = "batch-norm"
"""All layers with running statistics."""

_STATISTICS = "running_mean"


@settings
class FedBN(Derived):
    """Client i trains ``(w, b_i)``, the shared layers and its own batch norms (scale, shift, running mean, running
    variance), and sends w alone: ``w <- sum_i p_i w_i``; b_i stays where it is.

    Clients use the averaged layers with their own batch norms as last trained, or the initial ones where they took part
    in no round. So does the server's model, whose accuracy by round therefore says little. For inputs that differ in
    brightness, contrast or device from client to client.

    Args:
        layers: that each client has for itself: "batch-norm", all with running statistics; or another layer by its name
            in the network or as "last", the last linear one, which is FedPer (arXiv:1912.00818).
        weighting: of clients, p_i: by "examples" (the paper), or "equal" (the authors' code).

    Source: Li, Jiang, Zhang, Kamp, Dou 2021, arXiv:2102.07623, Algorithm 1.

    Example:
        >>> import shoal.toy
        >>> from torch import nn
        >>> federation, *_ = shoal.toy.two_groups()
        >>> model = shoal.Model(lambda: nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)))
        >>> result = shoal.simulate(federation, model, shoal.FedBN(), shoal.LocalSGD(), rounds=2)
        >>> result.state.personal["fedbn"].tensor().shape  # scale, shift, mean and variance of 8 channels
        torch.Size([4, 32])
    """

    layers: str = BATCH_NORM
    weighting: Literal["examples", "equal"] = "examples"
    name: Literal["fedbn"] = "fedbn"
    title: ClassVar[str] = "FedBN"

    @property
    def inner(self) -> FedAvg:
        """FedAvg."""
        return FedAvg(self.weighting)

    def kept(self, layout: Layout) -> Tensor:
        """(P,) bool, what stays with clients; `InputError` where a network has no such layer."""
        if self.layers != BATCH_NORM:
            return head_of(layout, self.layers)
        layer = {slot: slot.name.rpartition(".")[0] for slot in layout.slots}
        norms = {layer[slot] for slot in layout.slots if slot.name.rpartition(".")[2] == _STATISTICS}
        require(bool(norms), "FedBN keeps batch norms at the clients, and this network has none; name its 'layers'")
        where = torch.zeros(layout.size, dtype=torch.bool)
        for piece in layout.slices({slot.name for slot in layout.slots if layer[slot] in norms}):
            where[piece] = True
        return where

    def check_layout(self, layout: Layout) -> None:
        """Raise `InputError` where a network has no such layer."""
        self.kept(layout)

    def begun(self, state: State, layout: Layout) -> State:
        """One random model, and its batch norms for each client."""
        own = state.models[0, self.kept(layout)]
        return replace(state, personal={"fedbn": ClientVectors.same(own, len(state.assignment))})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Everybody trains all layers, and sends the shared ones."""
        plan = super().plan(state, cohort)
        kept, everybody = self.kept(cohort.layout), torch.arange(len(cohort))
        (training,) = plan.trainings
        training = replace(
            training,
            initial_params=self._own(state, cohort, everybody),
            init_index=everybody,
            keep=lambda update: update[:, kept.to(update.device)],
            shared=frozenset(slot.name for slot in cohort.layout.slots if not kept[slot.start]),
        )
        return replace(plan, trainings=(training,))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The averaged layers; and each client's own ones move."""
        (update,) = aggregate.kept
        assert update is not None
        own = state.personal["fedbn"].moved(cohort.clients, update)
        # Nobody sent these, so the server's stay to the last bit.
        models = torch.where(self.kept(cohort.layout), state.models, aggregate.models)
        return replace(state, models=models, personal={"fedbn": own})

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Everybody uses the averaged layers with its own ones."""
        everybody = torch.arange(len(cohort))
        models = PersonalModels(len(cohort), lambda some: self._own(state, cohort, some))
        return Deployed(models, everybody, torch.zeros_like(everybody))

    def _own(self, state: State, cohort: Cohort, some: Tensor) -> Tensor:
        """(u, P), the shared layers with the own ones of each of the cohort's clients at ``some`` (u,)."""
        rows = state.models[0].repeat(len(some), 1)
        rows[:, self.kept(cohort.layout)] = state.personal["fedbn"][cohort.clients[some]]
        return rows
