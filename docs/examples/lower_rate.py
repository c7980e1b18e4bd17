"""A defence that a coordinator can steer: a lower learning rate, by as much as each cluster's directive asks for."""

from dataclasses import replace
from typing import Annotated, Self

from pydantic import Field

from shoal.core.settings import settings
from shoal.defenses import TrainingSetup
from shoal.engine import ClusterRound, LocalSGD


@settings
class LowerRate:
    """Local training at ``factor`` times the learning rate.

    Args:
        factor: in (0, 1]; 1 changes nothing.
    """

    factor: Annotated[float, Field(gt=0, le=1)] = 0.5

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with this defence, fixed at full strength."""
        return replace(setup, defenses=(*setup.defenses, self))

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Local training of that cluster in that round."""
        del at
        return replace(local, learning_rate=self.factor * local.learning_rate)

    def with_strength(self, strength: float) -> Self:
        """This defence at a strength in [0, 1], as a directive asks for it; at 0 it changes nothing."""
        return replace(self, factor=1 - strength * (1 - self.factor))
