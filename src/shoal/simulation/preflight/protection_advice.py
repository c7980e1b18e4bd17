"""What would end that a view surely recognises the records of a group, and what would hide them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf

from shoal.audit.preflight import Exposure
from shoal.audit.records import SERVER
from shoal.core.formats import count, number
from shoal.defenses import accounting
from shoal.simulation.preflight.group_exposure import GroupExposure
from shoal.simulation.preflight.visible_moves import VisibleMoves

_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8)
"""Advice is in round numbers: these, times powers of ten."""

_GRID = tuple(step * 10.0**power for power in range(-1, 8) for step in _STEPS)

_MAX_PASSES = 1000
"""Passes beyond which no advice goes."""

_ASSUMED_NORM = 1.0
"""The bound on gradients of a DP-SGD that is not configured."""


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
