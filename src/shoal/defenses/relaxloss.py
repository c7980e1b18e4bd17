"""RelaxLoss: a loss that stays at a level; below it, the predicted probabilities are flattened."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from shoal.core.settings import NonNegativeFloat, settings
from shoal.defenses.defense import LossDefense
from shoal.engine.local_sgd import Forward
from shoal.models.model import Loss


@settings
class RelaxLoss(LossDefense):
    """RelaxLoss, which keeps the mean loss L of a batch near a level alpha.

    A step minimises ``|L - alpha|``. If L is at most alpha in an odd pass over the data, the step instead minimises the
    cross-entropy to flattened posteriors, which are treated as constants. A flattened posterior keeps the label's
    probability and spreads the remaining probability evenly over the other classes. Passes are counted from 0 over all
    rounds. RelaxLoss requires classification by cross-entropy and the ``loop`` backend, and excludes DP-SGD.

    Args:
        alpha: the level of the mean loss in nats; 0 gives plain training.
        upper: the largest probability of the label in a flattened posterior (paper: 1 for images, 0.1 to 1 for tables).

    Source: Chen et al. 2022, arXiv:2207.05801, Algorithm 1.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> for alpha in (0.0, 0.2):
        ...     defenses = [shoal.RelaxLoss(alpha)]
        ...     result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=5, defenses=defenses)
        ...     print(f"{result.clients['loss'].mean():.2f}")
        ...
        0.01
        0.17
    """

    alpha: NonNegativeFloat
    upper: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    name: ClassVar[str] = "relaxloss"
    title: ClassVar[str] = "RelaxLoss"
    scales: ClassVar[str] = "alpha"
    of_cross_entropy: ClassVar[bool] = True

    def objective(
        self, forward: Forward, x: Tensor, y: Tensor, loss: Loss, generator: torch.Generator, number: int
    ) -> Tensor:
        outputs = forward(x)
        mean = loss(outputs, y).mean()
        if number % 2 == 0 or float(mean.detach()) > self.alpha:
            return (mean - self.alpha).abs()
        return functional.cross_entropy(outputs, self._flat(outputs.detach(), y))

    def _flat(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return flattened posteriors (B, C) of outputs (B, C)."""
        of_label = outputs.softmax(dim=1).gather(1, y[:, None]).clamp(max=self.upper)
        rest = (1 - of_label) / max(1, outputs.shape[1] - 1)
        return rest.expand_as(outputs).scatter(1, y[:, None], of_label)
