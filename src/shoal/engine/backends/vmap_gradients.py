"""Gradients of many owners in one computation by vmap, traced for shapes that recur often."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch._functorch import eager_transforms  # pyright: ignore[reportMissingTypeStubs]
from torch.func import functional_call, grad, vmap

from shoal.data.memory_format import to_channels_first
from shoal.models.model import Loss

TORCH_VERSION = "2.13."
"""The version of PyTorch whose internal functions `gradient_of` uses; a test compares the bits."""

_TRACE_AFTER = 100
"""Uses of one shape after which its computation is traced; tracing takes as long as it saves in about as many."""

GradientInputs = tuple[dict[str, Tensor], dict[str, Tensor], Tensor, Tensor, Tensor]
"""Weights, other tensors, x, y and example weights, as `VmapGradients.__call__` takes them."""

_Gradient = Callable[..., dict[str, Tensor]]

_Kind = tuple[torch.Size, tuple[str, ...]]
"""The shape of the stored inputs and the names of the trained tensors that a traced computation is for."""


@dataclass(eq=False)
class VmapGradients:
    """Gradients of the loss of n owners, each at its own weights and on its own batch, in one computation.

    A shape that recurs often is traced into a plain sequence of tensor operations: the same operations in the same
    order, without the cost of dispatching them (measured: 0.7 ms per step of a small network).

    Args:
        build: makes a network, for its structure.
        loss: per-example loss.
        dtype: to compute in.
    """

    build: Callable[[], nn.Module]
    loss: Loss
    dtype: torch.dtype
    _uses: Counter[_Kind] = field(default_factory=Counter)
    _traced: dict[_Kind, _Gradient] = field(default_factory=dict)

    def expect(self, shape: torch.Size, names: Iterable[str], uses: int, example: Callable[[], GradientInputs]) -> None:
        """Announce the use of stored inputs, while no other thread runs a network: tracing is not thread-safe.

        Args:
            shape: (n, B, ...), of x.
            names: of the trained tensors, in their order.
            uses: expected number.
            example: makes arguments of these shapes, of any values.
        """
        kind = (shape, tuple(names))
        self._uses[kind] += uses
        if self._uses[kind] < _TRACE_AFTER or kind in self._traced:
            return
        from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415 - takes a second to import

        inputs = example()
        traced = make_fx(self._of(self.build().to(inputs[2].device).train()))(*inputs)
        traced.graph.eliminate_dead_code()
        traced.recompile()
        self._traced[kind] = traced

    def __call__(self, network: nn.Module, *inputs: Tensor | dict[str, Tensor]) -> dict[str, Tensor]:
        """By name, (n, ...): the gradient of ``sum_b share[i, b] * loss(network(x[i, b]), y[i, b])``.

        Args:
            network: structure, in training mode, not in use by another thread.
            *inputs: the trainable tensors by name, each (n, ...); the network's other tensors, each (n, ...); stored
                inputs x (n, B, ...); labels y (n, B); and each example's share (n, B) of its owner's mean loss.
        """
        weights, _, x, *_ = inputs
        assert isinstance(weights, dict)
        assert isinstance(x, Tensor)
        return (self._traced.get((x.shape, tuple(weights))) or self._of(network))(*inputs)

    def _of(self, network: nn.Module) -> _Gradient:
        def loss(weights: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
            tensors = {name: tensor.to(self.dtype) for name, tensor in (weights | rest).items()}
            outputs = functional_call(network, tensors, (to_channels_first(x),)).float()
            return (self.loss(outputs, y) * share).sum()

        return vmap(gradient_of(loss))


def zero_labels(shape: torch.Size, labels: Tensor, device: torch.device) -> Tensor:
    """Zeros (n, B), or (n, B, d) in a regression, like ``labels`` (M, ...), for stored inputs of a shape."""
    return torch.zeros(*shape[:2], *labels.shape[1:], dtype=labels.dtype, device=device)


def gradient_of(loss: Callable[..., Tensor]) -> Callable[..., dict[str, Tensor]]:
    """The gradient of ``loss(weights, *rest)``, a number, by the tensors ``weights`` (a dictionary); it works under
    `torch.vmap`, and gives the bits of ``torch.func.grad(loss)``.

    It is `torch.func.grad` of torch 2.13, with the same functions of PyTorch in the same order, but for one step: there
    the backward pass runs in a context of `torch._dynamo`, PyTorch's compiler, to say that nothing is compiled. To load
    that takes 0.9 s of processor time and 55 MiB, more than a short run needs for everything else. In another version
    of PyTorch it is `torch.func.grad` itself.
    """
    if not torch.__version__.startswith(TORCH_VERSION):
        return grad(loss)

    def gradient(weights: dict[str, Tensor], *rest: object) -> dict[str, Tensor]:
        with eager_transforms.grad_increment_nesting() as level, torch.enable_grad():
            inside, *others = eager_transforms._wrap_all_tensors((weights, *rest), level)
            for tensor in inside.values():
                eager_transforms._create_differentiable(tensor, level)
            outcome = loss(inside, *others)
            if outcome.requires_grad:
                # As there: with a graph of the backward pass, since some of its formulas are others without one.
                gradients = torch.autograd.grad(
                    outcome, [*inside.values()], create_graph=True, allow_unused=True, materialize_grads=True
                )
            else:  # The loss depends on no weight.
                gradients = [torch.zeros_like(tensor) for tensor in inside.values()]
            plain = map(partial(eager_transforms._undo_create_differentiable, level=level), gradients)
            return dict(zip(weights, plain, strict=True))

    return gradient
