"""Gradients of many owners in one computation, by vmap, traced where a shape comes back often."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from shoal.data.memory_format import to_channels_first
from shoal.models.model import Loss

_TRACE_AFTER = 100
"""Uses of one shape after which its computation is traced, which takes as long as it saves in about so many."""

GradientInputs = tuple[dict[str, Tensor], dict[str, Tensor], Tensor, Tensor, Tensor]
"""Weights, other tensors, x, y and example weights, as `VmapGradients.__call__` takes them."""

_Gradient = Callable[..., dict[str, Tensor]]

_Kind = tuple[torch.Size, tuple[str, ...]]
"""What a traced computation is for: stored inputs of one shape, and the names of the trained tensors."""


@dataclass(eq=False)
class VmapGradients:
    """Gradients of the loss of n owners, each at its own weights and on its own batch, in one computation.

    A shape that comes back often is traced into a plain sequence of tensor operations: the same operations in the
    same order, without the cost of finding them again (measured, 0.7 ms a step of a small network).

    Args:
        build: gives a network, for its structure.
        loss: per-example loss.
        dtype: to compute in.
    """

    build: Callable[[], nn.Module]
    loss: Loss
    dtype: torch.dtype
    _uses: Counter[_Kind] = field(default_factory=Counter)
    _traced: dict[_Kind, _Gradient] = field(default_factory=dict)

    def expect(self, shape: torch.Size, names: Iterable[str], uses: int, example: Callable[[], GradientInputs]) -> None:
        """Say that stored inputs of a shape (n, B, ...) are about to be used, while no other thread runs a network
        (PyTorch's tracing is not safe beside other threads).

        Args:
            shape: of x.
            names: of the trained tensors, in their order.
            uses: how often.
            example: gives arguments like those to come, of any values.
        """
        kind = (shape, tuple(names))
        self._uses[kind] += uses
        if self._uses[kind] < _TRACE_AFTER or kind in self._traced:
            return
        # Imported here because it takes a second, which short runs need not spend.
        from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415

        given = example()
        traced = make_fx(self._of(self.build().to(given[2].device).train()))(*given)
        traced.graph.eliminate_dead_code()
        traced.recompile()
        self._traced[kind] = traced

    def __call__(self, network: nn.Module, *given: Tensor | dict[str, Tensor]) -> dict[str, Tensor]:
        """By name, (n, ...): the gradient of ``sum_b share[i, b] * loss(network(x[i, b]), y[i, b])``.

        Args:
            network: structure, in training mode, not in use by another thread.
            *given: the trainable tensors by name, each (n, ...); the network's other tensors, each (n, ...); stored
                inputs x (n, B, ...); labels y (n, B); and each example's share in its owner's mean loss (n, B).
        """
        weights, _, x, *_ = given
        assert isinstance(weights, dict)
        assert isinstance(x, Tensor)
        return (self._traced.get((x.shape, tuple(weights))) or self._of(network))(*given)

    def _of(self, network: nn.Module) -> _Gradient:
        def loss(weights: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
            tensors = {name: tensor.to(self.dtype) for name, tensor in (weights | rest).items()}
            outputs = functional_call(network, tensors, (to_channels_first(x),)).float()
            return (self.loss(outputs, y) * share).sum()

        return vmap(grad(loss))


def zero_labels(shape: torch.Size, labels: Tensor, device: torch.device) -> Tensor:
    """Zeros (n, B), of a regression (n, B, d), like ``labels`` (M, ...), for stored inputs of a shape (n, B, ...)."""
    return torch.zeros(*shape[:2], *labels.shape[1:], dtype=labels.dtype, device=device)
