"""A network's dense layers, their slices of the parameter vector, and their inputs.

A convolution with non-overlapping patches is a dense layer on each patch. Other layers are not attacked: a 3 x 3
convolution on c channels has 9 c inputs but hundreds of patches per image, so its updates span the whole space.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.core.errors import quote, require
from shoal.engine import Engine
from shoal.engine.backends.gradient_clipping import clip_factors
from shoal.models.model import Model

_BATCH = 256


@dataclass(frozen=True)
class DenseLayer:
    """A trained `torch.nn.Linear`, or a trained `torch.nn.Conv2d` with non-overlapping patches.

    Args:
        name: the module's name in the network.
        outputs, inputs: the weight's shape, (h, d). For a convolution, d is the number of elements in a patch.
        bias: whether the layer's bias is trained; a trained bias counts as one more input with the value 1.
    """

    name: str
    outputs: int
    inputs: int
    bias: bool

    @property
    def width(self) -> int:
        """The number of columns of `matrices`: d, or d + 1 with a bias."""
        return self.inputs + self.bias

    def matrices(self, model: Model, vectors: Tensor) -> Tensor:
        """Extract the layer's weights from parameter vectors (n, P), (n, h, d), or (n, h, d + 1) with a bias column."""
        prefix = f"{self.name}." if self.name else ""
        slots = {slot.name: slot for slot in model.layout.slots}
        weight = slots[prefix + "weight"].view(vectors).flatten(vectors.dim())
        return torch.cat([weight, slots[prefix + "bias"].view(vectors)[..., None]], dim=-1) if self.bias else weight


def dense_layers(model: Model, only: str | None = None) -> list[DenseLayer]:
    """List a network's trained dense layers in order, or only the layer with the name ``only``.

    Raises:
        InputError: the network has no trained dense layer, or no dense layer has the name ``only``.

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
    require(
        bool(layers), "the network has no trained dense layer (torch.nn.Linear); the span attack needs at least one"
    )
    named = [layer for layer in layers if only in (None, layer.name)]
    names = quote([layer.name for layer in layers])
    require(bool(named), f"'layer' must be a dense layer of the network (got '{only}'); the dense layers are {names}")
    return named


def _patch(module: nn.Module) -> tuple[int, ...] | None:
    """Return a convolution's patch size if patches do not overlap and are not padded, otherwise None."""
    if type(module) is not nn.Conv2d or module.stride != module.kernel_size or module.groups != 1:
        return None
    if module.kernel_size == (1, 1):
        # An image has more pixels than channels, so the span is the whole space.
        return None
    return module.kernel_size if module.padding in (0, (0, 0)) and module.dilation == (1, 1) else None


def layer_inputs(
    model: Model, row: Tensor, layer: DenseLayer, x: Tensor, dtype: torch.dtype, y: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `layer_factors` of one layer."""
    return layer_factors(model, row, [layer], x, dtype, y)[0]


def layer_factors(
    model: Model, row: Tensor, layers: Sequence[DenseLayer], x: Tensor, dtype: torch.dtype, y: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Compute the inputs and errors of each layer in evaluation mode, for the model with parameters ``row`` (P,).

    The error of a layer is the gradient of the loss with respect to the layer's outputs. An example's gradient of the
    layer's weight is ``error input'``. The examples have inputs x (M, ...) and labels or targets y (M,).

    Returns:
        Inputs (M, d) float32 for each layer, with a column of 1 for a bias, and errors (M, h), or (M, 0) without ``y``.
        For a layer with L vectors or patches per example the shapes are (M, L, d) and (M, L, h).
    """
    network = model.structure()
    network.load_state_dict(model.layout.views(row.cpu()), strict=False)
    network.eval().requires_grad_(requires_grad=False).to(dtype)
    outputs, inputs, errors = dict[int, Tensor](), [list[Tensor]() for _ in layers], [list[Tensor]() for _ in layers]
    patches = [_patch(network.get_submodule(layer.name)) for layer in layers]

    def watch(i: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            whole, patch = arguments[0].detach().float(), patches[i]
            inputs[i].append(whole if patch is None else nn.functional.unfold(whole, patch, stride=patch).mT)
            outputs[i] = output if output.requires_grad else output.detach().requires_grad_()
            return outputs[i]

        return hook

    for i, layer in enumerate(layers):
        network.get_submodule(layer.name).register_forward_hook(watch(i))
    for begin in range(0, len(x), _BATCH):
        part = x[begin : begin + _BATCH].cpu()
        result = network(part.to(dtype) if part.is_floating_point() else part)
        if y is not None:
            loss = model.loss(result.float(), y[begin : begin + _BATCH].cpu()).sum()
            gradients = torch.autograd.grad(loss, [outputs[i] for i in range(len(layers))])
            for parts, gradient, patch in zip(errors, gradients, patches, strict=True):
                parts.append(gradient.float() if patch is None else gradient.float().flatten(2).mT)
    factors = list[tuple[Tensor, Tensor]]()
    for layer, input_parts, error_parts in zip(layers, inputs, errors, strict=True):
        whole, error = torch.cat(input_parts), torch.cat(error_parts) if error_parts else torch.empty(len(x), 0)
        if whole.dim() > 2:
            whole, error = whole.flatten(1, -2), error.flatten(1, -2) if error.dim() > 2 else error
        ones = whole.new_ones(*whole.shape[:-1], 1)
        factors.append((torch.cat([whole, ones], dim=-1) if layer.bias else whole, error))
    return factors


def clip_layer_factors(
    engine: Engine, row: Tensor, layers: Sequence[DenseLayer], x: Tensor, y: Tensor, dtype: torch.dtype, bound: float
) -> list[tuple[Tensor, Tensor]]:
    """Compute `layer_factors`, with each example's errors scaled so that its gradient norm is at most ``bound``."""
    model, every = engine.model, layers if bound == math.inf else dense_layers(engine.model)
    factors = layer_factors(model, row, every, x, dtype, y)
    if bound == math.inf:
        return factors
    if sum(layer.outputs * layer.width for layer in every) == model.layout.trainable:
        squares = torch.stack([_squares(*pair) for pair in factors]).sum(dim=0)
    else:
        parts = engine.example_gradients_into(lambda gradients: gradients.square().sum(dim=1).cpu(), row, x, y)
        squares = torch.cat([*parts])
    scale, chosen = clip_factors(squares, bound), (factors[every.index(layer)] for layer in layers)
    return [(inputs, scale_rows(errors, scale)) for inputs, errors in chosen]


def scale_rows(values: Tensor, factor: Tensor) -> Tensor:
    """Multiply values (m, ...) by one factor per row (m,)."""
    return values * factor.view(-1, *[1] * (values.dim() - 1))


def _squares(inputs: Tensor, errors: Tensor) -> Tensor:
    """Return the squared length (m,) of each gradient ``error input'``."""
    if inputs.dim() == 2:
        return inputs.square().sum(dim=1) * errors.square().sum(dim=1)
    return ((inputs @ inputs.mT) * (errors @ errors.mT)).sum(dim=(1, 2))
