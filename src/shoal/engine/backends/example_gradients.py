"""The gradient of each example's loss at one model."""

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from shoal.models.model import Model

NUMBERS = 2**24
"""Numbers in the gradients of one batch (64 MB)."""


def batch_of_gradients(model: Model) -> int:
    """How many examples' gradients are computed at once: at most 256, and `NUMBERS` in all."""
    return max(1, min(256, NUMBERS // model.layout.size))


def example_gradients(model: Model, network: nn.Module, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradients (B, p) float32 of the losses of B examples by the p trainable parameters, in the layout's order.

    Args:
        model: its loss and layout.
        network: its structure, in evaluation mode: dropout and batch norm are what they are for an attacker who has the
            model and no batch. No other thread may use it.
        row: (P,) float32, where.
        x: inputs (B, ...).
        y: labels (B,).
    """
    layout, views = model.layout, model.layout.views(row)
    trained = [slot for slot in layout.slots if slot.start < layout.trainable]
    weights = {slot.name: views.pop(slot.name) for slot in trained}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(network, weights | views, (x[None],)).float()
        return model.loss(outputs, y[None]).sum()

    try:
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    except RuntimeError:
        # Layers with a backward pass of their own, such as recurrent ones, know nothing of torch.func.
        leaves = {name: each.detach().requires_grad_() for name, each in weights.items()}
        each = [
            torch.autograd.grad(loss(leaves, *one), list(leaves.values()), materialize_grads=True)
            for one in zip(x, y, strict=True)
        ]
        gradients = dict(zip(leaves, map(torch.stack, zip(*each, strict=True)), strict=True))
    flat = row.new_empty(len(x), layout.size)
    for slot in trained:
        slot.view(flat).copy_(gradients[slot.name])
    return flat[:, : layout.trainable]
