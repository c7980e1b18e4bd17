"""Dropout whose randomness has a name: its masks come from a generator that it is given."""

import torch
from torch import Tensor, nn

from shoal.core.errors import require


class SeededDropout(nn.Module):
    """Sets each number of its inputs to 0 with probability ``p`` in training, and scales the others by 1 / (1 - p).

    PyTorch's own dropout draws from the global generator, so its masks would depend on the number of threads. This one
    draws from ``generator``, which the engine sets before it trains a client, or not at all.

    Args:
        p: in [0, 1).
    """

    generator: torch.Generator | None = None

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Inputs of any shape to as many outputs; in evaluation mode they are the inputs."""
        if not self.training or self.p == 0:
            return x
        generator = self.generator
        require(generator is not None, "a network with named dropout trains in the engine's loop backend alone")
        kept = torch.rand(x.shape, generator=generator) >= self.p
        mask = kept.to(dtype=x.dtype, device=x.device) / (1 - self.p)
        if x.is_mkldnn:
            return (x.to_dense() * mask).to_mkldnn()
        return x * mask

    def extra_repr(self) -> str:
        """What stands in the brackets of its name."""
        return f"p={self.p}"


def seeded_dropouts(network: nn.Module) -> list[SeededDropout]:
    """The layers of ``network`` that draw masks, in its own order."""
    return [module for module in network.modules() if isinstance(module, SeededDropout) and module.p > 0]
