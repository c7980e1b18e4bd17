"""Dropout as a defence: on the inputs of linear layers, while clients train."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from shoal.core.errors import require
from shoal.core.settings import settings
from shoal.defenses.defense import TrainingSetup
from shoal.models import Model, SeededDropout


@settings
class Dropout:
    """Dropout of the inputs of linear layers while clients train.

    The first layer with parameters keeps all its inputs, which are the data. Names and order of the parameters stay
    those of the network without dropout, so models of the two have the same parameter vectors.

    Args:
        rate: fraction of the inputs of linear layers that are dropped while clients train; a first layer keeps all.

    Raises:
        InputError: a rate outside [0, 1).

    Example:
        >>> import shoal
        >>> federation = shoal.Federation.from_tensors([([[-1.0], [1.0]], [0, 1])] * 3, test=([[2.0]], [1]))
        >>> model = shoal.create_model("mlp", shoal.VectorShape(inputs=1, classes=2), hidden=8)
        >>> local, dropout = shoal.LocalSGD(), [shoal.Dropout(0.5)]
        >>> plain = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=2).models[0]
        >>> defended = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=2, defenses=dropout).models[0]
        >>> list(plain) == list(defended), plain["output.weight"].equal(defended["output.weight"])
        (True, False)
    """

    rate: Annotated[float, Field(ge=0, lt=1, strict=True, alias="dropout")]

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with dropout in its model.

        Raises:
            InputError: the network has no linear layer after its first one.
        """
        if self.rate == 0:
            return setup
        return replace(setup, model=self.to(setup.model))

    def to(self, model: Model) -> Model:
        """``model`` with this dropout."""
        require(
            bool(_linear(model.network())),
            "dropout is of inputs of linear layers, but the network has none after its first layer",
        )
        return replace(model, build=partial(_dropping, model.build, self.rate))


def _linear(network: nn.Module) -> list[nn.Linear]:
    """The linear layers, except one that is the first of all layers with parameters."""
    layers = [module for module in network.modules() if any(True for _ in module.parameters(recurse=False))]
    # Subclasses are used by their weights only and never called, so that a hook on them would do nothing.
    return [layer for layer in layers[1:] if type(layer) is nn.Linear]


def _dropping(build: Callable[[], nn.Module], rate: float) -> nn.Module:
    network = build()
    for layer in _linear(network):
        layer.add_module("dropout", SeededDropout(rate))
        layer.register_forward_pre_hook(_drop)
    return network


def _drop(layer: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (layer.get_submodule("dropout")(given[0]), *given[1:])
