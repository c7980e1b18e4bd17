"""Flooding: the training loss is kept at a level above 0.

Source: Ishida, Yamane, Sakai, Niu, Sugiyama 2020, arXiv:2002.08709.
"""

from dataclasses import replace
from typing import Annotated, Self

import torch
from pydantic import Field
from torch import Tensor

from shoal.core.settings import NonNegativeFloat, settings
from shoal.defenses.defense import TrainingSetup, minimising, require_strength, with_objective
from shoal.engine import ClusterRound, LocalSGD
from shoal.engine.steps import Forward
from shoal.models.model import Loss


@settings
class Flooding:
    """A step minimises ``|L - b| + b`` of the batch's mean loss L: gradient descent above the level b, ascent below.

    Not with DP-SGD, and in the ``loop`` backend only.

    Args:
        level: b, the flood level, below which a batch's mean loss is raised instead of lowered; 0: no flooding of a
            loss that is never negative.

    Raises:
        InputError: a level that is negative or not finite.

    Source: Ishida, Yamane, Sakai, Niu, Sugiyama 2020, arXiv:2002.08709.

    Example:
        >>> import shoal
        >>> federation = shoal.Federation.from_tensors([([[-1.0], [1.0]], [0, 1])] * 3, test=([[2.0]], [1]))
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> local = shoal.LocalSGD(steps=20, learning_rate=0.5)
        >>> for level in (0.0, 0.2):
        ...     defenses = [shoal.Flooding(level)]
        ...     result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=5, defenses=defenses)
        ...     print(f"{result.clients['loss'].mean():.2f}")
        ...
        0.01
        0.23
    """

    level: Annotated[NonNegativeFloat, Field(alias="flooding")]

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with flooding.

        Raises:
            InputError: steps are private, or minimise another objective.
        """
        return with_objective(setup, self)

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Local training with that level, the same in every round."""
        del at
        return local if self.level == 0 else minimising(local, self)

    def scaled(self, strength: float) -> Self:
        """With ``strength`` times the level."""
        require_strength(strength)
        return replace(self, level=strength * self.level)

    def objective(
        self, forward: Forward, x: Tensor, y: Tensor, loss: Loss, generator: torch.Generator, number: int
    ) -> Tensor:
        """``|L - b| + b``."""
        del generator, number
        return (loss(forward(x), y).mean() - self.level).abs() + self.level
