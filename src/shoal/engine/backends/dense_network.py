"""Closed-form batched gradients of linear models and of networks with one hidden layer.

For inputs X (B, I), the model computes Z = XW' + b, H = relu(Z) and O = HV' + c, with loss gradient E at O. The output
layer's gradients are E'H (weight) and the column sums of E (bias). The hidden layer's gradients are D'X (weight) and
the column sums of D (bias), with D = EV where H > 0 and D = 0 elsewhere.

Training on full batches can avoid products with the first layer's weight. After steps on the same X, that weight is
``W0 + A'X``, with A (B, H) the weighted sum of D over all steps. The first layer's outputs are ``X W0' + (X X') A``.
With the Gram matrix X X', a step costs B*B*H multiplications instead of 2*B*I*H.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.core.layout import Layout, Slot
from shoal.engine.backends.ghost_norms import product_of_squares, sum_of_products
from shoal.engine.backends.gradient_clipping import clip_factors
from shoal.engine.local_sgd import GradientPrivacy, LocalSGD
from shoal.models.model import Loss, Model, cross_entropy, squared_error
from shoal.models.networks import MLP, Logistic

_Tensors = dict[str, Tensor]

_LARGE = 2**14
"""The number of elements from which ``baddbmm_`` updates a weight faster than two batched operations."""

_PASS = 6
"""The time to read or write one element of a weight, in multiplications."""

_Products = list[tuple[Tensor, Tensor]]
"""The inputs a (n, B, I) and output gradients g (n, B, O) of each layer; the weight's gradient is g'a."""


@dataclass(frozen=True, eq=False)
class DenseNetwork:
    """The batched float32 gradients of a Linear or Linear-ReLU-Linear model on flattened inputs.

    Args:
        layers: the names of each layer's weight and bias; ``None`` for a layer without a bias.
        loss: `cross_entropy` or `squared_error`.
        layout: the model's layout.
    """

    layers: tuple[tuple[str, str | None], ...]
    loss: Loss
    layout: Layout

    def gradients(self, weights: _Tensors, rest: _Tensors, x: Tensor, y: Tensor, share: Tensor) -> _Tensors:
        """Return the gradients (n, ...) with respect to the tensors in ``weights``, like `vmap_gradients`."""
        gradients: _Tensors = {}
        products = self.products(weights | rest, flat(x), y, share)
        for (weight, bias), (a, g) in zip(self.layers, products, strict=True):
            if weight in weights:
                gradients[weight] = cut(torch.bmm(g.transpose(1, 2), a), weights[weight])
            if bias in weights:
                gradients[bias] = cut(g.sum(dim=1), weights[bias])
        return gradients

    def step(
        self, weights: _Tensors, rest: _Tensors, x: Tensor, y: Tensor, share: Tensor, active: Tensor, local: LocalSGD
    ) -> None:
        """Take a plain step of SGD with weight decay in place; ``active`` is described in `LocalStep.step`."""
        products = self.products(weights | rest, flat(x), y, share)
        if local.weight_decay:
            shrink = 1 - local.learning_rate * local.weight_decay * active
            for view in weights.values():
                view.mul_(shrink.view(-1, *[1] * (view.dim() - 1)))
        self.add(weights, products, -local.learning_rate)

    def private_gradients(
        self,
        weights: _Tensors,
        rest: _Tensors,
        x: Tensor,
        y: Tensor,
        local: LocalSGD,
        expected: Tensor,
        noise: Sequence[torch.Generator | None],
    ) -> _Tensors:
        """Return sums of clipped gradients and noise with respect to ``weights``, divided by ``expected``.

        Args:
            weights: the trained tensors, (n, ...) each.
            rest: the tensors that are not trained.
            x: stored inputs (n, B * M, ...), with the M copies of an example in consecutive rows.
            y: labels (n, B * M); labels of padded rows are ignored.
            local: the local training, with the clipping bound, the noise and M.
            expected: the divisor of the owner's sum, repeated for each row, (n, B * M); 0 for padded rows.
            noise: one generator per owner; ``None`` for an owner that has finished its steps.
        """
        rule, copies = local.gradient_privacy, local.multiplicity
        assert isinstance(rule, GradientPrivacy)
        used = expected > 0
        products = self.products(weights | rest, flat(x), y, used / copies)
        squares = torch.zeros(len(x), x.shape[1] // copies, device=x.device)
        for (weight, bias), (a, g) in zip(self.layers, products, strict=True):
            squares += _squares(a, g, copies, weight=weight in weights, bias=bias in weights)
        finite = squares.isfinite()
        if not bool(finite.all()):
            # A factor of 0 would not remove these examples, because 0 times infinity is NaN.
            kept = finite.repeat_interleave(copies, dim=1)[..., None]
            products, squares = [(a.where(kept, 0), g.where(kept, 0)) for a, g in products], squares.where(finite, 0)
        # One factor clips and divides each gradient, which saves a pass over the sums.
        factors = clip_factors(squares, rule.max_grad_norm).repeat_interleave(copies, dim=1)
        factors = torch.where(used, factors / expected.clamp(min=1), 0)
        total = x.new_zeros(len(x), -(-self.layout.size // 4) * 4)[:, : self.layout.size]
        if rule.noise_multiplier:
            scale = rule.noise_multiplier * rule.max_grad_norm / expected.amax(dim=1)
            for i, generator in enumerate(noise):
                if generator is not None:
                    drawn = torch.randn(self.layout.trainable, generator=generator)
                    total[i, : self.layout.trainable] = drawn.to(total.device).mul_(scale[i])
        views = self.layout.views(total)
        gradients = {name: views[name] for name in weights}
        self.add(gradients, [(a, g * factors[..., None]) for a, g in products], 1.0)
        return gradients

    @property
    def first(self) -> Slot:
        """The slot of the first layer's weight (H, I)."""
        return next(slot for slot in self.layout.slots if slot.name == self.layers[0][0])

    def products(self, tensors: _Tensors, x: Tensor, y: Tensor, share: Tensor, z: Tensor | None = None) -> _Products:
        """Return the factors of the gradients of ``sum_b share[i, b] * loss_ib``; ``z`` is the first layer's output."""
        (first, bias), *later = self.layers
        outputs, inputs, weights = z, [x], [begin_at_fours(tensors[weight]) for weight, _ in later]
        if outputs is None:
            outputs = _linear(x, begin_at_fours(tensors[first]), tensors.get(bias or ""))
        for (_, bias), weight in zip(later, weights, strict=True):
            inputs.append(outputs.relu_())
            outputs = _linear(inputs[-1], weight, tensors.get(bias or ""))
        errors = [torch.zeros_like(outputs)]
        used = outputs.narrow(2, 0, tensors[self.layers[-1][0]].shape[1])
        if self.loss is cross_entropy:
            error = used.softmax(dim=2)
            error.scatter_add_(2, y[..., None], error.new_full((1, 1, 1), -1.0).expand(*y.shape, 1))
        else:
            error = (used - y.reshape(used.shape)).mul_(2 / used.shape[2])
        torch.mul(error, share[..., None], out=cut(errors[0], error))
        for weight, hidden in zip(reversed(weights), reversed(inputs[1:]), strict=True):
            back = torch.bmm(errors[0], weight)
            errors.insert(0, torch.ops.aten.threshold_backward(back, hidden, 0))
        return list(zip(inputs, errors, strict=True))

    def add(self, into: _Tensors, products: _Products, factor: float) -> None:
        """Add ``factor`` times the gradients to the tensors in ``into``."""
        for (weight, bias), (a, g) in zip(self.layers, products, strict=True):
            if weight in into:
                add_product(into[weight], g, a, factor)
            if bias in into:
                into[bias].add_(cut(g.sum(dim=1), into[bias]), alpha=factor)

    def cheaper_in_span(self, batch: int, steps: int) -> bool:
        """Return whether `train_in_span` is faster than plain steps on a full batch of ``batch`` examples."""
        outputs, inputs = self.first.shape
        in_span = 2 * inputs * outputs * batch + batch * batch * (inputs + outputs * steps)
        return in_span < steps * (2 * batch + 3 * _PASS) * inputs * outputs + 4 * _PASS * inputs * outputs

    def train_in_span(self, rows: Tensor, batch: tuple[Tensor, Tensor, Tensor], steps: int, local: LocalSGD) -> None:
        """Train rows (n, P) in place by plain steps on full batches.

        Args:
            batch: inputs (n, B, I), labels y (n, B) and each example's weight (n, B) in its owner's mean loss.
            steps: the number of steps per owner, at least 1.
        """
        (x, y, share), rate = batch, local.learning_rate
        (name, bias), views = self.layers[0], self.layout.views(rows)
        padded, others = begin_at_fours(x), {other: view for other, view in views.items() if other != name}
        z0 = torch.bmm(x, begin_at_fours(views[name]).transpose(1, 2))
        kernel = torch.bmm(x, padded.transpose(1, 2))
        moved, scale, shrink = z0.new_zeros(len(x), padded.shape[1], z0.shape[2]), 1.0, 1 - rate * local.weight_decay
        for _ in range(steps):
            z = _with_bias(torch.baddbmm(z0, kernel, moved, beta=scale), others.get(bias or ""))
            products = self.products(views, x, y, share, z)
            if local.weight_decay:
                scale *= shrink
                for view in (moved, *others.values()):
                    view.mul_(shrink)
            moved[:, : x.shape[1]].sub_(products[0][1], alpha=rate)
            self.add(others, products, -rate)
        add_product(views[name].mul_(scale), moved[:, : x.shape[1]], x, 1.0)


def dense_network(model: Model) -> DenseNetwork | None:
    """Return the closed-form gradients of ``model``; ``None`` if the model has no closed form.

    Closed forms exist for `MLP`, `Logistic`, `torch.nn.Linear`, and for a `torch.nn.Sequential` of an optional Flatten,
    Linear, and an optional pair of ReLU and Linear. The loss must be `cross_entropy` or `squared_error`, and all
    tensors must be trainable.
    """
    network = model.structure()
    modules = [network] if isinstance(network, nn.Linear) else [*network.children()]
    kinds = [type(module) for module in modules]
    if type(network) is MLP:
        kinds.insert(1, nn.ReLU)
    elif type(network) is nn.Sequential:
        flattens = kinds[:1] == [nn.Flatten] and (modules[0].start_dim, modules[0].end_dim) == (1, -1)
        kinds = kinds[flattens:]
    elif type(network) not in {Logistic, nn.Linear}:
        return None
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    if kinds not in ([nn.Linear], [nn.Linear, nn.ReLU, nn.Linear]) or hooked:
        return None
    names = [name for name, module in network.named_modules(remove_duplicate=False) if isinstance(module, nn.Linear)]
    linears = [network.get_submodule(name) for name in names]
    named = dict(network.named_parameters())
    layers = tuple(
        (f"{name}.weight".lstrip("."), f"{name}.bias".lstrip(".") if linear.bias is not None else None)
        for name, linear in zip(names, linears, strict=True)
    )
    unshared = {name for layer in layers for name in layer if name is not None} == set(model.layout.trainable_names)
    whole = len(named) == len(model.layout.slots) and model.layout.trainable == model.layout.size
    known = model.loss in (cross_entropy, squared_error)
    return DenseNetwork(layers, model.loss, model.layout) if unshared and whole and known else None


def row_class(examples: Tensor) -> Tensor:
    """Return padded batch sizes (n,) for batches with ``examples`` (n,) examples.

    Clients share a batched product only if their batches have equal padded sizes, because the last bits of a product
    may depend on its shape. Sizes up to 32 stay unchanged, and larger sizes grow by at most a sixteenth.

    >>> row_class(torch.tensor([1, 25, 33, 100, 129])).tolist()
    [1, 25, 34, 100, 136]
    """
    unit = torch.pow(2, ((examples - 1).clamp(min=1).double().log2().floor().long() - 4).clamp(min=0))
    return (examples + unit - 1) // unit * unit


def flat(stored: Tensor) -> Tensor:
    """Return stored inputs (n, B, ...) as (n, B, I), with images in the order channels, height, width."""
    flat = (stored.movedim(-1, 2) if stored.dim() == 5 else stored).flatten(2)
    return flat if flat.shape[2] % 4 == 0 else begin_at_fours(flat)[:, : flat.shape[1]]


def begin_at_fours(matrices: Tensor) -> Tensor:
    """Pad matrices (n, A, B) with zeros below and on the right until A and B are multiples of four.

    Without 16-byte alignment of each matrix, the last bits of a batched product depend on a matrix's index in the batch
    (measured with MKL 2024.2).
    """
    n, height, width = matrices.shape
    if _begins_at_fours(matrices):
        return matrices
    padded = matrices.new_zeros(n, -(-height // 4) * 4, -(-width // 4) * 4)
    cut(padded, matrices).copy_(matrices)
    return padded


def _begins_at_fours(matrices: Tensor) -> bool:
    """Return whether the sides, strides and offset of the matrices are multiples of four numbers."""
    numbers = *matrices.shape[1:], *matrices.stride()[:2], matrices.storage_offset()
    return all(number % 4 == 0 for number in numbers)


def cut(padded: Tensor, like: Tensor) -> Tensor:
    """Return ``padded`` with all axes except the first cut to the lengths of ``like``."""
    for axis in range(1, like.dim()):
        padded = padded.narrow(axis, 0, like.shape[axis])
    return padded


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _with_bias(torch.bmm(x, weight.transpose(1, 2)), bias)


def _with_bias(z: Tensor, bias: Tensor | None) -> Tensor:
    """Add ``bias`` (n, at most O) to ``z`` (n, B, O) in place, and return ``z``."""
    if bias is not None:
        z.narrow(2, 0, bias.shape[1]).add_(bias[:, None])
    return z


def add_product(weight: Tensor, g: Tensor, a: Tensor, factor: float) -> None:
    """Add ``factor * g'a`` to ``weight`` (n, O, I) in place."""
    if weight[0].numel() >= _LARGE and _begins_at_fours(weight):
        weight.baddbmm_(g.transpose(1, 2), a, alpha=factor)
    else:
        weight.add_(cut(torch.bmm(g.transpose(1, 2), a), weight), alpha=factor)


def _squares(a: Tensor, g: Tensor, copies: int, *, weight: bool, bias: bool) -> Tensor:
    """Return squared norms (n, B) of each example's gradient in a layer, summed over the example's ``copies``."""
    if copies == 1:
        of_weight, of_bias = product_of_squares(a, g), g.square().sum(dim=2)
    else:
        grams = [torch.matmul(rows, rows.transpose(2, 3)) for rows in (t.unflatten(1, (-1, copies)) for t in (a, g))]
        of_weight, of_bias = sum_of_products(*grams), sum_of_products(torch.ones_like(grams[1]), grams[1])
    return weight * of_weight + bias * of_bias
