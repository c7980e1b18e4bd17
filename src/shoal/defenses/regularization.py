"""Defences without a paper of their own: an L2 penalty, dropout, and fewer local steps."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Self

from pydantic import Field
from torch import Tensor, nn

from shoal.core.errors import require
from shoal.core.settings import NonNegativeFloat, settings
from shoal.defenses.defense import Scaled, TrainingSetup, require_strength
from shoal.engine import ClusterRound, LocalSGD
from shoal.models import Model, SeededDropout


@settings
class L2(Scaled):
    """An L2 penalty: adds ``penalty * parameters`` to every gradient.

    Args:
        penalty: coefficient of the L2 penalty on the parameters; the same thing as ``weight_decay`` of local training,
            so only one of them may be given.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> for defenses in ([], [shoal.L2(0.1)]):
        ...     result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=3, defenses=defenses)
        ...     print(f"{float(result.state.models.norm()):.1f}")
        ...
        3.0
        1.5
    """

    penalty: Annotated[NonNegativeFloat, Field(alias="l2")]
    name: ClassVar[str] = "l2"
    title: ClassVar[str] = "L2 regularisation"
    scales: ClassVar[str] = "penalty"

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with the penalty as weight decay.

        Raises:
            InputError: local training has weight decay already.
        """
        decay = setup.first_local().weight_decay
        require(
            decay == 0,
            f"an L2 penalty of {self.penalty:g} and a weight decay of {decay:g} are the same thing; give one",
        )
        return setup.with_local_defense(self)

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Local training with that weight decay, the same in every round."""
        return replace(local, weight_decay=self.penalty) if self.penalty else local


@settings
class ShorterTraining:
    """A fraction of the local steps: only the first of a client's steps in each round.

    Args:
        share: the fraction of the local steps to take, in (0, 1], rounded to whole steps, at least one; 1: all.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> half, fewer = [shoal.ShorterTraining(0.5)], shoal.LocalSGD(steps=10, learning_rate=0.5)
        >>> one = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=2, defenses=half)
        >>> same = shoal.simulate(federation, model, shoal.FedAvg(), fewer, rounds=2)
        >>> one.state.models.equal(same.state.models)
        True
    """

    share: Annotated[float, Field(gt=0, le=1, strict=True, alias="share_of_steps")]
    name: ClassVar[str] = "shorter_training"
    title: ClassVar[str] = "Shorter training"

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with fewer local steps."""
        return setup.with_local_defense(self)

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Local training of that share of its steps, the same in every round."""
        return local if self.share == 1 else replace(local, share=self.share * local.share)

    def with_strength(self, strength: float) -> Self:
        """With ``strength`` times the steps that are left out."""
        require_strength(strength)
        return replace(self, share=1 - strength * (1 - self.share)) if strength < 1 else self


@settings
class Dropout:
    """Dropout of the inputs of linear layers while clients train.

    The first layer with parameters keeps all its inputs, which are the data. Names and order of the parameters stay
    those of the network without dropout, so models of the two have the same parameter vectors.

    Args:
        rate: fraction of the inputs of linear layers that are dropped, in [0, 1).

    Example:
        >>> import shoal.toy
        >>> federation, _, local = shoal.toy.one_group()
        >>> model = shoal.create_model("mlp", shoal.VectorShape(inputs=1, classes=2), hidden=8)
        >>> dropout = [shoal.Dropout(0.5)]
        >>> plain = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=2).models[0]
        >>> defended = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=2, defenses=dropout).models[0]
        >>> list(plain) == list(defended), plain["output.weight"].equal(defended["output.weight"])
        (True, False)
    """

    rate: Annotated[float, Field(ge=0, lt=1, strict=True, alias="dropout")]
    name: ClassVar[str] = "dropout"
    title: ClassVar[str] = "Dropout"

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with dropout in its model.

        Raises:
            InputError: the network has no linear layer after its first one.
        """
        return setup if self.rate == 0 else replace(setup, model=self.to(setup.model))

    def to(self, model: Model) -> Model:
        """``model`` with this dropout."""
        require(
            bool(_linear(model.structure())),
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


def _drop(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (layer.get_submodule("dropout")(inputs[0]), *inputs[1:])
