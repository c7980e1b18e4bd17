"""The dense layers of a network: their places in the flat vector, and what comes into them.

A convolution whose patches do not overlap is a dense layer on each patch, and a record's inputs are its patches. Others
are not attacked. The rows of a convolution's gradient are combinations of patches. A kernel of 3 x 3 on c channels has
9 c inputs and hundreds of patches an image, so its span is all of its inputs as soon as it has enough rows. A recurrent
layer's are combinations of words' embeddings, which many texts share; and an embedding's own gradient names the words
of a batch, and no text.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.core.errors import quoted, require
from shoal.models.model import Model

_BATCH = 256


@dataclass(frozen=True)
class DenseLayer:
    """A layer `torch.nn.Linear`, or `torch.nn.Conv2d` on patches that do not overlap, whose weight is trained.

    Args:
        name: of the module in the network.
        outputs, inputs: (h, d), the weight's shape; of a convolution d is of all channels and places of a patch.
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
        weight = slots[prefix + "weight"].view(vectors).flatten(vectors.dim())
        return torch.cat([weight, slots[prefix + "bias"].view(vectors)[..., None]], dim=-1) if self.bias else weight


def dense_layers(model: Model, only: str | None = None) -> list[DenseLayer]:
    """The dense layers of a model's network, in its order; the one called ``only``, if that is given.

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
    for name, module in model.structure().named_modules():
        prefix = f"{name}." if name else ""
        if prefix + "weight" in trained and (type(module) is nn.Linear or _patch(module) is not None):
            weight = module.get_parameter("weight")
            layers.append(DenseLayer(name, len(weight), weight[0].numel(), bias=prefix + "bias" in trained))
    require(bool(layers), "the span attack needs a dense layer (torch.nn.Linear) that is trained; the network has none")
    named = [layer for layer in layers if only in (None, layer.name)]
    names = quoted([layer.name for layer in layers])
    require(bool(named), f"'layer' must be one of the network's dense layers, {names}; got '{only}'")
    return named


def _patch(module: nn.Module) -> tuple[int, ...] | None:
    """The size of the patches of a convolution on separate ones, none of which is filled up; None of another module."""
    if type(module) is not nn.Conv2d or module.stride != module.kernel_size or module.groups != 1:
        return None
    if module.kernel_size == (1, 1):
        # Of single pixels there are more than channels.
        return None
    return module.kernel_size if module.padding in (0, (0, 0)) and module.dilation == (1, 1) else None


def layer_inputs(
    model: Model, row: Tensor, layer: DenseLayer, x: Tensor, dtype: torch.dtype, y: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What comes into a layer, in evaluation mode, of the model at ``row`` (P,) for x (M, ...), and its errors for
    labels or targets y (M,).

    Returns:
        Inputs (M, d) float32, with a bias one more column, of 1; and the errors (M, h), each example's gradient of the
        loss by the layer's outputs; (M, 0) without ``y``. A layer that sees L vectors or patches of each example has
        (M, L, d) and (M, L, h).
    """
    network = model.structure()
    network.load_state_dict(model.layout.views(row.cpu()), strict=False)
    network.eval().requires_grad_(requires_grad=False).to(dtype)
    module, seen, outputs = network.get_submodule(layer.name), list[Tensor](), list[Tensor]()
    patch = _patch(module)

    def watched(_: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> Tensor:
        whole = given[0].detach().float()
        if patch is not None:
            whole = nn.functional.unfold(whole, patch, stride=patch).mT
        seen.append(whole)
        outputs[:] = [made.detach().requires_grad_()]
        return outputs[0]

    module.register_forward_hook(watched)
    errors = [torch.empty(len(x), 0)] if y is None else []
    for begin in range(0, len(x), _BATCH):
        part = x[begin : begin + _BATCH].cpu()
        result = network(part.to(dtype) if part.is_floating_point() else part)
        if y is not None:
            loss = model.loss(result.float(), y[begin : begin + _BATCH].cpu()).sum()
            gradient = torch.autograd.grad(loss, outputs)[0].float()
            errors.append(gradient if patch is None else gradient.flatten(2).mT)
    inputs, found = torch.cat(seen), torch.cat(errors)
    if inputs.dim() > 2:
        inputs, found = inputs.flatten(1, -2), found.flatten(1, -2) if found.dim() > 2 else found
    return torch.cat([inputs, inputs.new_ones(*inputs.shape[:-1], 1)], dim=-1) if layer.bias else inputs, found
