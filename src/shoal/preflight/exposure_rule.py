"""The rule that says from shapes whether a layer's moves give single records away; nothing is trained.

The move of a dense layer is a sum of (error x input), so its rows lie in the span of the inputs that it was trained on.
Rows of several rounds are stacked. While the rows span all inputs, and these do not span everything, a record is a
member exactly if nothing of its input is outside that span. So of n distinct inputs, width w, r rounds and d inputs

    recognised  iff  c(r) = min(w r, d) > n(r)  for a number of rounds r that the attacker sees.

Beyond it, members still lie nearer to the span than others. For normal inputs and random errors the energy of a record
in c of d dimensions is chi-squared; a member's is larger by (d - c) c / n, and where all d are seen, smaller in the
inverse metric by c / n of itself. The AUC of the best test of this energy therefore is at most

    Phi(z),  z = max(c, d - c) sqrt(c) / (2 n).

Natural inputs are far from normal, and the attack then finds less than this. With noise in a move no span is exact.

Who knows a record's label knows its own term as well, and finds it by a matched filter, through noise and in sums of
more examples than directions: `filter_rule` predicts its AUC. Without a prediction, as of a convolution, noise of
standard deviation s in units of the most that one example adds leaves ``Phi(sqrt(r / 2) / s)`` at most.

So records are recognised where the filter's AUC is predicted above `SURE_AUC`, hidden where all of these bounds
together are below `UNSURE_AUC`, and nothing is said between the two.

Source: the span check of gradient inversion, SPEAR (Dimitrov et al., NeurIPS 2024, arXiv:2403.03945), and as membership
inference ProjRes (arXiv:2604.21197); the bounds are derived here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf, isnan, nan, sqrt
from statistics import NormalDist
from typing import Literal

from shoal.preflight.filter_rule import ExampleTerms

Recognition = Literal["recognised", "between", "hidden"]

RECOGNISED_AUC = 0.9
"""What the AUC of the attack is at least where records are recognised."""

HIDDEN_AUC = 0.6
"""What it is at most where they are hidden."""

SURE_AUC = 0.99
"""The filter's AUC from which on records count as recognised."""

UNSURE_AUC = 0.58
"""The largest AUC of any test below which they count as hidden."""


@dataclass(frozen=True)
class LayerShape:
    """A layer, as far as its moves can give records away.

    Args:
        name: of its weights.
        inputs: d, the dimension of what it reads: its inputs, or the rank of the data where that is lower.
        outputs: w, the independent rows of its move in one round: its outputs, but of softmax errors, which add up to
            0, one less.
        positions: inputs that one example gives it: 1 of a dense layer, the patches of a convolution, tokens.
        reads_data: whether nothing before it is trained. Otherwise its inputs are features. Within a round they move so
            little that those of its start stand for them (measured), but those of two rounds cannot be stacked.
    """

    name: str
    inputs: int
    outputs: int
    positions: int = 1
    reads_data: bool = True


@dataclass(frozen=True)
class Moves:
    """The moves of one model, or of one client, that an attacker sees.

    Args:
        examples: distinct examples behind all moves together: of a client, or of all clients of a sum.
        rounds: T, how many moves there are.
        passes: over these examples in one move.
        merged: rounds that one move is the sum of, such as all of them in a final minus an initial model; features are
            others in each.
        share: of the examples that are behind one move, in (0, 1]; another random share in every round.
        copies: random copies of an example that are trained on at most, such as 2 by flips alone; 1: examples as they
            are; infinite: another one in every pass.
        searched: whether the attacker searches the transform of copies. Otherwise a record itself is behind a move with
            some probability only, or never; how near it lies to its copies the rule does not know.
        noise: standard deviation of the noise in each number of one move, by the largest norm of what one example adds
            to it in one pass; 0: none.
        gradient_noise: the same in units of gradients, as `filter_rule.ExampleTerms` are.
        exact: whether moves are sums of (error x input) up to what the attacker can undo, and what noise there is. They
            are not where every number is scaled by itself (Adam) or has noise of unknown size.
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
        """The distinct examples behind ``rounds`` moves; with a ``share`` on average, rounded up."""
        return ceil(self.examples * (1 - (1 - self.share) ** rounds) - 1e-9)

    def inputs_each(self, rounds: int, layer: LayerShape) -> int:
        """The distinct inputs that one of these examples has given ``layer``."""
        copies = int(min(self.passes * rounds, self.copies))
        return layer.positions * (copies if layer.reads_data else max(copies, self.merged))


@dataclass(frozen=True)
class Exposure:
    """What the rule says of a layer.

    Args:
        layer: whose moves.
        verdict: "recognised": AUC of the attack above 0.9; "hidden": below 0.6; "between": either.
        rounds: r, after which it holds: from which records are recognised, otherwise where the layer says most.
        capacity: c(r), the independent directions that the moves of these rounds can have.
        distinct: n(r), the distinct inputs behind them.
        expected: the AUC that is predicted of the attack, rather too large; NaN: nothing is.
        exact: whether records are recognised by the span, and not by the matched filter.
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
        """The least and the largest AUC of the span attack that the verdict allows."""
        ranges = {"recognised": (RECOGNISED_AUC, 1.0), "between": (0.5, 1.0), "hidden": (0.5, HIDDEN_AUC)}
        return ranges[self.verdict]


def exposure_rule(layer: LayerShape, moves: Moves, terms: ExampleTerms | None = None) -> Exposure:
    """Whether the moves of a layer give records away, and from which round on.

    Args:
        layer: whose moves.
        moves: of an attacker's view.
        terms: what examples add to the layer's first move; None: it is not known, and nothing is said of the filter.

    Example:
        >>> from shoal.preflight.exposure_rule import LayerShape, Moves, exposure_rule
        >>> hidden = LayerShape("hidden", inputs=784, outputs=200)
        >>> exposure_rule(hidden, Moves(examples=25)).verdict
        'recognised'
        >>> of_a_sum = exposure_rule(hidden, Moves(examples=12 * 25, rounds=40))
        >>> of_a_sum.verdict, of_a_sum.rounds, of_a_sum.capacity, of_a_sum.distinct
        ('recognised', 2, 400, 300)
    """
    # More rounds than span all that the layer reads only add examples; the features of several cannot be stacked.
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
        # What noise alone leaves to any linear test; without it, what is left of the span.
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
    # What the span shows besides, where there is no noise.
    besides = 0.0 if moves.noise else sqrt(2) * largest
    expected = auc(rounds=moves.rounds)
    if auc(rounds=moves.rounds, besides=besides) < UNSURE_AUC:
        return replace(most, verdict="hidden", expected=expected)
    # Of transformed images the filter's own term is not known.
    return replace(most, expected=expected if moves.copies == 1 else nan)


def most_exposed_layer(
    layers: Iterable[LayerShape], moves: Moves, terms: Mapping[str, ExampleTerms] | None = None
) -> Exposure | None:
    """The layer that gives records away first, or else says most; None: there is no layer that the rule is of."""
    exposures = [exposure_rule(layer, moves, (terms or {}).get(layer.name)) for layer in layers]
    return min(exposures, key=_rank_of, default=None)


def _rank_of(one: Exposure) -> tuple[int, bool, float, float]:
    """The order of exposures: what is recognised first, by the span before the filter, then what lacks least."""
    order = ("recognised", "between", "hidden").index(one.verdict)
    if one.exact:
        return order, False, one.rounds, one.distinct / one.capacity
    return order, True, 0.0 if isnan(one.expected) else -one.expected, one.distinct / one.capacity
