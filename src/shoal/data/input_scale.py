"""By what the columns of tables are standardised, so that clients elsewhere can do as the server does."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class InputScale:
    """Inputs as ``(x - mean) / deviation``.

    Args:
        inputs: the names of the F columns.
        mean: of each.
        deviation: of each; infinite for a column that is constant, which becomes 0.

    Example:
        >>> import torch
        >>> from shoal.data import InputScale
        >>> scale = InputScale.of(("age", "ward"), torch.tensor([[40.0, 7.0], [60.0, 7.0]]).double())
        >>> scale
        InputScale(inputs=('age', 'ward'), mean=(50.0, 7.0), deviation=(10.0, inf))
        >>> scale.applied(torch.tensor([[70.0, 8.0]]).double())
        tensor([[2., 0.]])
    """

    inputs: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @staticmethod
    def of(inputs: tuple[str, ...], x: Tensor) -> "InputScale":
        """That of the rows ``x`` (M, F) float64."""
        known = x.numpy()
        mean, deviation = known.mean(axis=0), known.std(axis=0)
        # Of equal numbers the deviation is rounding, which would be blown up to 1.
        deviation[known.min(axis=0) == known.max(axis=0)] = np.inf
        return InputScale(inputs, tuple(mean.tolist()), tuple(deviation.tolist()))

    def applied(self, x: Tensor) -> Tensor:
        """The rows (M, F) float64 as float32, standardised."""
        return torch.from_numpy(((x.numpy() - np.array(self.mean)) / np.array(self.deviation)).astype(np.float32))
