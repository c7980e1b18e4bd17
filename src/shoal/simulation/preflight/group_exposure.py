"""What a view sees of a group of clients, and what the rule of exposure says of it, in numbers and in a sentence."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from math import ceil, isnan

from shoal.audit.preflight import Exposure, Moves
from shoal.audit.records import OUTSIDER, SERVER
from shoal.core.formats import count
from shoal.simulation.preflight.visible_moves import VisibleMoves


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


def group_exposure(seen: VisibleMoves, view: str, group: int) -> GroupExposure:
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


def _rounds(number: int) -> str:
    return "one round" if number == 1 else f"{count(number)} rounds"
