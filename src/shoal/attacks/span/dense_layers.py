"""The dense layers of a network: their places in the flat vector, and what comes into them.

A convolution whose patches do not overlap is a dense layer on each patch, and a record's inputs are its patches. Others
are not attacked. The rows of a convolution's gradient are combinations of patches. A kernel of 3 x 3 on c channels has
9 c inputs and hundreds of patches an image, so its span is all of its inputs as soon as it has enough rows. A recurrent
layer's are combinations of words' embeddings, which many texts share; and an embedding's own gradient names the words
of a batch, and no text.
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
    names = quote([layer.name for layer in layers])
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
    """`layer_factors` of one layer."""
    return layer_factors(model, row, [layer], x, dtype, y)[0]


def layer_factors(
    model: Model, row: Tensor, layers: Sequence[DenseLayer], x: Tensor, dtype: torch.dtype, y: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """What comes into each layer, in evaluation mode, of the model at ``row`` (P,) for x (M, ...), and its errors for
    labels or targets y (M,): an example's gradient of the layer is ``error input'``.

    Returns:
        For each layer inputs (M, d) float32, with a bias one more column, of 1; and the errors (M, h), each example's
        gradient of the loss by the layer's outputs; (M, 0) without ``y``. A layer that sees L vectors or patches of
        each example has (M, L, d) and (M, L, h).
    """
    network = model.structure()
    network.load_state_dict(model.layout.views(row.cpu()), strict=False)
    network.eval().requires_grad_(requires_grad=False).to(dtype)
    outputs, inputs, errors = dict[int, Tensor](), [list[Tensor]() for _ in layers], [list[Tensor]() for _ in layers]
    patches = [_patch(network.get_submodule(layer.name)) for layer in layers]

    def watch(i: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def watched(_: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> Tensor:
            whole, patch = given[0].detach().float(), patches[i]
            inputs[i].append(whole if patch is None else nn.functional.unfold(whole, patch, stride=patch).mT)
            outputs[i] = made if made.requires_grad else made.detach().requires_grad_()
            return outputs[i]

        return watched

    for i, layer in enumerate(layers):
        network.get_submodule(layer.name).register_forward_hook(watch(i))
    for begin in range(0, len(x), _BATCH):
        part = x[begin : begin + _BATCH].cpu()
        result = network(part.to(dtype) if part.is_floating_point() else part)
        if y is not None:
            loss = model.loss(result.float(), y[begin : begin + _BATCH].cpu()).sum()
            gradients = torch.autograd.grad(loss, [outputs[i] for i in range(len(layers))])
            for of_layer, gradient, patch in zip(errors, gradients, patches, strict=True):
                of_layer.append(gradient.float() if patch is None else gradient.float().flatten(2).mT)
    factors = list[tuple[Tensor, Tensor]]()
    for layer, seen, found in zip(layers, inputs, errors, strict=True):
        whole, error = torch.cat(seen), torch.cat(found) if found else torch.empty(len(x), 0)
        if whole.dim() > 2:
            whole, error = whole.flatten(1, -2), error.flatten(1, -2) if error.dim() > 2 else error
        ones = whole.new_ones(*whole.shape[:-1], 1)
        factors.append((torch.cat([whole, ones], dim=-1) if layer.bias else whole, error))
    return factors


def clipped_factors(
    engine: Engine, row: Tensor, layer: DenseLayer, x: Tensor, y: Tensor, dtype: torch.dtype, bound: float
) -> tuple[Tensor, Tensor]:
    """`layer_factors` of one layer, with errors so scaled that each example's whole gradient has at most length
    ``bound``.
    """
    layers = [layer] if bound == math.inf else dense_layers(engine.model)
    return all_clipped_factors(engine, row, layers, x, y, dtype, bound)[layers.index(layer)]


def all_clipped_factors(
    engine: Engine, row: Tensor, layers: Sequence[DenseLayer], x: Tensor, y: Tensor, dtype: torch.dtype, bound: float
) -> list[tuple[Tensor, Tensor]]:
    """`layer_factors` of all dense layers, scaled as of `clipped_factors`."""
    model = engine.model
    factors = layer_factors(model, row, layers, x, dtype, y)
    if bound == math.inf:
        return factors
    if sum(layer.outputs * layer.width for layer in layers) == model.layout.trainable:
        squares = torch.stack([_squares(*of_layer) for of_layer in factors]).sum(dim=0)
    else:
        parts = engine.example_gradients_into(lambda gradients: gradients.square().sum(dim=1).cpu(), row, x, y)
        squares = torch.cat([*parts])
    return [(inputs, scaled_rows(errors, clip_factors(squares, bound))) for inputs, errors in factors]


def scaled_rows(values: Tensor, factor: Tensor) -> Tensor:
    """Values (m, ...) times one factor each (m,)."""
    return values * factor.view(-1, *[1] * (values.dim() - 1))


def _squares(inputs: Tensor, errors: Tensor) -> Tensor:
    """The squared length (m,) of each gradient ``error input'``."""
    if inputs.dim() == 2:
        return inputs.square().sum(dim=1) * errors.square().sum(dim=1)
    return ((inputs @ inputs.mT) * (errors @ errors.mT)).sum(dim=(1, 2))
