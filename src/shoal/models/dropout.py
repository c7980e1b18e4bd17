"""Dropout whose masks come from a generator of its own, not from PyTorch's global one."""

import torch
from torch import Tensor, nn

from shoal.core.errors import require


class SeededDropout(nn.Module):
    """In training, sets each input element to 0 with probability ``p`` and scales the others by 1 / (1 - p).

    PyTorch's own dropout uses the global generator, so its masks would depend on the number of threads. This one uses
    ``generator``, which the engine sets before it trains a client; without it training is an error.

    Args:
        p: probability of 0, in [0, 1).

    Example:
        >>> import torch
        >>> from shoal.models import SeededDropout
        >>> layer = SeededDropout(0.5)
        >>> layer.generator = torch.Generator().manual_seed(0)
        >>> sorted(set(layer(torch.ones(1000)).tolist()))
        [0.0, 2.0]
        >>> layer.eval()(torch.ones(2))
        tensor([1., 1.])
    """

    generator: torch.Generator | None = None

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the shape of ``x``; in evaluation mode ``x`` itself."""
        if not self.training or self.p == 0:
            return x
        require(self.generator is not None, "a network with SeededDropout trains only in the engine's loop backend")
        kept = torch.rand(x.shape, generator=self.generator) >= self.p
        mask = kept.to(dtype=x.dtype, device=x.device) / (1 - self.p)
        if x.is_mkldnn:
            return (x.to_dense() * mask).to_mkldnn()
        return x * mask

    def extra_repr(self) -> str:
        """The arguments in the layer's ``repr``."""
        return f"p={self.p}"


def seeded_dropouts(network: nn.Module) -> list[SeededDropout]:
    """The dropout layers of ``network`` with p > 0, in the order of its modules."""
    return [module for module in network.modules() if isinstance(module, SeededDropout) and module.p > 0]
