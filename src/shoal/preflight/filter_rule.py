"""The AUC of the matched filter, predicted from what examples add to the first move of a layer; nothing is trained.

`shoal.attacks.span.matched_filter` weighs the move ``D = sum_i g_i + noise`` of a dense layer, ``g = e a'``, by the
inverse covariance C of what is in it beside a record. In units of what one pass adds, n examples and noise of standard
deviation s in each number give

    C = p (H x A) / (tr H tr A) + s^2 I,   p = E |D|^2 - s^2 h d = n E |g|^2 + n (n - 1) |E g|^2.

A member's score then lies higher by ``u = (g' C^-1 g)^(1/2)``. Others' scores differ by the noise, afresh in each of r
rounds, and by the other examples, in all of them alike:

    v(r) = (n - 1)^2 Var[m(g)] + (n - 1) E Var[g_i' C^-1 g / u] + s^2 E |C^-1 g|^2 / (u^2 r)

with ``m(g)`` the mean of ``g_i' C^-1 g / u`` over other examples, so that

    d' = u / v(r)^(1/2),   AUC = E Phi(d' / 2^(1/2)).

H x A is only nearly the covariance of g, so the variances are of examples and not 1. They are the federation's own,
seen by an initial model: during training errors shrink, and features move. Noise alone, without other examples, leaves
``d' <= |g| r^(1/2) / s`` to any linear test.

Derived here; the filter is that of signal detection (`shoal.attacks.span.matched_filter`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor, nn

from shoal.attacks.span.dense_layers import dense_layers, layer_inputs
from shoal.attacks.span.matched_filter import RIDGE, Clutter
from shoal.engine.backends.example_gradients import batch_of_gradients, example_gradients
from shoal.models import Model

MIN_EXAMPLES = 100
"""Examples below which moments say nothing."""

_EXAMPLES, _FEWER_EXAMPLES, _LARGE = 2000, 400, 1 << 21
"""Examples by which moments are computed; of a network of so many parameters, fewer."""

_SCORED = 120
"""Examples whose scores are predicted, and by which the mean term is known."""

_PAIRED = 60
"""Examples by whose pairs the variance of single terms is known."""


@dataclass(frozen=True, eq=False)
class ExampleTerms:
    """What m examples add to the move of a dense layer, in the eigenvectors of the moments of these and others.

    Args:
        inputs, errors: (m, L, r) and (m, L, s), of the L vectors that an example gives the layer.
        moments: (s, r), the products of the eigenvalues of both moments, in parts of their sum.
        numbers: h d, of the layer.
        length: E |g|^2.
        mean: (s, r), of the terms of ``averaged`` examples, with these among them.
    """

    inputs: Tensor
    errors: Tensor
    moments: Tensor
    numbers: int
    length: float
    mean: Tensor
    averaged: int
    _known: dict[tuple[int, float], tuple[Tensor, float, float]] = field(default_factory=dict)

    def auc(
        self, examples: int, noise: float = 0.0, *, rounds: int = 1, share: float = 1.0, besides: float = 0.0
    ) -> float:
        """The AUC that is predicted for moves of ``examples``, in [0.5, 1].

        Args:
            examples: n, behind a move.
            noise: s, in units of the terms.
            rounds: r, over which noise is averaged.
            share: of the moves that an example is behind.
            besides: d' of what else tells members.
        """
        if (examples, noise) not in self._known:
            self._known[examples, noise] = self._variances(examples, noise)
        own, others, noisy = self._known[examples, noise]
        separation = share * own.sqrt() / max(others + noisy / rounds, 1e-30) ** 0.5
        found = float(torch.special.ndtr((separation.square() + besides**2).sqrt() / 2**0.5).mean())
        never = (1 - share) ** rounds
        return (1 - never) * found + never / 2

    def narrowed(self, inputs: int) -> "ExampleTerms":
        """The terms of the first principal components of the inputs alone, as a map of features gives them."""
        read, moments = self.inputs[:, :, :inputs], self.moments[:, :inputs]
        numbers = round(self.numbers * read.shape[2] / self.inputs.shape[2])
        moments = moments / moments.sum().clamp(min=1e-300)
        length = _length(read, self.errors)
        return ExampleTerms(read, self.errors, moments, numbers, length, self.mean[:, :inputs], self.averaged)

    @property
    def _common(self) -> float:
        """|E g|^2, without the part that the number of terms has in their mean."""
        return max(0.0, (self.averaged * float(self.mean.square().sum()) - self.length) / (self.averaged - 1))

    def _variances(self, examples: int, noise: float) -> tuple[Tensor, float, float]:
        """u^2 (m,), and the variances of scores by other examples and by the noise of one round."""
        count, paired = len(self.inputs), min(_PAIRED, len(self.inputs))
        # The square of an integer may have more bits than a tensor can take.
        others = float(max(0, examples - 1))
        strength = examples * self.length + examples * others * self._common
        covariance = strength * (self.moments + RIDGE / self.numbers) + noise**2
        # No separation depends on their scale; theirs would leave float32.
        scale = float(covariance.min().clamp(min=1e-300))
        weights = (scale / covariance.clamp(min=1e-300)).float()
        own, noisy, along = torch.zeros(3, count).unbind()
        pairs = torch.zeros(paired, paired)
        for errors, weight, mean in zip(self.errors.unbind(dim=2), weights, self.mean, strict=True):
            terms = (errors[:, None] @ self.inputs).squeeze(1)
            weighed = terms * weight
            own += (terms * weighed).sum(dim=1)
            noisy += weighed.square().sum(dim=1)
            along += weighed @ mean
            pairs += weighed[:paired] @ terms[:paired].T
        own = own.clamp(min=1e-30)
        # A record's own term is not among the others; and the mean of few terms makes its own difference.
        along = (along - own / self.averaged) / (1 - 1 / self.averaged) / own.sqrt()
        single = pairs / own[:paired, None].sqrt()
        single = single[~torch.eye(paired, dtype=torch.bool)].view(paired, paired - 1).var(dim=1).mean()
        between = (along.var() - single / (self.averaged - 1)).clamp(min=0)
        return own, float(others**2 * between + others * single), float(noise**2 * (noisy / own).mean())


@dataclass(frozen=True, eq=False)
class InitialGradients:
    """The gradients of examples by an initial model.

    Args:
        terms: of each dense layer, by its name; of none where there are fewer than `MIN_EXAMPLES`.
        length, common: E |g|^2 and |E g|^2 of the gradients of all parameters; 0 where nobody asked.
    """

    terms: Mapping[str, ExampleTerms]
    length: float = 0.0
    common: float = 0.0

    def update_length(self, examples: int) -> float:
        """The length of the sum of so many gradients."""
        return (examples * self.length + examples * max(0, examples - 1) * self.common) ** 0.5


def initial_gradients(
    model: Model, row: Tensor, x: Tensor, y: Tensor, names: Sequence[str], clipped: float = inf, *, whole: bool = False
) -> InitialGradients:
    """What examples add to the moves of dense layers.

    Args:
        model: of the network.
        row: (P,), its initial parameters.
        x: inputs (Z, ...).
        y: labels (Z,), or targets.
        names: of the layers that are meant; others than dense ones are left out.
        clipped: the length that each example's gradient is clipped to.
        whole: whether the lengths of gradients of all parameters are wanted.
    """
    modules = dict(model.structure().named_modules())
    layers = [name for name in names if type(modules[name]) is nn.Linear]
    if len(x) < MIN_EXAMPLES or not layers:
        return InitialGradients({})
    some = _spread(len(x), _EXAMPLES if model.parameters < _LARGE else _FEWER_EXAMPLES)
    x, y, scored = x[some].cpu(), y[some].cpu(), _spread(len(some), _SCORED)
    factors, length, common = torch.ones(len(scored)), 0.0, 0.0
    if clipped < inf or whole:
        lengths, mean = _gradient_lengths(model, row, x[scored], y[scored], clipped)
        factors, count = (clipped / lengths.clamp(min=1e-30)).clamp(max=1), len(scored)
        length = float(lengths.clamp(max=clipped).square().mean())
        common = max(0.0, (mean**2 * count - length) / (count - 1))
    terms = {}
    for name in layers:
        (layer,) = dense_layers(model, name)
        inputs, errors = (values.double() for values in layer_inputs(model, row, layer, x, torch.float32, y))
        moments = Clutter.of_records(inputs, errors)
        read, made = (_places(values) for values in (inputs @ moments.inputs, errors @ moments.errors))
        own = read[scored], made[scored] * factors[:, None, None]
        # Where gradients are clipped, of those whose lengths are known.
        of_all = own if clipped < inf else (read, made)
        terms[name] = _terms(moments, inputs.shape[-1] * errors.shape[-1], own, of_all)
    return InitialGradients(terms, length, common)


def _terms(moments: Clutter, numbers: int, own: tuple[Tensor, Tensor], of_all: tuple[Tensor, Tensor]) -> ExampleTerms:
    """The terms of inputs (m, L, r) and errors (m, L, s), with the mean of more of them."""
    products = moments.of_errors[:, None] * moments.of_inputs
    products = products / products.sum().clamp(min=1e-300)
    mean = of_all[1].flatten(0, 1).T @ of_all[0].flatten(0, 1) / len(of_all[0])
    inputs, errors = (values.float() for values in own)
    return ExampleTerms(inputs, errors, products, numbers, _length(*own), mean.float(), len(of_all[0]))


def _length(inputs: Tensor, errors: Tensor) -> float:
    """The mean of ``|sum_l e_l a_l'|^2``."""
    return float(((inputs @ inputs.mT) * (errors @ errors.mT)).sum(dim=(1, 2)).mean())


def _places(values: Tensor) -> Tensor:
    """Values (m, L, d) of (m, d) too."""
    return values.unflatten(0, (-1, 1)) if values.dim() == 2 else values


def _spread(count: int, most: int) -> Tensor:
    """At most so many of 0 to count - 1, evenly."""
    return torch.arange(count) if count <= most else torch.linspace(0, count - 1, most).long()


def _gradient_lengths(model: Model, row: Tensor, x: Tensor, y: Tensor, clipped: float) -> tuple[Tensor, float]:
    """The lengths (m,) of examples' gradients, and of the mean of them clipped."""
    network, size = model.structure().eval(), batch_of_gradients(model)
    lengths, whole = list[Tensor](), torch.zeros(model.layout.trainable)
    for inputs, labels in zip(x.split(size), y.split(size), strict=True):
        gradients = example_gradients(model, network, row.cpu(), inputs, labels)
        lengths.append(gradients.norm(dim=1))
        whole += (clipped / lengths[-1].clamp(min=1e-30)).clamp(max=1) @ gradients
    return torch.cat(lengths), float(whole.norm()) / len(x)
