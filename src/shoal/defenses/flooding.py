"""Flooding: training keeps the loss at a level above 0."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from shoal.core.settings import NonNegativeFloat, settings
from shoal.defenses.defense import LossDefense
from shoal.engine.local_sgd import Forward
from shoal.models.model import Loss


@settings
class Flooding(LossDefense):
    """The loss ``|L - b| + b``, where L is a batch's mean loss: gradient descent above the level b, and ascent below b.

    Flooding excludes DP-SGD and needs the ``loop`` backend.

    Args:
        level: the level b near which flooding keeps the training loss; 0 disables flooding.

    Source: Ishida et al. 2020, arXiv:2002.08709.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> for level in (0.0, 0.2):
        ...     defenses = [shoal.Flooding(level)]
        ...     result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=5, defenses=defenses)
        ...     print(f"{result.clients['loss'].mean():.2f}")
        ...
        0.01
        0.23
    """

    level: Annotated[NonNegativeFloat, Field(alias="flooding")]
    name: ClassVar[str] = "flooding"
    title: ClassVar[str] = "Flooding"
    scales: ClassVar[str] = "level"

    def objective(
        self, forward: Forward, x: Tensor, y: Tensor, loss: Loss, generator: torch.Generator, number: int
    ) -> Tensor:
        return (loss(forward(x), y).mean() - self.level).abs() + self.level
