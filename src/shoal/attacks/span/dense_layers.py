"""The dense layers of a network: their places in the flat vector, and what comes into them.

Others are not attacked. The rows of a convolution's gradient are combinations of patches: a kernel of 3 x 3 on c
channels has 9 c inputs and hundreds of patches an image, so its span is all of its inputs as soon as it has rows
enough. A recurrent layer's are combinations of words' embeddings, which many texts share; and an embedding's own
gradient names the words of a batch, and no text.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.core.errors import quoted, require
from shoal.models.model import Model

_BATCH = 256


@dataclass(frozen=True)
class DenseLayer:
    """A layer `torch.nn.Linear` whose weight is trained.

    Args:
        name: of the module in the network.
        outputs, inputs: (h, d), the weight's shape.
        bias: whether its bias is trained too; then it counts as one more input, which is always 1.
    """

    name: str
    outputs: int
    inputs: int
    bias: bool

    @property
    def width(self) -> int:
        """The columns of `matrices`: d, with a bias d + 1."""
        return self.inputs + self.bias

    def matrices(self, model: Model, vectors: Tensor) -> Tensor:
        """The layer's weight, with the bias as last column: vectors (n, P) -> (n, h, d or d + 1)."""
        prefix = f"{self.name}." if self.name else ""
        slots = {slot.name: slot for slot in model.layout.slots}
        weight = slots[prefix + "weight"].view(vectors)
        return torch.cat([weight, slots[prefix + "bias"].view(vectors)[..., None]], dim=-1) if self.bias else weight


def dense_layers(model: Model, only: str | None = None) -> list[DenseLayer]:
    """The dense layers of a model's network, in its order.

    Args:
        model: whose network is looked at.
        only: the name of the one layer that is wanted.

    Raises:
        InputError: the network has no dense layer that is trained, or none of this name.

    Example:
        >>> import shoal
        >>> from shoal.attacks.span.dense_layers import dense_layers
        >>> model = shoal.create_model("mlp", shoal.VectorShape(inputs=4, classes=3), hidden=8)
        >>> [(layer.name, layer.outputs, layer.inputs) for layer in dense_layers(model)]
        [('hidden', 8, 4), ('output', 3, 8)]
    """
    trained = set(model.layout.trainable_names)
    layers = []
    for name, module in model.network().named_modules():
        prefix = f"{name}." if name else ""
        if type(module) is nn.Linear and prefix + "weight" in trained:
            shape = (module.out_features, module.in_features)
            layers.append(DenseLayer(name, *shape, bias=prefix + "bias" in trained))
    require(bool(layers), "the span attack needs a dense layer (torch.nn.Linear) that is trained; the network has none")
    named = [layer for layer in layers if only in (None, layer.name)]
    names = quoted([layer.name for layer in layers])
    require(bool(named), f"'layer' must be one of the network's dense layers, {names}; got '{only}'")
    return named


def layer_inputs(
    model: Model, row: Tensor, layer: DenseLayer, x: Tensor, dtype: torch.dtype, y: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What comes into a layer, in evaluation mode, of the model at ``row`` (P,) for x (M, ...), and its errors.

    Args:
        model: of the network.
        row: its parameters.
        layer: of the network.
        x: inputs of the network.
        dtype: in which it computes.
        y: labels (M,) or targets, for errors.

    Returns:
        Inputs (M, d) float32, with a bias one more column, of 1; and the errors (M, h), each example's gradient of the
        loss by the layer's outputs; (M, 0) without ``y``. Of a layer that sees L vectors of each example, (M, L, d) and
        (M, L, h).
    """
    network = model.network()
    network.load_state_dict(model.layout.views(row.cpu()), strict=False)
    network.eval().requires_grad_(requires_grad=False).to(dtype)
    seen, outputs = list[Tensor](), list[Tensor]()

    def watched(_: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> Tensor:
        seen.append(given[0].detach().float())
        outputs[:] = [made.detach().requires_grad_()]
        return outputs[0]

    network.get_submodule(layer.name).register_forward_hook(watched)
    errors = [torch.empty(len(x), 0)] if y is None else []
    for begin in range(0, len(x), _BATCH):
        part = x[begin : begin + _BATCH].cpu()
        result = network(part.to(dtype) if part.is_floating_point() else part)
        if y is not None:
            loss = model.loss(result.float(), y[begin : begin + _BATCH].cpu()).sum()
            errors += [gradient.float() for gradient in torch.autograd.grad(loss, outputs)]
    inputs, found = torch.cat(seen), torch.cat(errors)
    if inputs.dim() > 2:
        inputs, found = inputs.flatten(1, -2), found.flatten(1, -2) if found.dim() > 2 else found
    return torch.cat([inputs, inputs.new_ones(*inputs.shape[:-1], 1)], dim=-1) if layer.bias else inputs, found
