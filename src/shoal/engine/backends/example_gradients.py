"""The gradient of each example's loss at one model."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from shoal.models.model import Model

_ELEMENTS = 2**24
"""Elements in the gradients of one batch (64 MB)."""


def batch_of_gradients(model: Model) -> int:
    """The number of examples whose gradients are computed at once: at most 256, within 64 MB."""
    return max(1, min(256, _ELEMENTS // model.layout.size))


def example_gradients(model: Model, network: nn.Module, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradients (B, p) float32 of the losses of B examples by the p trainable parameters, in the layout's order.

    Args:
        model: its loss and layout.
        network: its structure, in evaluation mode, as for an attacker who has the model and no batch. No other thread
            may use it.
        row: (P,) float32, the model.
        x: inputs (B, ...).
        y: labels (B,).
    """
    layout, views = model.layout, model.frozen_on(row.device, torch.float32) | model.layout.views(row)
    weights = {name: views.pop(name) for name in layout.trainable_names}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(network, weights | views, (x[None],)).float()
        return model.loss(outputs, y[None]).sum()

    try:
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    except RuntimeError:
        # Layers with a backward pass of their own, such as recurrent ones, do not support torch.func.
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
        gradients = gradients_one_by_one((loss(leaves, *one) for one in zip(x, y, strict=True)), leaves)
    flat = row.new_empty(len(x), layout.size)
    for name, view in layout.views(flat).items():
        if name in gradients:
            view.copy_(gradients[name])
    return flat[:, : layout.trainable]


def gradients_one_by_one(losses: Iterable[Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients (B, ...) of B losses by each parameter, one loss after another."""
    gradients = [torch.autograd.grad(loss, [*parameters.values()], materialize_grads=True) for loss in losses]
    return dict(zip(parameters, map(torch.stack, zip(*gradients, strict=True)), strict=True))
