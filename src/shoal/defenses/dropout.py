"""Dropout as a defence: before every linear layer but the input's."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from shoal.core.errors import require
from shoal.defenses.defense import TrainingSetup
from shoal.models import Model, SeededDropout


@dataclass(frozen=True)
class Dropout:
    """Drops inputs of linear layers while clients train.

    The first layer with parameters sees the raw inputs and keeps them all. Names and order of the parameters stay those
    of the network without dropout, so models of the two have the same rows.

    Args:
        rate: share of a layer's inputs that are dropped, in [0, 1).

    Raises:
        InputError: a rate outside that range.
    """

    rate: float

    def __post_init__(self) -> None:
        require(0 <= self.rate < 1, f"'defenses.dropout' must be at least 0 and below 1; got {self.rate:g}")

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with a model that drops.

        Raises:
            InputError: its network has no linear layer to drop inputs of.
        """
        if self.rate == 0:
            return setup
        return replace(setup, model=self.to(setup.model))

    def to(self, model: Model) -> Model:
        """``model`` with this dropout."""
        require(
            bool(_linear(model.network())),
            "'defenses.dropout' drops inputs of linear layers, but the network has none after its first layer",
        )
        return replace(model, build=partial(_dropping, model.build, self.rate))


def _linear(network: nn.Module) -> list[nn.Linear]:
    """The linear layers but one that comes first of all layers with parameters."""
    layers = [module for module in network.modules() if any(True for _ in module.parameters(recurse=False))]
    # Others of their kind are called by name only, not as layers.
    return [layer for layer in layers[1:] if type(layer) is nn.Linear]


def _dropping(build: Callable[[], nn.Module], rate: float) -> nn.Module:
    network = build()
    for layer in _linear(network):
        layer.add_module("dropout", SeededDropout(rate))
        layer.register_forward_pre_hook(_drop)
    return network


def _drop(layer: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (layer.get_submodule("dropout")(given[0]), *given[1:])
