"""FedBN: FedAvg with batch norm that stays with each client."""

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
"""The value of ``layers`` for all layers with running statistics."""

_STATISTICS = "running_mean"


@settings
class FedBN(OwnLayers):
    """FedAvg over all layers except batch norm; each client keeps its own scale, shift, running mean and running
    variance.

    A client uses the averaged layers with its own last-trained batch norm. The accuracy per round is not informative,
    because the server's model has the initial batch norm. FedBN suits clients whose inputs differ in brightness,
    contrast or device.

    Args:
        layers: the layers that each client keeps: "batch-norm" (all layers with running statistics), "last" (the last
            linear layer, as in FedPer, arXiv:1912.00818), or the name of a layer in the network.
        weighting: the clients' weights in the average: their numbers of "examples" (the paper), or "equal" (the
            authors' code).

    Source: Li et al. 2021, arXiv:2102.07623, Algorithm 1.

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
        require(bool(norms), "FedBN needs a network with batch norm; set 'layers' to the name of a layer")
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
