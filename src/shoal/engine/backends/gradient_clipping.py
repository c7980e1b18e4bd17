"""Sums of clipped per-example gradients for DP-SGD.

The fast method (`ghost_norms`) uses only the inputs and output gradients of each layer. Networks with unsupported
layers or shared parameters need the gradient of every single example.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from shoal.core.errors import require
from shoal.engine.backends.ghost_norms import ParameterGradients, formula
from shoal.engine.local_sgd import Forward
from shoal.models.layers import mixes_examples, seeded_dropouts
from shoal.models.model import Loss, Model


def require_per_example_gradients(network: nn.Module) -> None:
    """Raise `InputError` if DP-SGD cannot protect a network's batch norm or running statistics.

    Example:
        >>> from torch import nn
        >>> from shoal.engine import require_per_example_gradients
        >>> require_per_example_gradients(nn.BatchNorm1d(4))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        shoal.core.errors.InputError: layer '' (BatchNorm1d) mixes the examples of a batch, so DP-SGD ...
    """
    for name, module in network.named_modules():
        require(
            not mixes_examples(module),
            f"layer '{name}' ({type(module).__name__}) mixes the examples of a batch, so DP-SGD cannot clip each "
            "example's gradient; use group norm (norm = 'group' for the VGGs)",
        )
        require(
            not isinstance(module, nn.modules.instancenorm._InstanceNorm) or not module.track_running_stats,
            f"layer '{name}' ({type(module).__name__}) has running statistics, which DP-SGD does not protect; set "
            "track_running_stats=False",
        )


class PerExampleClipper:
    """A clipper of one network's per-example gradients, used by one thread.

    Args:
        network: the network, which callers set to training mode.
        loss: the per-example loss.
        dtype: the number format of the network's computations; sums are float32.

    Raises:
        InputError: the network has batch norm, or instance norm with running statistics.
    """

    def __init__(self, network: nn.Module, loss: Loss, dtype: torch.dtype) -> None:
        require_per_example_gradients(network)
        self._network, self._loss, self._dtype = network, loss, dtype
        self._named = {name: tensor for name, tensor in network.named_parameters() if tensor.requires_grad}
        self._layers = _known(network, self._named.values())
        self._checked = False
        self._dropouts = seeded_dropouts(network)
        self._batched = not self._dropouts

    def __call__(
        self, forward: Forward, x: Tensor, y: Tensor, bound: float, multiplicity: int = 1
    ) -> dict[str, Tensor]:
        """Return the float32 sum over a batch of ``gradient * min(1, bound / norm of gradient)``, by parameter.

        A gradient whose norm is not finite counts as zero, so one example cannot make the sum infinite or NaN.

        Args:
            forward: a function from inputs to float32 outputs (B, C), which runs the network.
            x: inputs (B * M, ...) of at least one example, with the M copies of an example in consecutive rows.
            y: labels (B * M,).
            bound: the largest L2 norm of each example's gradient, possibly infinite.
            multiplicity: the number of copies M per example, whose mean gradient is clipped once.
        """
        found = None
        if multiplicity > 1:
            return self._by_example(forward, x, y, bound, multiplicity)
        if self._layers is not None:
            rewind = self._rewind()
            found = self._parts(self._layers, forward, x, y)
            if found is None:
                # Masks must not depend on the thread that fails first.
                rewind()
        if found is None:
            self._layers = None
            return self._by_example(forward, x, y, bound)
        parts, squares = found
        factors = clip_factors(squares, bound)
        return {name: part.weighted(factors) for name, part in zip(self._named, parts, strict=True)}

    def _rewind(self) -> Callable[[], None]:
        """Return a function that restores the present state of the generator of dropout masks."""
        generators = [layer.generator for layer in self._dropouts[:1] if layer.generator is not None]
        states = [generator.get_state() for generator in generators]

        def rewind() -> None:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)

        return rewind

    def _parts(
        self, layers: Sequence[nn.Module], forward: Forward, x: Tensor, y: Tensor
    ) -> tuple[list[ParameterGradients], Tensor] | None:
        """Return gradients by parameter and squared norms (B,) per example; ``None`` if the formulas do not apply."""
        seen: list[tuple[nn.Module, Tensor, Tensor]] = []

        def keep(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
            seen.append((layer, inputs[0], outputs))

        hooks = [layer.register_forward_hook(keep) for layer in layers]
        try:
            losses = self._loss(forward(x), y)
        finally:
            for hook in hooks:
                hook.remove()
        once = len(seen) == len(layers) and {id(layer) for layer, _, _ in seen} == set(map(id, layers))
        if not once or any(len(a) != len(x) or len(z) != len(x) for _, a, z in seen):
            return None
        gradients = torch.autograd.grad(
            losses.sum(), [z for _, _, z in seen], retain_graph=not self._checked, materialize_grads=True
        )
        known = [(layer, _plain(a), _plain(g)) for (layer, a, _), g in zip(seen, gradients, strict=True)]
        parts, squares = self._by_formulas(known)
        finite = squares.isfinite()
        if not bool(finite.all()):
            if not self._checked and bool(finite.any()):
                rewind = self._rewind()
                if self._parts(layers, forward, x[finite], y[finite]) is None:
                    return None
                rewind()
            # A factor of 0 would not remove these examples, because 0 times infinity is NaN.
            return self._by_formulas([(layer, _masked(a, finite), _masked(g, finite)) for layer, a, g in known])
        if not self._checked:
            error, size = self._error(parts, losses)
            if error > (0.05 if self._dtype != torch.float32 else 1e-3) * size:
                return None
            self._checked = size > 0
        return parts, squares

    def _by_formulas(
        self, known: Sequence[tuple[nn.Module, Tensor, Tensor]]
    ) -> tuple[list[ParameterGradients], Tensor]:
        """Return the result of `_parts` for layers with inputs (B, ...) and output gradients (B, ...)."""
        by_parameter: dict[int, ParameterGradients] = {}
        with torch.no_grad():
            for layer, a, g in known:
                rule = formula(layer)
                assert rule is not None
                by_parameter |= {id(part.parameter): part for part in rule(layer, a, g)}
        parts = [by_parameter[id(parameter)] for parameter in self._named.values()]
        return parts, torch.stack([part.squares for part in parts]).sum(dim=0)

    def _error(self, parts: list[ParameterGradients], losses: Tensor) -> tuple[float, float]:
        """Return the error of a weighted sum of ``parts`` against autograd, and the norm of the true gradient.

        Hooks cannot detect a ``forward`` that mixes examples, or that uses parameters outside their layer.
        """
        weights = torch.linspace(0.5, 1.5, len(losses), device=losses.device)
        true = torch.autograd.grad((losses * weights).sum(), list(self._named.values()), materialize_grads=True)
        sums = [part.weighted(weights) for part in parts]
        size = max(float(gradient.float().norm()) for gradient in true)
        error = max(float((one - gradient.float()).norm()) for one, gradient in zip(sums, true, strict=True))
        return error, size

    def _by_example(
        self, forward: Forward, x: Tensor, y: Tensor, bound: float, multiplicity: int = 1
    ) -> dict[str, Tensor]:
        """Compute `__call__` from each example's gradient, by vmap or in a loop."""
        copies = x.split(multiplicity), y.split(multiplicity)
        gradients = self._by_vmap(*map(torch.stack, copies))
        if gradients is None:
            losses = (self._loss(forward(one), label).mean() for one, label in zip(*copies, strict=True))
            gradients = gradients_one_by_one(losses, self._named)
        flat = {name: gradient.float().reshape(len(gradient), -1) for name, gradient in gradients.items()}
        squares = torch.stack([rows.square().sum(dim=1) for rows in flat.values()]).sum(dim=0)
        finite = squares.isfinite()
        if not bool(finite.all()):
            flat, squares = {name: _masked(rows, finite) for name, rows in flat.items()}, _masked(squares, finite)
        factors = clip_factors(squares, bound)
        return {name: (factors @ rows).view(self._named[name].shape) for name, rows in flat.items()}

    def _by_vmap(self, x: Tensor, y: Tensor) -> dict[str, Tensor] | None:
        """Return each example's mean gradient over its copies, (B, ...), by parameter; ``None`` if vmap fails.

        Args:
            x: inputs (B, M, ...).
            y: labels (B, M).
        """
        if not self._batched:
            return None

        def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self._loss(functional_call(self._network, weights, (x,)).float(), y).mean()

        # Recurrent layers need weights per example.
        weights = {name: tensor.detach().expand(len(x), *tensor.shape) for name, tensor in self._named.items()}
        try:
            return vmap(grad(loss))(weights, x, y)
        except RuntimeError:
            self._batched = False
            return None


def _known(network: nn.Module, trained: Collection[nn.Parameter]) -> list[nn.Module] | None:
    """Return the layers with trained parameters; ``None`` if a layer has no formula or shares a parameter."""
    layers = [
        module
        for module in network.modules()
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    ]
    parameters = [tensor for layer in layers for tensor in layer.parameters(recurse=False) if tensor.requires_grad]
    is_unshared = len(parameters) == len(trained)
    return layers if is_unshared and all(formula(layer) is not None for layer in layers) else None


def clip_factors(squares: Tensor, bound: float) -> Tensor:
    """Return the factors (...) that scale gradients with squared norms ``squares`` (...) to at most ``bound``."""
    return (bound / squares.sqrt().clamp(min=1e-30)).clamp(max=1)


def _masked(rows: Tensor, kept: Tensor) -> Tensor:
    """Return ``rows`` (B, ...) with zeros where ``kept`` (B,) is false."""
    return rows.where(kept.view(-1, *[1] * (rows.dim() - 1)), 0)


def _plain(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in PyTorch's dense layout, with floats in float32."""
    dense = tensor.detach().to_dense() if tensor.is_mkldnn else tensor.detach()
    return dense.float() if dense.is_floating_point() else dense


_ELEMENTS = 2**24
"""The number of gradient elements per batch (64 MB)."""


def batch_of_gradients(model: Model) -> int:
    """Return the number of examples per batch of gradients: at most 256, and at most 64 MB of gradients."""
    return max(1, min(256, _ELEMENTS // model.layout.size))


def example_gradients(model: Model, network: nn.Module, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradients (B, p) float32 of B losses with respect to p trainable parameters, in the layout's order.

    Args:
        model: the model, with its loss and layout.
        network: the model's structure, in evaluation mode, used by no other thread.
        row: the model's parameters, (P,) float32.
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
        # Layers with their own backward pass, such as recurrent layers, do not support torch.func.
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
        gradients = gradients_one_by_one((loss(leaves, *one) for one in zip(x, y, strict=True)), leaves)
    flat = row.new_empty(len(x), layout.size)
    for name, view in layout.views(flat).items():
        if name in gradients:
            view.copy_(gradients[name])
    return flat[:, : layout.trainable]


def gradients_one_by_one(losses: Iterable[Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients (B, ...) of B losses with respect to each parameter, computed loss by loss."""
    gradients = [torch.autograd.grad(loss, [*parameters.values()], materialize_grads=True) for loss in losses]
    return dict(zip(parameters, map(torch.stack, zip(*gradients, strict=True)), strict=True))
