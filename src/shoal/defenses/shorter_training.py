"""Shorter training: clients take fewer local steps, so their updates remember less of their examples."""

from dataclasses import replace
from typing import Annotated, Self

from pydantic import Field

from shoal.core.settings import settings
from shoal.defenses.defense import TrainingSetup, require_strength
from shoal.engine import ClusterRound, LocalSGD


@settings
class ShorterTraining:
    """A share of the local steps: of a client's steps in a round, which its epochs or steps say, the first ones.

    Args:
        share: of the local steps (of epochs, parts of one too), how many are taken, in (0, 1], rounded, and at least
            one; 1: all.

    Raises:
        InputError: a share outside (0, 1].

    Example:
        >>> import shoal
        >>> federation = shoal.Federation.from_tensors([([[-1.0], [1.0]], [0, 1])] * 3, test=([[2.0]], [1]))
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> local = shoal.LocalSGD(steps=20, learning_rate=0.5)
        >>> half, fewer = [shoal.ShorterTraining(0.5)], shoal.LocalSGD(steps=10, learning_rate=0.5)
        >>> one = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=2, defenses=half)
        >>> same = shoal.simulate(federation, model, shoal.FedAvg(), fewer, rounds=2)
        >>> one.state.models.equal(same.state.models)
        True
    """

    share: Annotated[float, Field(gt=0, le=1, strict=True, alias="share_of_steps")]

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with fewer local steps."""
        return replace(setup, defenses=(*setup.defenses, self))

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Local training of that share of its steps, the same in every round."""
        del at
        return local if self.share == 1 else replace(local, share=self.share * local.share)

    def scaled(self, strength: float) -> Self:
        """With ``strength`` times the steps that are left out."""
        require_strength(strength)
        return replace(self, share=1 - strength * (1 - self.share)) if strength < 1 else self
