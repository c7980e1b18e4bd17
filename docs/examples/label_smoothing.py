"""A loss: cross-entropy against smoothed labels, as a defence that a coordinator can steer."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from shoal.core.settings import Fraction, settings
from shoal.defenses import LossDefense
from shoal.models import Loss


@settings
class LabelSmoothing(LossDefense):
    """A step minimises the cross-entropy against ``(1 - smoothing) * label + smoothing / C``.

    Args:
        smoothing: 0 is the plain loss.
    """

    smoothing: Fraction = 0.1
    scales: ClassVar[str] = "smoothing"
    of_cross_entropy: ClassVar[bool] = True

    def objective(
        self,
        forward: Callable[[Tensor], Tensor],
        x: Tensor,
        y: Tensor,
        loss: Loss,
        generator: torch.Generator,
        number: int,
    ) -> Tensor:
        """The mean over the batch."""
        del loss, generator, number
        return cross_entropy(forward(x), y, label_smoothing=self.smoothing)
