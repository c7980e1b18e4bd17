"""Standard regularisation as a defence: an L2 penalty, dropout, and fewer local steps."""

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
    """An L2 penalty, which adds ``penalty * parameters`` to every gradient.

    Args:
        penalty: the coefficient of the L2 penalty on the parameters. The penalty has the same effect as
            ``local.weight_decay``, so only one of the two may be set.

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
        """Return the setup with the penalty as weight decay; raise `InputError` if local training has weight decay."""
        decay = setup.first_local().weight_decay
        require(
            decay == 0,
            f"'local.weight_decay' must be 0 with an L2 penalty (got {decay:g}); remove one of the two",
        )
        return setup.with_local_defense(self)

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        return replace(local, weight_decay=self.penalty) if self.penalty else local


@settings
class ShorterTraining:
    """Training with only the first steps of a client's local training in each round.

    Args:
        share: the fraction of local steps that each client takes, in (0, 1]. The number of steps is rounded, and is at
            least 1.

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
        return setup.with_local_defense(self)

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        return local if self.share == 1 else replace(local, share=self.share * local.share)

    def with_strength(self, strength: float) -> Self:
        """Multiply the fraction of omitted steps by ``strength``."""
        require_strength(strength)
        return replace(self, share=1 - strength * (1 - self.share)) if strength < 1 else self


@settings
class Dropout:
    """Dropout on the inputs of linear layers during local training.

    The first layer with parameters keeps all its inputs. Dropout does not change the names or the order of the
    network's parameters.

    Args:
        rate: the dropout rate at the inputs of linear layers, in [0, 1).

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
        """Return the setup with dropout; raise `InputError` if the network has no linear layer after its first."""
        return setup if self.rate == 0 else replace(setup, model=self.to(setup.model))

    def to(self, model: Model) -> Model:
        require(
            bool(_linear(model.structure())),
            "'dropout' needs a network with a linear layer after its first layer; remove 'dropout'",
        )
        return replace(model, build=partial(_dropping, model.build, self.rate))


def _linear(network: nn.Module) -> list[nn.Linear]:
    """Return the linear layers, except the network's first layer with parameters."""
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
