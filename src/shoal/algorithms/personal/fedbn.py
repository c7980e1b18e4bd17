"""FedBN: clients average all layers but their batch norms, which stay with them."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrappers.shared_body import OwnLayers, head_of
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.settings import settings
from shoal.engine import Cohort, RoundPlan, State

BATCH_NORM = "batch-norm"
"""All layers with running statistics."""

_STATISTICS = "running_mean"


@settings
class FedBN(OwnLayers):
    """Client i trains ``(w, b_i)``, the shared layers and its own batch norms (scale, shift, running mean, running
    variance), and sends w alone: ``w <- sum_i p_i w_i``; b_i stays where it is.

    Clients use the averaged layers with their own batch norms as last trained, or the initial ones where they took part
    in no round. So does the server's model, whose accuracy by round therefore says little. For inputs that differ in
    brightness, contrast or device from client to client.

    Args:
        layers: the layers that each client has for itself: "batch-norm", all with running statistics; or another layer
            by its name in the network or as "last", the last linear one, which is FedPer (arXiv:1912.00818).
        weighting: the weights p_i of clients: by "examples" (the paper), or "equal" (the authors' code).

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
    key: ClassVar[str] = "fedbn"

    @property
    def inner(self) -> FedAvg:
        return FedAvg(self.weighting)

    def own_mask(self, layout: Layout) -> Tensor:
        if self.layers != BATCH_NORM:
            return head_of(layout, self.layers)
        layer = {slot: slot.name.rpartition(".")[0] for slot in layout.slots}
        norms = {layer[slot] for slot in layout.slots if slot.name.rpartition(".")[2] == _STATISTICS}
        require(bool(norms), "FedBN keeps batch norms at the clients, and this network has none; name its 'layers'")
        where = torch.zeros(layout.size, dtype=torch.bool)
        for piece in layout.slices({slot.name for slot in layout.slots if layer[slot] in norms}):
            where[piece] = True
        return where

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        plan = super().plan(state, cohort)
        kept, everybody = self.own_mask(cohort.layout), torch.arange(len(cohort))
        (training,) = plan.trainings
        training = replace(
            training,
            initial_params=self.own_models(state, cohort, everybody),
            init_index=everybody,
            keep=lambda update: update[:, kept.to(update.device)],
            shared=self.shared_tensors(cohort.layout),
        )
        return replace(plan, trainings=(training,))
