"""Per-example gradients of one layer's parameters, and their norms, from the layer's inputs and output gradients.

Norms are computed without per-example gradients if that is cheaper (mixed ghost clipping).

Source: Bu, Mao, Xu, "Scalable and Efficient Training of Large Convolutional Neural Networks with Differential Privacy",
2022, arXiv:2205.10683.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class ParameterGradients:
    """The gradients of B examples with respect to one parameter.

    Args:
        parameter: the network's parameter.
        squares: the squared L2 norm of each example's gradient, (B,).
        weighted: a function from weights (B,) to the weighted sum of the gradients, of the parameter's shape.
    """

    parameter: Tensor
    squares: Tensor
    weighted: Callable[[Tensor], Tensor]


UNDERFLOW = 1e-30
"""An upper bound on the sum of 10^8 squares that underflow to 0 in float32."""

Formula = Callable[[nn.Module, Tensor, Tensor], list[ParameterGradients]]
"""A function from a layer, its inputs (B, ...) and its output gradients (B, ...) to its parameters' gradients."""


def formula(layer: nn.Module) -> Formula | None:
    """Return the formula of a layer's gradients; ``None`` for an unsupported layer."""
    # Subclasses may compute something else.
    kind = type(layer)
    if kind is nn.Linear:
        return _linear
    if kind in {nn.Conv1d, nn.Conv2d}:
        plain = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return _convolution if plain else None
    if kind in {nn.GroupNorm, nn.LayerNorm}:
        return _norm
    if kind is nn.Embedding:
        plain = layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
        return _embedding if plain else None
    return None


def _linear(layer: nn.Module, a: Tensor, g: Tensor) -> list[ParameterGradients]:
    assert isinstance(layer, nn.Linear)
    a, g = a.flatten(1, -2) if a.dim() > 2 else a[:, None], g.flatten(1, -2) if g.dim() > 2 else g[:, None]
    parts = _if_trained(layer.bias, lambda: _materialised(layer.bias, g.sum(dim=1)))
    if a.shape[1] == 1:
        squares = product_of_squares(a[:, 0], g[:, 0])
    elif 2 * a.shape[1] ** 2 < layer.weight.numel():
        squares = _gram(a, g)
    else:
        return _if_trained(layer.weight, lambda: _materialised(layer.weight, torch.bmm(g.transpose(1, 2), a))) + parts

    def weighted(c: Tensor) -> Tensor:
        return (g * c[:, None, None]).flatten(0, 1).T @ a.flatten(0, 1)

    return _if_trained(layer.weight, lambda: ParameterGradients(layer.weight, squares, weighted)) + parts


def _convolution(layer: nn.Module, a: Tensor, g: Tensor) -> list[ParameterGradients]:
    assert isinstance(layer, nn.Conv1d | nn.Conv2d)
    weight, places = layer.weight, g.shape[2:].numel()
    parts = _if_trained(layer.bias, lambda: _materialised(layer.bias, g.flatten(2).sum(dim=2)))

    def gradient(inputs: Tensor, outputs: Tensor, examples: int) -> Tensor:
        """Return the weight's gradient for each of ``examples`` examples, stored as groups of channels."""
        shape = (examples * weight.shape[0], *weight.shape[1:])
        _, weight_gradient, _ = torch.ops.aten.convolution_backward(
            outputs, inputs, weight.new_empty(shape, dtype=inputs.dtype), None, layer.stride, layer.padding,
            layer.dilation, False, [0] * len(layer.stride), examples * layer.groups, [False, True, False],
        )  # fmt: skip
        return weight_gradient

    def weighted(c: Tensor) -> Tensor:
        return gradient(a, g * c.view(-1, *[1] * (g.dim() - 1)), 1)

    if isinstance(layer, nn.Conv2d) and layer.groups == 1 and 2 * places**2 < weight.numel():
        assert not isinstance(layer.padding, str)
        columns = functional.unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        squares = _gram(columns.transpose(1, 2), g.flatten(2).transpose(1, 2))
        return _if_trained(weight, lambda: ParameterGradients(weight, squares, weighted)) + parts

    def materialised() -> ParameterGradients:
        # One convolution of B groups of channels is three times as fast as unfolding.
        gradients = gradient(a.flatten(0, 1)[None], g.flatten(0, 1)[None], len(a))
        return _materialised(weight, gradients.view(len(a), *weight.shape))

    return _if_trained(weight, materialised) + parts


def _norm(layer: nn.Module, a: Tensor, g: Tensor) -> list[ParameterGradients]:
    assert isinstance(layer, nn.GroupNorm | nn.LayerNorm)
    if isinstance(layer, nn.GroupNorm):
        normed = functional.group_norm(a, layer.num_groups, eps=layer.eps)
        gradients, axes = g * normed, tuple(range(2, g.dim()))
    else:
        gradients = g * functional.layer_norm(a, layer.normalized_shape, eps=layer.eps)
        axes = tuple(range(1, g.dim() - len(layer.normalized_shape)))

    def summed(values: Tensor) -> Tensor:
        return values.sum(dim=axes) if axes else values

    return _if_trained(layer.weight, lambda: _materialised(layer.weight, summed(gradients))) + _if_trained(
        layer.bias, lambda: _materialised(layer.bias, summed(g))
    )


def _embedding(layer: nn.Module, a: Tensor, g: Tensor) -> list[ParameterGradients]:
    assert isinstance(layer, nn.Embedding)
    words, g = a.flatten(1), g.reshape(len(g), -1, g.shape[-1])
    if layer.padding_idx is not None:
        g = g * (words != layer.padding_idx)[..., None]
    alike = words[:, :, None] == words[:, None, :]
    squares = sum_of_products(alike.to(g.dtype), torch.bmm(g, g.transpose(1, 2)))

    def weighted(c: Tensor) -> Tensor:
        total = torch.zeros(layer.weight.shape, device=g.device)
        return total.index_add_(0, words.flatten(), (g * c[:, None, None]).flatten(0, 1))

    return _if_trained(layer.weight, lambda: ParameterGradients(layer.weight, squares, weighted))


def _if_trained(parameter: Tensor | None, part: Callable[[], ParameterGradients]) -> list[ParameterGradients]:
    """Return a list with ``part()`` if the parameter exists and is trainable, otherwise an empty list."""
    return [part()] if parameter is not None and parameter.requires_grad else []


def _materialised(parameter: Tensor | None, gradients: Tensor) -> ParameterGradients:
    """Wrap the per-example gradients (B, ...) of ``parameter``."""
    assert parameter is not None
    flat = gradients.flatten(1)
    return ParameterGradients(parameter, flat.square().sum(dim=1), lambda c: (c @ flat).view(parameter.shape))


def _gram(a: Tensor, g: Tensor) -> Tensor:
    """Return squared norms (B,) of ``sum_t g[:, t] a[:, t]^T`` by Gram matrices, for a (B, T, D) and g (B, T, O)."""
    return sum_of_products(torch.bmm(a, a.transpose(1, 2)), torch.bmm(g, g.transpose(1, 2)))


def product_of_squares(a: Tensor, g: Tensor) -> Tensor:
    """Return upper bounds on the squared norms (...) of the outer products of a (..., D) and g (..., O).

    The bounds exceed the true norms only where squares could underflow to 0.
    """
    return (a.square().sum(dim=-1) + UNDERFLOW) * (g.square().sum(dim=-1) + UNDERFLOW)


def sum_of_products(a: Tensor, g: Tensor) -> Tensor:
    """Return squared gradient norms (...), the sums of ``a * g`` for Gram matrices a and g (..., T, T).

    If the products nearly cancel, return the sum of absolute products, an upper bound. Rounding could otherwise hide a
    large gradient from clipping.
    """
    products, sizes = a * g, (a.abs() + UNDERFLOW) * (g.abs() + UNDERFLOW)
    lost, size = (sizes - products.abs()).sum(dim=(-2, -1)), sizes.sum(dim=(-2, -1))
    sums = products.sum(dim=(-2, -1)) + lost
    return torch.where(sums < 1e-4 * size, size, sums)
