"""A rule that predicts from a layer's shape whether the layer's updates reveal membership; nothing is trained.

The rule covers clients' updates and differences between two models. The update of a dense layer is a sum of terms
(error x input), so the update's rows lie in the span of the training inputs. An attacker can stack the rows of several
rounds. If the rows span all training inputs, but not the whole input space, a record is a member exactly if the
record's input lies in the span. With n distinct inputs, width w, r rounds and d input dimensions:

    recognised  iff  c(r) = min(w r, d) > n(r)  for a number of rounds r that the attacker sees.

If n(r) is at least c(r), members still lie closer to the span than non-members. For normal inputs and random errors, a
record's energy (squared norm) in c of d dimensions is chi-squared. A member's mean energy exceeds a non-member's by
(d - c) c / n. If all d dimensions are visible, a member's mean energy in the inverse metric is smaller than a
non-member's by the fraction c / n. The AUC of the best test of a record's energy is therefore at most

    Phi(z),  z = max(c, d - c) sqrt(c) / (2 n).

For natural inputs, which are not normal, the attack's AUC is below Phi(z). Noise in an update makes the span inexact.

An attacker who knows a record's label can compute the record's term and search for it with a matched filter. The filter
also works under noise, or if an update sums more examples than the layer has directions. `ExampleTerms` predicts the
filter's AUC. For a convolution, no AUC is predicted. With noise of standard deviation s, in units of the largest
contribution of one example, the AUC of an attack on a convolution is at most ``Phi(sqrt(r / 2) / s)``.

The verdict is "recognised" if c(r) > n(r) or the predicted AUC of the filter is above `SURE_AUC`, "hidden" if all
bounds are below `UNSURE_AUC`, and "between" in all other cases.

The filter (`shoal.attacks.span.matched_filter`) weighs the update ``D = sum_i g_i + noise`` of a dense layer,
``g = e a'``, by the inverse covariance C of the update without the record. With n examples and noise of standard
deviation s per weight, in units of one pass's contribution,

    C = p (H x A) / (tr H tr A) + s^2 I,   p = E |D|^2 - s^2 h d = n E |g|^2 + n (n - 1) |E g|^2.

A member's score is higher by ``u = (g' C^-1 g)^(1/2)``. The noise is redrawn in each of r rounds, and the other
examples are equal in all rounds. Scores have the variance

    v(r) = (n - 1)^2 Var[m(g)] + (n - 1) E Var[g_i' C^-1 g / u] + s^2 E |C^-1 g|^2 / (u^2 r)

with the mean ``m(g)`` of ``g_i' C^-1 g / u`` over other examples. The separation and the AUC are

    d' = u / v(r)^(1/2),   AUC = E Phi(d' / 2^(1/2)).

The variances are estimated from the federation's examples on an initial model, because H x A only approximates the
covariance of g. Errors and features change during training, so the prediction is approximate. Noise alone, without
other examples, limits the separation of any linear test to ``d' <= |g| r^(1/2) / s``.

Source: the span check of gradient inversion, SPEAR (Dimitrov et al., NeurIPS 2024, arXiv:2403.03945), and as membership
inference ProjRes (arXiv:2604.21197). The bounds and the AUC of the filter are derived here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, inf, isnan, nan, sqrt
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor, nn

from shoal.attacks.span.dense_layers import dense_layers, layer_inputs
from shoal.attacks.span.matched_filter import RIDGE, Clutter
from shoal.engine.backends.gradient_clipping import batch_of_gradients, example_gradients
from shoal.models import Model

Recognition = Literal["recognised", "between", "hidden"]

RECOGNISED_AUC = 0.9
"""The lowest attack AUC under the verdict "recognised"."""

HIDDEN_AUC = 0.6
"""The highest attack AUC under the verdict "hidden"."""

SURE_AUC = 0.99
"""The predicted AUC of the filter above which the verdict is "recognised"."""

UNSURE_AUC = 0.58
"""The bound on the AUC of any test below which the verdict is "hidden"."""


MIN_EXAMPLES = 100
"""The smallest number of examples for estimates of moments."""

_EXAMPLES, _FEWER_EXAMPLES, _LARGE = 2000, 400, 1 << 21
"""The number of examples for moments, and the number for a network with at least ``_LARGE`` parameters."""

_SCORED = 120
"""The number of examples with predicted scores; clipped gradients also use them for the mean term."""

_PAIRED = 60
"""The number of examples whose pairs give the variance of single terms."""


@dataclass(frozen=True, eq=False)
class ExampleTerms:
    """The terms that m examples add to a dense layer's update, in the eigenbasis of the second moments.

    Args:
        inputs: the L input vectors of each example, (m, L, r).
        errors: the L error vectors of each example, (m, L, s).
        moments: the products of the errors' and inputs' eigenvalues, scaled to sum 1, (s, r).
        numbers: the number of the layer's weights, h d.
        length: the mean squared norm of a term, E |g|^2.
        mean: the mean term of ``averaged`` examples, (s, r).
        averaged: the number of examples in ``mean``.
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
        """Return the predicted AUC for updates from ``examples`` examples, in [0.5, 1].

        Args:
            noise: the standard deviation of the noise in units of the terms, s.
            rounds: the number of rounds over which the noise is averaged, r.
            share: the fraction of the updates to which each example contributes.
            besides: the separation d' that other tests of membership reach.
        """
        if (examples, noise) not in self._known:
            self._known[examples, noise] = self._variances(examples, noise)
        own, others, noisy = self._known[examples, noise]
        separation = share * own.sqrt() / max(others + noisy / rounds, 1e-30) ** 0.5
        found = float(torch.special.ndtr((separation.square() + besides**2).sqrt() / 2**0.5).mean())
        never = (1 - share) ** rounds
        return (1 - never) * found + never / 2

    def narrowed(self, inputs: int) -> "ExampleTerms":
        """Return the terms for the first ``inputs`` principal components of the inputs."""
        read, moments = self.inputs[:, :, :inputs], self.moments[:, :inputs]
        numbers = round(self.numbers * read.shape[2] / self.inputs.shape[2])
        moments = moments / moments.sum().clamp(min=1e-300)
        length = _length(read, self.errors)
        return ExampleTerms(read, self.errors, moments, numbers, length, self.mean[:, :inputs], self.averaged)

    @property
    def _common(self) -> float:
        """An unbiased estimate of |E g|^2."""
        return max(0.0, (self.averaged * float(self.mean.square().sum()) - self.length) / (self.averaged - 1))

    def _variances(self, examples: int, noise: float) -> tuple[Tensor, float, float]:
        """Return u^2 (m,), and the scores' variances due to other examples and to one round's noise."""
        count, paired = len(self.inputs), min(_PAIRED, len(self.inputs))
        # A float, because a tensor cannot hold large squares of integers.
        others = float(max(0, examples - 1))
        strength = examples * self.length + examples * others * self._common
        covariance = strength * (self.moments + RIDGE / self.numbers) + noise**2
        # Scaling does not change separations, and keeps the weights within float32.
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
        # Remove the record's own term from the mean of the other terms, and correct for the mean's own variance.
        along = (along - own / self.averaged) / (1 - 1 / self.averaged) / own.sqrt()
        single = pairs / own[:paired, None].sqrt()
        single = single[~torch.eye(paired, dtype=torch.bool)].view(paired, paired - 1).var(dim=1).mean()
        between = (along.var() - single / (self.averaged - 1)).clamp(min=0)
        return own, float(others**2 * between + others * single), float(noise**2 * (noisy / own).mean())


@dataclass(frozen=True, eq=False)
class InitialGradients:
    """The gradients of examples on an initial model.

    Args:
        terms: the terms of each dense layer, by the layer's name; empty with fewer than `MIN_EXAMPLES` examples.
        length: the mean squared norm of the gradient of all parameters, E |g|^2; 0 if not requested.
        common: the squared norm of the mean gradient of all parameters, |E g|^2; 0 if not requested.
    """

    terms: Mapping[str, ExampleTerms]
    length: float = 0.0
    common: float = 0.0

    def update_length(self, examples: int) -> float:
        """Return the norm of the sum of the gradients of ``examples`` examples."""
        return (examples * self.length + examples * max(0, examples - 1) * self.common) ** 0.5


def initial_gradients(
    model: Model, row: Tensor, x: Tensor, y: Tensor, names: Sequence[str], clipped: float = inf, *, whole: bool = False
) -> InitialGradients:
    """Return the terms that examples add to the updates of dense layers.

    Args:
        row: the network's initial parameters, (P,).
        x: the inputs of Z examples, (Z, ...).
        y: the labels (Z,), or regression targets (Z, d).
        names: the names of the layers; layers that are not dense are ignored.
        clipped: the norm to which each example's gradient is clipped.
        whole: whether to compute the norms of the gradients of all parameters.
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
        # With clipping, only the scored examples have known lengths.
        of_all = own if clipped < inf else (read, made)
        terms[name] = _terms(moments, inputs.shape[-1] * errors.shape[-1], own, of_all)
    return InitialGradients(terms, length, common)


def _terms(moments: Clutter, numbers: int, own: tuple[Tensor, Tensor], of_all: tuple[Tensor, Tensor]) -> ExampleTerms:
    """Return the terms of inputs (m, L, r) and errors (m, L, s), with the mean term of ``of_all``."""
    products = moments.of_errors[:, None] * moments.of_inputs
    products = products / products.sum().clamp(min=1e-300)
    mean = of_all[1].flatten(0, 1).T @ of_all[0].flatten(0, 1) / len(of_all[0])
    inputs, errors = (values.float() for values in own)
    return ExampleTerms(inputs, errors, products, numbers, _length(*own), mean.float(), len(of_all[0]))


def _length(inputs: Tensor, errors: Tensor) -> float:
    """Return the mean of ``|sum_l e_l a_l'|^2``."""
    return float(((inputs @ inputs.mT) * (errors @ errors.mT)).sum(dim=(1, 2)).mean())


def _places(values: Tensor) -> Tensor:
    """Return values (m, d) as (m, 1, d), and other values unchanged."""
    return values.unflatten(0, (-1, 1)) if values.dim() == 2 else values


def _spread(count: int, most: int) -> Tensor:
    """Return at most ``most`` of the numbers 0 to count - 1, evenly spaced."""
    return torch.arange(count) if count <= most else torch.linspace(0, count - 1, most).long()


def _gradient_lengths(model: Model, row: Tensor, x: Tensor, y: Tensor, clipped: float) -> tuple[Tensor, float]:
    """Return the norms (m,) of examples' gradients, and the norm of the mean clipped gradient."""
    network, size = model.structure().eval(), batch_of_gradients(model)
    lengths, whole = list[Tensor](), torch.zeros(model.layout.trainable)
    for inputs, labels in zip(x.split(size), y.split(size), strict=True):
        gradients = example_gradients(model, network, row.cpu(), inputs, labels)
        lengths.append(gradients.norm(dim=1))
        whole += (clipped / lengths[-1].clamp(min=1e-30)).clamp(max=1) @ gradients
    return torch.cat(lengths), float(whole.norm()) / len(x)


@dataclass(frozen=True)
class LayerShape:
    """The shape of a layer, which decides whether the layer's updates reveal membership.

    Args:
        name: the name of the layer's weights.
        inputs: the dimension of the layer's inputs, or the rank of the data if lower, d.
        outputs: the number of independent rows of the layer's update in one round, w. For softmax, w is the number of
            outputs minus 1, because softmax errors sum to 0.
        positions: the number of inputs per example: 1 for a dense layer, the number of patches for a convolution, the
            number of tokens for an embedding.
        reads_data: whether no earlier layer is trained. If an earlier layer is trained, the layer's inputs
            change between rounds, and updates of two rounds cannot be stacked.
    """

    name: str
    inputs: int
    outputs: int
    positions: int = 1
    reads_data: bool = True


@dataclass(frozen=True)
class Moves:
    """The updates of one client or one model that an attacker sees.

    Args:
        examples: the number of distinct examples behind all updates.
        rounds: the number of updates, T.
        passes: the number of passes over the examples per update.
        merged: the number of rounds that one update sums, such as all rounds for the difference between the final and
            the initial model; features differ between these rounds.
        share: the fraction of the examples that one update uses, in (0, 1], redrawn every round.
        copies: the largest number of random copies of an example in training, such as 2 for flips; 1 without
            augmentation, and infinite if every pass draws a new copy.
        searched: whether the attacker searches for the random transform of a record.
        noise: the standard deviation of the noise in each number of an update, divided by the largest norm of one
            example's contribution per pass; 0 without noise.
        gradient_noise: the standard deviation of the noise in each number of an update, in units of gradients, for
            `ExampleTerms`.
        exact: whether an update is a sum of terms (error x input), apart from noise of known size and changes that the
            attacker can undo. Adam and noise of unknown size make updates inexact.
    """

    examples: int
    rounds: int = 1
    passes: int = 1
    merged: int = 1
    share: float = 1.0
    copies: float = 1.0
    searched: bool = True
    noise: float = 0.0
    gradient_noise: float = 0.0
    exact: bool = True

    def examples_seen(self, rounds: int) -> int:
        """Return the expected number of distinct examples behind ``rounds`` updates, rounded up."""
        return ceil(self.examples * (1 - (1 - self.share) ** rounds) - 1e-9)

    def inputs_each(self, rounds: int, layer: LayerShape) -> int:
        """Return the number of distinct inputs per example to ``layer`` in ``rounds`` updates."""
        copies = int(min(self.passes * rounds, self.copies))
        return layer.positions * (copies if layer.reads_data else max(copies, self.merged))


@dataclass(frozen=True)
class Exposure:
    """The rule's verdict on a layer.

    Args:
        layer: the layer.
        verdict: "recognised" for an attack AUC above 0.9, "hidden" for an attack AUC below 0.6, and "between" if the
            rule decides neither.
        rounds: r, the smallest number of rounds that reveal records, or else the number with the highest AUC bound.
        capacity: the largest number of independent directions in the updates of ``rounds`` rounds, c(r).
        distinct: the number of distinct inputs behind the updates of ``rounds`` rounds, n(r).
        expected: the predicted AUC of the attack, which tends to be too large, or NaN without a prediction.
        exact: whether the span, rather than the matched filter, recognises the records.
    """

    layer: LayerShape
    verdict: Recognition
    rounds: int
    capacity: int
    distinct: int
    expected: float = nan
    exact: bool = False

    @property
    def auc(self) -> tuple[float, float]:
        """The lowest and the highest attack AUC under the verdict."""
        ranges = {"recognised": (RECOGNISED_AUC, 1.0), "between": (0.5, 1.0), "hidden": (0.5, HIDDEN_AUC)}
        return ranges[self.verdict]


def exposure_rule(layer: LayerShape, moves: Moves, terms: ExampleTerms | None = None) -> Exposure:
    """Return whether the updates of a layer reveal membership, and after how many rounds.

    Args:
        moves: the updates that the attacker sees.
        terms: the terms that examples add to the layer's first update, or None to ignore the matched filter.

    Example:
        >>> from shoal.preflight.exposure_rule import LayerShape, Moves, exposure_rule
        >>> hidden = LayerShape("hidden", inputs=784, outputs=200)
        >>> exposure_rule(hidden, Moves(examples=25)).verdict
        'recognised'
        >>> of_a_sum = exposure_rule(hidden, Moves(examples=12 * 25, rounds=40))
        >>> of_a_sum.verdict, of_a_sum.rounds, of_a_sum.capacity, of_a_sum.distinct
        ('recognised', 2, 400, 300)
    """
    # Rounds beyond the full input space only add examples; rounds with changing features cannot be stacked.
    last = min(moves.rounds, ceil(layer.inputs / layer.outputs)) if layer.reads_data else 1
    most, largest, plain = None, -inf, moves.searched or moves.copies == 1
    for rounds in range(1, last + 1):
        capacity, each = min(layer.outputs * rounds, layer.inputs), moves.inputs_each(rounds, layer)
        distinct = moves.examples_seen(rounds) * each
        if capacity > distinct and moves.exact and moves.noise == 0 and plain:
            return Exposure(layer, "recognised", rounds, capacity, distinct, 1.0, exact=True)
        # An example with several inputs is judged by all of them together.
        z = max(capacity, layer.inputs - capacity) * sqrt(capacity * each) / (2 * distinct)
        if z > largest:
            most, largest = Exposure(layer, "between", rounds, capacity, distinct), z
    assert most is not None
    if moves.noise:
        # Under noise, the bound for any linear test applies, unless the filter's AUC is predicted.
        largest = inf if terms is not None else min(largest, sqrt(moves.rounds / 2) / moves.noise)
    if not moves.exact:
        return most
    if terms is None:
        return replace(most, verdict="hidden" if NormalDist().cdf(largest) < UNSURE_AUC else "between")
    examples = max(1, round(moves.examples * moves.share))
    auc = partial(terms.auc, examples, moves.gradient_noise, share=moves.share)
    expected = auc()
    if expected > SURE_AUC and moves.copies == 1 and moves.merged == 1:
        return replace(most, verdict="recognised", rounds=1, expected=expected)
    # Without noise, the span adds a signal.
    besides = 0.0 if moves.noise else sqrt(2) * largest
    expected = auc(rounds=moves.rounds)
    if auc(rounds=moves.rounds, besides=besides) < UNSURE_AUC:
        return replace(most, verdict="hidden", expected=expected)
    # The filter does not know the term of a transformed image.
    return replace(most, expected=expected if moves.copies == 1 else nan)


def most_exposed_layer(
    layers: Iterable[LayerShape], moves: Moves, terms: Mapping[str, ExampleTerms] | None = None
) -> Exposure | None:
    """Return the exposure of the layer that recognises records first or has the highest AUC, or None without layers."""
    exposures = [exposure_rule(layer, moves, (terms or {}).get(layer.name)) for layer in layers]
    return min(exposures, key=_rank_of, default=None)


def _rank_of(one: Exposure) -> tuple[int, bool, float, float]:
    """Return the sort key of exposures: recognised layers first, and the span before the filter."""
    order = ("recognised", "between", "hidden").index(one.verdict)
    if one.exact:
        return order, False, one.rounds, one.distinct / one.capacity
    return order, True, 0.0 if isnan(one.expected) else -one.expected, one.distinct / one.capacity
