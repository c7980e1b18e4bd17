"""The layers of a network that the rule of exposure is of, by one pass of a few examples through it."""

from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from shoal.audit.preflight.exposure_rule import LayerShape
from shoal.models import Model, cross_entropy

MAX_INPUTS = 4096
"""Inputs up to which the rank of what a layer reads is computed."""

_RANK_TOLERANCE = 1e-6
"""Singular values below this part of the largest are of the rounding of float32."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def layer_shapes(model: Model, x: Tensor, *, ranks: bool = True) -> tuple[LayerShape, ...]:
    """The dense layers, convolutions and embeddings with trained weights, in the order in which examples meet them.

    A convolution is a dense layer on patches, an embedding one on words as unit vectors. Other layers are not judged.

    Args:
        model: whose network is built, with random weights.
        x: examples (B, ...); the rank of what a dense layer reads is at most B.
        ranks: whether a dense layer's inputs are as many as their rank over ``x``, where that is lower; otherwise all
            of them.

    Example:
        >>> import torch, shoal
        >>> from shoal.audit.preflight import layer_shapes
        >>> model = shoal.create_model("mlp", shoal.VectorShape(inputs=6, classes=3), hidden=4)
        >>> for layer in layer_shapes(model, torch.randn(20, 6)):
        ...     print(layer.name, layer.inputs, layer.outputs, layer.reads_data)
        ...
        hidden 6 4 True
        output 4 2 False
    """
    network, shapes = model.structure().eval(), []
    hooks = [
        module.register_forward_hook(partial(_note, shapes, name, len(x), ranks))
        for name, module in network.named_modules()
        if isinstance(module, (nn.Linear, nn.Embedding, *_CONVOLUTIONS)) and module.weight.requires_grad
    ]
    with torch.enable_grad():
        outputs = network(x.detach())
    for hook in hooks:
        hook.remove()
    layers = [layer for layer, _ in shapes]
    # The errors of softmax add up to 0 over the classes.
    if shapes and model.loss is cross_entropy and shapes[-1][1] == outputs.shape[-1] > 1:
        last = layers[-1]
        layers[-1] = LayerShape(last.name, last.inputs, last.outputs - 1, last.positions, last.reads_data)
    return tuple({layer.name: layer for layer in layers}.values())


def _note(
    shapes: list[tuple[LayerShape, int]],
    name: str,
    count: int,
    ranks: bool,
    module: nn.Module,
    given: tuple[Any, ...],
    out: Tensor,
) -> None:
    """Add the shape of a layer that is called on ``count`` examples, and the number of its outputs."""
    read, *_ = given
    reads_data = not read.requires_grad
    if isinstance(module, nn.Linear):
        inputs, outputs, positions = module.in_features, module.out_features, read.numel() // module.in_features
        if ranks and positions == count and 1 < inputs <= MAX_INPUTS:
            inputs = _rank(read.detach().reshape(count, inputs))
    elif isinstance(module, nn.Embedding):
        inputs, outputs, positions = module.num_embeddings, module.embedding_dim, read.numel()
    else:
        weight, outputs = getattr(module, "weight"), getattr(module, "out_channels")  # noqa: B009
        inputs, positions = weight[0].numel(), out.numel() // outputs
    shapes.append((LayerShape(name, inputs, outputs, ceil(positions / count), reads_data), outputs))


def _rank(rows: Tensor) -> int:
    """The rank of rows (B, d) in float32, at least 1; d where B says nothing of it."""
    # Of the smaller of both products; its eigenvalues are squares.
    wide = rows.double()
    product = wide @ wide.T if len(rows) < rows.shape[1] else wide.T @ wide
    values = torch.linalg.eigvalsh(product)
    rank = int((values > _RANK_TOLERANCE**2 * values[-1]).sum())
    return rows.shape[1] if rank == len(rows) < rows.shape[1] else max(1, rank)
