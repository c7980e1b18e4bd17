"""A model is a value: how to build the network, and what it loses on an example."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn
from torch.nn import functional

from shoal.core.errors import InputError, require
from shoal.core.layout import Layout
from shoal.core.randomness import Stream, seeded

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs (B, C) and labels (B,) to the loss of each example (B,)."""


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy in nats of each example: outputs (B, C), labels (B,) -> (B,)."""
    return functional.cross_entropy(outputs, labels, reduction="none")


@dataclass(frozen=True)
class Model:
    """A network that can be built as often as needed, trained as a row of numbers.

    Args:
        build: a class or function without arguments that returns a new, randomly initialised `torch.nn.Module`
            from images (B, C, H, W), or whatever the clients hold, to outputs (B, classes).
        loss: per-example loss.

    >>> model = Model(lambda: nn.Linear(2, 3))
    >>> model.parameters, model.init(Stream(0)).shape
    (9, torch.Size([9]))
    """

    build: Callable[[], nn.Module]
    loss: Loss = cross_entropy

    def __post_init__(self) -> None:
        require(
            not isinstance(self.build, nn.Module),
            "a Model takes the class or a function that builds the network, not a network: "
            "each of the K models needs its own random start",
        )

    def network(self) -> nn.Module:
        """A new network for its structure; its values are always the same."""
        return self._network(Stream(0, ("structure",)))

    def _network(self, stream: Stream) -> nn.Module:
        with seeded(stream):
            network = self.build()
        if not isinstance(network, nn.Module):
            raise InputError(f"a Model's build must return a torch.nn.Module; got {type(network).__name__}")
        return network

    @cached_property
    def layout(self) -> Layout:
        """Where each tensor lies in a row.

        Raises:
            InputError: the network has a layer of PyTorch whose randomness cannot be named (dropout), or no
                parameters. Randomness inside a network's own ``forward`` cannot be seen from here.
        """
        network = self.network()
        for name, module in network.named_modules():
            require(
                not _draws(module),
                f"layer '{name}' ({type(module).__name__}) draws from PyTorch's global generator, so results "
                "would depend on the number of threads; leave dropout out of the network",
            )
            counts = isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None
            require(
                not counts,
                f"layer '{name}' averages over all its batches, which no two clients share; give it a momentum",
            )
        parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
        require(bool(parameters), "the network has no trainable parameters")
        frozen = {name: p for name, p in network.named_parameters() if not p.requires_grad}
        buffers = {name: b for name, b in network.named_buffers() if b.is_floating_point()}
        return Layout.of(parameters, frozen | buffers)

    @property
    def parameters(self) -> int:
        """The number of trainable parameters."""
        return self.layout.trainable

    def init(self, stream: Stream) -> Tensor:
        """A random initial row (P,), by the network's own initialisation, drawn from ``stream``."""
        network = self._network(stream)
        return self.layout.pack(dict(network.named_parameters()) | dict(network.named_buffers()))

    def state_dict(self, row: Tensor) -> dict[str, Tensor]:
        """The network's tensors by name, contiguous copies of ``row`` (P,), fit for `load_state_dict`."""
        return {name: view.detach().clone().contiguous() for name, view in self.layout.views(row).items()}


def _draws(module: nn.Module) -> bool:
    """Whether a layer of PyTorch draws random numbers while it trains."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, nn.RReLU)
