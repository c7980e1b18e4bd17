"""A short vector for each update that keeps cosines: the count sketch.

Source: Charikar, Chen, Farach-Colton 2002, as a projection (Weinberger et al. 2009, arXiv:0902.2206); here with
buckets of equal size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.randomness import Stream


@dataclass(frozen=True, eq=False)
class UpdateSketch:
    """Map of updates (u, P) to short vectors (u, d): every entry gets a random sign and is added to one of d buckets.

    Inner products are kept in expectation, with a standard deviation of about sqrt(2 / d) for unit vectors, so a
    cosine is off by about 0.02 with d = 4,096. Where P is at most d, the sketch is the update itself.

    Args:
        order: (P,) int64, a random permutation: consecutive entries of it share a bucket; empty: nothing is mapped.
        sign: (P,) float32, 1 or -1 for each entry in that order.
        size: d.
    """

    order: Tensor
    sign: Tensor
    size: int

    @staticmethod
    def draw(length: int, size: int, stream: Stream) -> "UpdateSketch":
        """A sketch of ``size`` numbers for updates of ``length``."""
        if length <= size:
            return UpdateSketch(torch.zeros(0, dtype=torch.int64), torch.zeros(0), size)
        order = torch.randperm(length, generator=stream("order").generator())
        heads = torch.rand(length, generator=stream("sign").generator()) < 0.5
        return UpdateSketch(order, 1 - 2 * heads.float(), size)

    def sketched(self, updates: Tensor) -> Tensor:
        """(u, P) -> (u, d), or (u, P) as it is where P is at most d.

        >>> sketch = UpdateSketch(torch.tensor([2, 0, 1]), torch.tensor([1.0, -1.0, 1.0]), 2)
        >>> sketch.sketched(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[2., 2.]])
        """
        if not len(self.order):
            return updates
        mixed = updates[:, self.order.to(updates.device)] * self.sign.to(updates)
        width = -(-len(self.order) // self.size)
        padded = torch.nn.functional.pad(mixed, (0, width * self.size - len(self.order)))
        return padded.view(len(updates), self.size, width).sum(dim=2)
