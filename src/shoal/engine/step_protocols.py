"""What a defence may put into local steps: other inputs, or something else to minimise. Both are the loop backend's."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from shoal.models.model import Loss

Forward = Callable[[Tensor], Tensor]
"""The network in training mode: inputs (B, ...) to outputs (B, C), float32."""


@runtime_checkable
class Augmentation(Protocol):
    """Random transformations of the images that a client trains on, drawn anew in every pass.

    Example:
        >>> import torch, shoal
        >>> from dataclasses import dataclass
        >>> from shoal.engine import Augmentation
        >>> @dataclass(frozen=True)
        ... class Brightness:
        ...     spread: float
        ...     def augmented(self, images, generator):
        ...         return images * (1 + self.spread * torch.rand(len(images), 1, 1, 1, generator=generator))
        ...
        >>> isinstance(Brightness(0.1), Augmentation), shoal.LocalSGD(augmentation=Brightness(0.1)).augmentation
        (True, Brightness(spread=0.1))
    """

    def augmented(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Images of the same shape.

        What becomes of an image must not depend on the others, so that DP-SGD bounds what it can change.

        Args:
            images: (B, C, H, W) float, B at least 1; not changed.
            generator: the client's, on the CPU; everything random is drawn from it.
        """
        ...


@runtime_checkable
class Objective(Protocol):
    """What a local step minimises in the place of the batch's mean loss.

    Example:
        >>> import torch, shoal
        >>> from dataclasses import dataclass
        >>> from shoal.engine import Objective
        >>> @dataclass(frozen=True)
        ... class HardestExample:
        ...     def objective(self, forward, x, y, loss, generator, number):
        ...         return loss(forward(x), y).max()
        ...
        >>> isinstance(HardestExample(), Objective)
        True
        >>> x, y = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0])
        >>> HardestExample().objective(lambda x: x, x, y, shoal.models.cross_entropy, None, 0).round(decimals=3)
        tensor(0.6930)
    """

    def objective(
        self, forward: Forward, x: Tensor, y: Tensor, loss: Loss, generator: torch.Generator, number: int
    ) -> Tensor:
        """A scalar to differentiate.

        Args:
            forward: the network.
            x: inputs (B, ...).
            y: labels (B,), of a regression (B, d).
            loss: per-example loss of outputs and labels.
            generator: the client's, on the CPU; everything random is drawn from it.
            number: of the client's pass over its data within the whole training, from 0: rounds done times the passes
                of a round, plus the pass within this round.
        """
        ...
