"""The frozen first layers of a network as a fixed map of its inputs, computed once, and what is left as a model.

Rows of the one and of the other model are the same: nothing frozen is in a row. So a checkpoint, an update or a message
does not tell whether features were kept, and what is saved is the whole network.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from shoal.core.errors import require
from shoal.models.features import FeatureMap
from shoal.models.layers import changing_buffers, seeded_dropouts
from shoal.models.model import Model

_TOGETHER = 64
"""Inputs of the frozen layers at once, whatever batches are trained on, so that features are always the same bits."""


@dataclass(frozen=True, eq=False)
class FrozenPrefix:
    """The frozen first layers of a model's network.

    Args:
        layers: the map.
        shape: of an input's features, which are kept as vectors.
        count: of the network's first children.
    """

    layers: FeatureMap
    shape: tuple[int, ...]
    count: int

    def mapped(self, x: Tensor, *, threads: int = 1, on_disk: bool = False) -> Tensor:
        """The features (M, d) float32 of inputs (M, ...); see `FeatureMap.mapped`."""
        return self.layers.mapped(x, together=_TOGETHER, threads=threads, on_disk=on_disk)

    def rest(self, model: Model) -> Model:
        """The model of features that is left of ``model``, with its loss, its frozen tensors and its random starts."""
        build = partial(_rest, model.build, self.count, self.shape)
        rest = replace(model, build=build, cache_features=False, whole=model)
        return model.derived.setdefault((self.count, self.shape), rest)


def frozen_prefix(model: Model, x: Tensor) -> FrozenPrefix:
    """The first layers of the network of ``model`` that are frozen and compute the same in training, tried once.

    These are children of a `torch.nn.Sequential`, or the child ``body`` of a network that computes ``head(body(x))``.

    Args:
        model: with frozen layers.
        x: inputs (B, ...), at least one, on which the layers are tried.

    Raises:
        InputError: there are none.
    """
    shape = x.shape[1:]
    if shape not in model.derived:
        model.derived[shape] = _checked_prefix(model, x[:2])
    return model.derived[shape]


def _checked_prefix(model: Model, few: Tensor) -> FrozenPrefix:
    network = model.structure()
    children, kept, reason = _children(network), list[nn.Module](), ""
    for name, child in children:
        if reason := _reason(child):
            reason = f"its first layer '{name}' ({type(child).__name__}) {reason}"
            break
        kept.append(child)
    refused = "'cache_features' keeps what frozen first layers compute"
    frozen = any(True for layer in kept for _ in (*layer.parameters(), *layer.buffers()))
    require(frozen, f"{refused}, but {reason or 'no layer of the network is frozen'}")
    with torch.no_grad():
        expected = network.eval()(few)
        layers = nn.Sequential(*kept)
        features = layers(few)
        require(isinstance(features, Tensor), f"{refused}, which must be one tensor; got {type(features).__name__}")
        require(
            torch.allclose(layers.train()(few), features.clone(), rtol=0, atol=0, equal_nan=True),
            f"{refused}, but these compute something else in training than in evaluation",
        )
        model.require_frozen()
        prefix = FrozenPrefix(FeatureMap(*kept), tuple(features.shape[1:]), len(kept))
        found = prefix.rest(model).structure().eval()(features.flatten(1))
    require(
        torch.allclose(found.float(), expected.float(), rtol=1e-4, atol=1e-5, equal_nan=True),
        f"{refused}, but the network does not compute head(body(x))",
    )
    return prefix


def _children(network: nn.Module) -> list[tuple[str, nn.Module]]:
    children = network._modules
    pair = {"body", "head"} <= {*children}
    require(
        type(network).forward is nn.Sequential.forward or pair,
        "'cache_features' needs a network that is a torch.nn.Sequential, or one that computes head(body(x)) with its "
        f"modules 'body' and 'head'; got {type(network).__name__}",
    )
    chosen = ((name, children[name]) for name in (("body", "head") if pair else children))
    return [(name, child) for name, child in chosen if child is not None]


def _reason(layer: nn.Module) -> str:
    """The reason why a layer is not fixed; "": it is."""
    if any(parameter.requires_grad for parameter in layer.parameters()):
        return "is trained"
    if changing_buffers(layer):
        return "has batch statistics, which training changes"
    return "has dropout, which is drawn anew in training" if seeded_dropouts(layer) else ""


def _rest(build: Callable[[], nn.Module], count: int, shape: tuple[int, ...]) -> nn.Module:
    left = _children(build())[count:]
    unflatten = [] if len(shape) == 1 else [("features", nn.Unflatten(1, shape))]
    return nn.Sequential(OrderedDict([*unflatten, *left]))
