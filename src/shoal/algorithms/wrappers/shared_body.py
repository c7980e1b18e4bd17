"""Algorithms with shared layers: a body that all clusters train together, or layers that each client keeps."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.wrapper import Derived, Wrapper
from shoal.algorithms.wrappers.pooling import pool_models, trainers_per_model
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.settings import one_of, settings
from shoal.engine import Aggregate, Algorithm, ClientVectors, Cohort, DeployedModels, PersonalModels, RoundPlan, State


@settings
class SharedBody(Wrapper):
    """A wrapper that replaces all parameters outside the head by their mean over the models after each round.

    A coordinator's directive "shared_body" in [0, 1] sets the mean's weight in a cluster's body (1 by default). With 0,
    the model equals that of ``base`` bit for bit. The body includes batch norm's statistics.

    Args:
        base: the algorithm that trains the models.
        head: the layer that each cluster keeps: "last" (the last linear layer), or the name of a layer in the network.

    Source: Collins et al. 2021, arXiv:2102.07078, and Arivazhagan et al. 2019, arXiv:1912.00818, for one model.

    Example:
        >>> import shoal.toy
        >>> federation, *_ = shoal.toy.two_groups()
        >>> model = shoal.create_model("mlp", shoal.VectorShape(inputs=1, classes=2), hidden=4)
        >>> algorithm = shoal.SharedBody(shoal.IFCA(clusters=2))
        >>> first, second = shoal.simulate(federation, model, algorithm, shoal.LocalSGD(), rounds=3).models.values()
        >>> {name: first[name].equal(second[name]) for name in first}
        {'hidden.weight': True, 'hidden.bias': True, 'output.weight': False, 'output.bias': False}
    """

    base: Algorithm = IFCA()
    head: str = "last"
    name: Literal["shared-body"] = "shared-body"
    title: ClassVar[str] = "Shared body"
    moves_by_average: ClassVar[bool] = False

    def check_layout(self, layout: Layout) -> None:
        head_of(layout, self.head)

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        after = super().server_update(state, cohort, plan, aggregate)
        body = ~head_of(cohort.layout, self.head)
        rho = after.strength("shared_body")[:, None] * body
        return replace(after, models=pool_models(after.models, rho, trainers_per_model(after, cohort, plan)))


def head_of(layout: Layout, head: str) -> Tensor:
    """Return a mask (P,) bool of the parameters of the layer ``head``; "last" is the last layer with a weight matrix.

    Raises:
        InputError: the network has no layer ``head``, or no layer besides the head.

    >>> layout = Layout.from_tensors({"a.weight": torch.zeros(2, 3), "b.weight": torch.zeros(1, 2)}, {})
    >>> head_of(layout, "last").tolist()
    [False, False, False, False, False, False, True, True]
    """
    layer = {slot: slot.name.rpartition(".")[0] for slot in layout.slots}
    trained = [slot for slot in layout.slots if slot.start < layout.trainable]
    linear = [layer[slot] for slot in trained if slot.name.endswith("weight") and len(slot.shape) == 2]
    require(
        head != "last" or bool(linear), "'head' must be the name of a layer, because the network has no linear layer"
    )
    chosen = linear[-1] if head == "last" else head
    layers = list(dict.fromkeys(layer[slot] for slot in trained))
    require(chosen in layers, f"'head' must be 'last' or a layer of the network, {one_of(layers)} (got {head!r})")
    require(len(layers) > 1, "'head' must not be the network's only layer with parameters")
    inside = torch.zeros(layout.size, dtype=torch.bool)
    for slot in layout.slots:
        inside[slot.start : slot.start + slot.size] = layer[slot] == chosen
    return inside


class OwnLayers(Derived):
    """An algorithm with one shared model and some layers that each client keeps."""

    key: ClassVar[str]
    """The key of the clients' layers in `State.personal`."""

    def own_mask(self, layout: Layout) -> Tensor:
        """Return a mask (P,) bool of the parameters that stay with clients; raise `InputError` if there are none."""
        raise NotImplementedError

    def shared_tensors(self, layout: Layout) -> frozenset[str]:
        mask = self.own_mask(layout)
        return frozenset(slot.name for slot in layout.slots if not mask[slot.start])

    def check_layout(self, layout: Layout) -> None:
        self.own_mask(layout)

    def add_tensors(self, state: State, layout: Layout) -> State:
        own = state.models[0, self.own_mask(layout)]
        return replace(state, personal={self.key: ClientVectors.same(own, len(state.assignment))})

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        (update,) = aggregate.kept
        assert update is not None
        own = state.personal[self.key].add_rows(cohort.clients, update)
        # Nobody sent these, so the server's stay to the last bit.
        models = torch.where(self.own_mask(cohort.layout), state.models, aggregate.models)
        return replace(state, models=models, personal={self.key: own})

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        everybody = torch.arange(len(cohort))
        models = PersonalModels(len(cohort), lambda some: self.own_models(state, cohort, some))
        return DeployedModels(models, everybody, torch.zeros_like(everybody))

    def own_models(self, state: State, cohort: Cohort, positions: Tensor) -> Tensor:
        """Return the models (u, P) of the cohort's clients at ``positions`` (u,), with the clients' own layers."""
        rows = state.models[0].repeat(len(positions), 1)
        rows[:, self.own_mask(cohort.layout)] = state.personal[self.key][cohort.clients[positions]]
        return rows
