"""Protocols and base classes of defences, which map a `TrainingSetup` to a `TrainingSetup`."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.engine import ClusterRound, LocalDefense, LocalSGD, UpdateFilter
from shoal.engine.local_sgd import PRIVATE_OBJECTIVE, Forward
from shoal.models import Model
from shoal.models.model import Loss, cross_entropy


@dataclass(frozen=True)
class TrainingSetup:
    """The settings of training that a defence may change.

    Args:
        model: the network.
        local: the local training before any defence.
        update_filter: the server's filter of every update, or None.
        client_filter: the filter that every honest client applies to its update, or None.
        defenses: the defences of local training, in order of application.
        kind: the kind of the examples, as `shoal.Federation.kind`, or None if unknown.

    Example:
        >>> import shoal
        >>> from shoal.defenses import TrainingSetup
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> setup = TrainingSetup(model, shoal.LocalSGD())
        >>> after = shoal.L2(0.1).apply(shoal.NormClipping(1.0).apply(setup))
        >>> after.first_local().weight_decay, after.update_filter, after.local == setup.local
        (0.1, NormClipping(max_norm=1.0), True)
    """

    model: Model
    local: LocalSGD
    update_filter: UpdateFilter | None = None
    defenses: tuple[LocalDefense, ...] = ()
    kind: str | None = None
    client_filter: UpdateFilter | None = None

    def first_local(self) -> LocalSGD:
        """Return cluster 0's local training in round 1, which determines the backend and the privacy account."""
        local = self.local
        for defense in self.defenses:
            local = defense.local(local, ClusterRound(round=1, cluster=0))
        return local

    def with_local_defense(self, defense: LocalDefense) -> "TrainingSetup":
        """Add a defence of local training."""
        return replace(self, defenses=(*self.defenses, defense))


@runtime_checkable
class Defense(Protocol):
    """A defence against inference from updates, or against malicious updates.

    Example:
        >>> from dataclasses import dataclass, replace
        >>> import shoal.toy
        >>> @dataclass(frozen=True)
        ... class SmallerSteps:
        ...     def apply(self, setup):
        ...         local = replace(setup.local, learning_rate=setup.local.learning_rate / 10)
        ...         return replace(setup, local=local)
        ...
        >>> federation, model, local = shoal.toy.one_group()
        >>> slow = replace(local, learning_rate=local.learning_rate / 10)
        >>> faded = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=2, defenses=[SmallerSteps()])
        >>> plain = shoal.simulate(federation, model, shoal.FedAvg(), slow, rounds=2)
        >>> faded.state.models.equal(plain.state.models)
        True
    """

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """Return the setup with this defence.

        A defence of local training adds itself to ``setup.defenses`` and also implements `LocalDefense`.

        Raises:
            InputError: the defence cannot be combined with the setup.
        """
        ...


def apply_defenses(setup: TrainingSetup, defenses: Sequence[Defense]) -> TrainingSetup:
    """Apply ``defenses`` to a setup in order.

    Example:
        >>> import shoal
        >>> from shoal.defenses import TrainingSetup, apply_defenses
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> setup = TrainingSetup(model, shoal.LocalSGD(steps=10))
        >>> setup = apply_defenses(setup, [shoal.L2(0.1), shoal.ShorterTraining(0.5)])
        >>> setup.first_local().weight_decay, setup.first_local().steps_of(20)
        (0.1, 5)
    """
    for defense in defenses:
        setup = defense.apply(setup)
    return setup


class Scaled:
    """A defence with a strength, a factor on the field named in `scales`; strength 0 disables the defence."""

    scales: ClassVar[str] = "strength"

    def with_strength(self, strength: float) -> Self:
        """Return the defence with a fraction ``strength`` in [0, 1] of its full strength."""
        require_strength(strength)
        value = strength * getattr(self, self.scales)
        return replace(self, **{self.scales: value})  # pyright: ignore[reportArgumentType] - subclasses are dataclasses


class LossDefense(Scaled):
    """A defence that replaces the loss of local steps by the `objective` of its subclass.

    A loss defence excludes other loss defences and DP-SGD, and needs the ``loop`` backend.

    Example:
        >>> import shoal.toy
        >>> from typing import ClassVar
        >>> from shoal.core.settings import Fraction, settings
        >>> from shoal.defenses import LossDefense
        >>> @settings
        ... class SquaredLoss(LossDefense):
        ...     weight: Fraction = 1.0
        ...     scales: ClassVar[str] = "weight"
        ...     def objective(self, forward, x, y, loss, generator, number):
        ...         mean = loss(forward(x), y).mean()
        ...         return (1 - self.weight) * mean + self.weight * mean.square()
        ...
        >>> federation, model, local = shoal.toy.one_group()
        >>> for defenses in ([], [SquaredLoss()]):
        ...     result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=3, defenses=defenses)
        ...     print(f"{result.clients['loss'].mean():.2f}")
        ...
        0.02
        0.07
    """

    of_cross_entropy: ClassVar[bool] = False
    """Whether the model's loss must be cross-entropy."""

    @property
    def is_off(self) -> bool:
        """Whether local steps minimise the plain loss."""
        return getattr(self, self.scales) == 0

    @abstractmethod
    def objective(
        self, forward: Forward, x: Tensor, y: Tensor, loss: Loss, generator: torch.Generator, number: int
    ) -> Tensor:
        """Return the loss that a local step minimises; see `shoal.engine.Objective`."""

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """Return the setup with this loss.

        Raises:
            InputError: local steps are private or have another objective, or the model's loss is not supported.
        """
        require(
            setup.model.loss is cross_entropy or not self.of_cross_entropy,
            f"{type(self).__name__} needs a model with cross-entropy loss; remove the model's 'loss'",
        )
        first = setup.first_local()
        require(not first.private, PRIVATE_OBJECTIVE)
        self._require_alone(first)
        return setup.with_local_defense(self)

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        if self.is_off:
            return local
        self._require_alone(local)
        return replace(local, objective=self)

    def _require_alone(self, local: LocalSGD) -> None:
        require(
            local.objective is None,
            f"{type(local.objective).__name__} cannot be combined with {type(self).__name__}; remove one of the two",
        )


def require_strength(strength: float) -> None:
    """Raise `InputError` unless ``strength`` is in [0, 1]."""
    require(0 <= strength <= 1, f"'strength' must be in [0, 1] (got {strength:g})")
