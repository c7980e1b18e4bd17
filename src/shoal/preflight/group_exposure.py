"""What a view sees of a group of clients, what the rule of exposure says of it, and what would change that."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, inf, isnan

from shoal.audit.record_table import OUTSIDER, SERVER
from shoal.core.formats import count, number
from shoal.defenses import accounting
from shoal.preflight.exposure_rule import Exposure, Moves
from shoal.preflight.visible_moves import VisibleMoves

_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8)
"""Advice is in round numbers: these, times powers of ten."""

_GRID = tuple(step * 10.0**power for power in range(-1, 8) for step in _STEPS)

_MAX_PASSES = 1000
"""Passes beyond which no advice goes."""

_ASSUMED_NORM = 1.0
"""The bound on gradients of a DP-SGD that is not configured."""


@dataclass(frozen=True)
class GroupExposure:
    """What a view sees of a group, and what the rule says of it.

    Args:
        recognised: the share of the group's records that are recognised.
        exposure: of the largest client that is recognised, or of the sum.
        clients: behind a move.
        whose: the clients that are recognised, in words.
        noun: of examples, a plural.
    """

    view: str
    group: str
    exposure: Exposure
    moves: Moves
    recognised: float
    clients: int
    whose: str
    noun: str

    def row(self) -> tuple[object, ...]:
        """A row of `Preflight.views`."""
        one, layer = self.exposure, self.exposure.layer
        return (
            self.view, self.group, one.verdict, self.recognised, self.clients, self.moves.examples, one.rounds,
            layer.name, layer.inputs, layer.outputs, one.capacity, one.distinct, *one.auc, one.expected,
        )  # fmt: skip

    @property
    def answer(self) -> str:
        """The verdict in few words."""
        expected = self.exposure.expected
        if self.exposure.verdict == "recognised":
            every = "every record" if self.recognised == 1 else f"{100 * self.recognised:.0f} % of the records"
            return f"{every} can be recognised"
        if self.exposure.verdict == "hidden":
            return "records are hidden from these attacks"
        return "records may be recognised" + ("" if isnan(expected) else f" (AUC up to {expected:.2f})")

    def sentence(self) -> str:
        """What the rule says of the group, without its name, and by which layer."""
        one, layer = self.exposure, self.exposure.layer
        after = "" if self.view == OUTSIDER else f" after {_rounds(one.rounds)}"
        shown = f"'{layer.name}', a layer of {count(layer.inputs)} inputs and {count(layer.outputs)} outputs"
        shown = f"{self._inputs()} in {shown}{self._why()}"
        if one.verdict == "recognised":
            by = "" if one.exact else f" by a matched filter (AUC up to {one.expected:.2f})"
            return f"every record of {self.whose} can be recognised{by}{after}: {shown}."
        if one.verdict == "hidden":
            return f"the records of {self.whose} are hidden from these attacks: {shown}."
        said = self.answer.removeprefix("records ")
        return f"records of {self.whose} {said}: {shown}."

    def _inputs(self) -> str:
        """The distinct inputs in words."""
        examples, distinct = self.moves.examples_seen(self.exposure.rounds), self.exposure.distinct
        if distinct == examples:
            return f"{count(examples)} {self.noun}"
        return f"{count(distinct)} inputs of {count(examples)} {self.noun}"

    def _why(self) -> str:
        """Why the span does not recognise them."""
        one, noise = self.exposure, ", under noise" if self.moves.noise else ""
        if one.exact or noise:
            return noise
        if one.capacity > one.distinct:
            return ", whose moves are no plain sums of gradients"
        many = f"{count(one.capacity)} direction{'s' * (one.capacity > 1)}"
        return f", which shows {many} in {_rounds(one.rounds)}"


def predicted_exposure(seen: VisibleMoves, view: str, group: int) -> GroupExposure:
    """What a view sees of a group, by its number."""
    federation = seen.federation
    name, noun = federation.groups[group], federation.kind
    sizes = federation.clients.sizes[federation.group == group]
    sizes = sizes[sizes > 0]
    if view != SERVER:
        clients = seen.clusters(group)
        moves = seen.moves(view, ceil(float(sizes.double().mean())), clients)
        exposure = seen.most(moves)
        recognised = float(exposure.verdict == "recognised")
        whose = f"the {count(clients)} clients of a sum" if clients > 1 else "a client alone in its cluster"
        return GroupExposure(view, name, exposure, moves, recognised, clients, whose, noun)
    by_size = cache(lambda size: seen.most(seen.moves(view, size, 1)))
    distinct = sizes.unique().tolist()
    # The more examples a client has, the less is each recognised.
    recognised = bisect_left(distinct, True, key=lambda size: by_size(size).verdict != "recognised")
    shown, inside = distinct[max(0, recognised - 1)], sizes[:0]
    whose = "every client"
    if recognised:
        inside = sizes[sizes <= shown]
        if len(inside) < len(sizes):
            whose = f"{count(len(inside))} of {count(len(sizes))} clients, those with at most {count(shown)} {noun},"
    part = float(inside.sum() / sizes.sum())
    return GroupExposure(view, name, by_size(shown), seen.moves(view, shown, 1), part, 1, whose, noun)


@dataclass(frozen=True)
class _Option:
    """A setting that could be changed, the values that are tried, mildest first, and what the rule then says."""

    what: str
    bound: str
    values: Sequence[float]
    exposure: Callable[[float], Exposure]

    def amounts(self, *, recognised: bool) -> list[str]:
        """The values that change the verdict, which may be "recognised" now, in words."""
        verdict = cache(lambda value: self.exposure(value).verdict)
        partly = _first(lambda value: verdict(value) != "recognised", self.values) if recognised else None
        hidden = _first(lambda value: verdict(value) == "hidden", self.values)
        named = {} if partly in {None, hidden} else {partly: "end certainty"}
        named |= {} if hidden is None else {hidden: "hide every record"}
        return [f"{self.bound} {_number(value)} {effect}" for value, effect in named.items() if value is not None]


def protection_advice(seen: VisibleMoves, worst: GroupExposure) -> Iterator[str]:
    """The least change of each setting by which a group's records are no longer surely recognised, and by which hidden.

    Args:
        seen: what a simulation shows.
        worst: the group of a view that shows most.
    """
    if worst.exposure.verdict == "hidden":
        return
    for option in _options(seen, worst):
        amounts = option.amounts(recognised=worst.exposure.verdict == "recognised")
        if amounts:
            yield f"{option.what}: {', '.join(amounts)}."


def _options(seen: VisibleMoves, worst: GroupExposure) -> Iterator[_Option]:
    moves, clients = worst.moves, worst.clients
    size = moves.examples // clients
    steps, passes = seen.local.steps_of(size), seen.local.passes_of(size)
    widest = max((one.inputs for one in seen.layers if one.reads_data and one.positions == 1), default=0)

    def narrower(inputs: float) -> Exposure:
        kept = int(inputs)
        direct = {one.name for one in seen.layers if one.reads_data and one.positions == 1}
        layers = [replace(one, inputs=min(one.inputs, kept)) if one.name in direct else one for one in seen.layers]
        terms = {name: one.narrowed(kept) if name in direct else one for name, one in seen.gradients.terms.items()}
        return seen.most(moves, layers, terms)

    def summed(of_all: float) -> Exposure:
        more = (of_all / clients) ** 0.5
        noise, gradient_noise = moves.noise * more, moves.gradient_noise * more
        return seen.most(replace(moves, examples=size * int(of_all), noise=noise, gradient_noise=gradient_noise))

    inputs = [value for value in reversed(_GRID) if value < widest and value == int(value)]
    yield _Option("Principal components of the inputs as a fixed map of features", "at most", inputs, narrower)
    whole = [value for value in _GRID if value > clients and value == int(value)]
    yield _Option(
        "Clients of a secure sum" if worst.view == SERVER else "Clients of a cluster", "at least", whole, summed
    )
    rule, active = accounting.private_rule(seen.local), seen.local.gradient_privacy
    now = 0.0 if rule is None else rule.noise_multiplier
    if rule is None or now:
        clipped = seen if active is not None else seen.clipped(_ASSUMED_NORM)
        share = 1.0 if active is None or not now else active.noise_multiplier / now

        def noisier(multiplier: float) -> Exposure:
            noise, gradient_noise = clipped.noise(size, steps, passes, clients, multiplier * share)
            return clipped.most(replace(moves, noise=noise, gradient_noise=gradient_noise))

        norm = "" if active is not None else f", of gradients clipped to {number(_ASSUMED_NORM)}"
        larger = [value for value in _GRID if value > now]
        yield _Option(f"Noise multiplier of DP-SGD{norm}", "at least", larger, noisier)
    if seen.federation.kind == "images" and seen.copies == 1 and not moves.noise:

        def transformed(more: float) -> Exposure:
            return seen.most(replace(moves, copies=inf, passes=int(more)))

        more = [value for value in _GRID if passes <= value <= _MAX_PASSES and value == int(value)]
        what = "Passes a round over transformed images, against who searches the transform"
        yield _Option(what, "at least", more, transformed)


def _first(holds: Callable[[float], bool], values: Sequence[float]) -> float | None:
    """The first of the values for which something holds that goes on to hold; None: for none."""
    if not values or not holds(values[-1]):
        return None
    low, high = -1, len(values) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(values[middle]) else (middle, high)
    return values[high]


def _number(value: float) -> str:
    return count(value) if value == int(value) else number(value)


def _rounds(rounds: int) -> str:
    return "one round" if rounds == 1 else f"{count(rounds)} rounds"
