"""The exposure of a simulation's records, predicted before the first round: rows, sentences and keys."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil, inf, isfinite, isnan

import pandas as pd
import torch

from shoal.algorithms import LocalOnly
from shoal.algorithms.wrapper import choice_noise
from shoal.audit.record_table import CLIENT, OUTSIDER, SERVER
from shoal.core.formats import count, decimal, join_words, names_by, number, one_line
from shoal.data.content import most_copies
from shoal.defenses import accounting
from shoal.engine import client_trainings
from shoal.metrics.attack_bounds import AttackBound
from shoal.preflight.exposure_rule import Exposure, Moves
from shoal.preflight.visible_moves import VisibleMoves

_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8)
"""Advice uses only these numbers times powers of ten."""

_GRID = tuple(step * 10.0**power for power in range(-1, 8) for step in _STEPS)

_MAX_PASSES = 1000
"""The largest number of passes that advice suggests."""

_ASSUMED_NORM = 1.0
"""The gradient norm that advice assumes if DP-SGD is not configured."""


@dataclass(frozen=True)
class GroupExposure:
    """The predicted exposure of a group to a view.

    Args:
        exposure: the exposure of the largest client with recognised records, or of the sum over clients.
        recognised: the fraction of the group's records that can be recognised.
        clients: the number of clients behind an update.
        whose: a phrase for the clients behind the update.
        noun: a plural noun for the examples.
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
        """Return the group's row of `Preflight.views`."""
        one, layer = self.exposure, self.exposure.layer
        return (
            self.view, self.group, one.verdict, self.recognised, self.clients, self.moves.examples, one.rounds,
            layer.name, layer.inputs, layer.outputs, one.capacity, one.distinct, *one.auc, one.expected,
        )  # fmt: skip

    @property
    def answer(self) -> str:
        """The verdict in a few words."""
        if self.exposure.verdict == "recognised":
            share = "less than 1 %" if self.recognised < 0.005 else f"{100 * self.recognised:.0f} %"
            return "recognises every record" if self.recognised == 1 else f"recognises {share} of the records"
        if self.exposure.verdict == "hidden":
            return "recognises no record with these attacks"
        return f"may recognise records{self._expected}"

    @property
    def _expected(self) -> str:
        """The predicted AUC in words."""
        expected = self.exposure.expected
        return "" if isnan(expected) else f" (AUC up to {expected:.2f})"

    def sentence(self) -> str:
        """Describe the group's exposure and the most exposed layer, without the group's name."""
        one, layer = self.exposure, self.exposure.layer
        after = "" if self.view == OUTSIDER else f" after {_rounds(one.rounds)}"
        by = "" if one.exact else f", by a matched filter{self._expected}"
        said = {
            "recognised": f"every record is recognised{after}{by}",
            "hidden": "every record is hidden",
            "between": f"records may be recognised{self._expected}",
        }[one.verdict]
        size = f"{count(layer.inputs)} input{'s' * (layer.inputs != 1)}, {count(layer.outputs)} outputs"
        return f"{self.whose}: {said}. Layer '{layer.name}' ({size}) receives {self._inputs()}{self._why()}."

    def _inputs(self) -> str:
        """Describe the distinct inputs."""
        examples, distinct = self.moves.examples_seen(self.exposure.rounds), self.exposure.distinct
        if distinct == examples:
            return f"{count(examples)} {self.noun}"
        return f"{count(distinct)} inputs of {count(examples)} {self.noun}"

    def _why(self) -> str:
        """Explain why the span does not recognise the records."""
        one, noise = self.exposure, ", under noise" if self.moves.noise else ""
        if one.exact or noise:
            return noise
        if one.capacity > one.distinct:
            return ", and its updates are not plain sums of gradients"
        many = f"{count(one.capacity)} direction{'s' * (one.capacity > 1)}"
        return f" and shows {many} in {_rounds(one.rounds)}"


def predicted_exposure(seen: VisibleMoves, view: str, group: int) -> GroupExposure:
    """Return the predicted exposure of the group with index ``group`` to a view."""
    federation = seen.federation
    name, noun = federation.groups[group], federation.kind
    sizes = federation.clients.sizes[federation.with_group(group)]
    sizes = sizes[sizes > 0]
    if view != SERVER:
        clients, examples = seen.sum_of_clients(group)
        moves = seen.moves(view, ceil(examples / clients), clients, examples)
        exposure = seen.most(moves)
        recognised = float(exposure.verdict == "recognised")
        whose = f"the {count(clients)} clients in a sum" if clients > 1 else "a client alone in its cluster"
        return GroupExposure(view, name, exposure, moves, recognised, clients, whose, noun)
    by_size = cache(lambda size: seen.most(seen.moves(view, size, 1)))
    distinct = sizes.unique().tolist()
    # Records of larger clients are harder to recognise.
    recognised = bisect_left(distinct, True, key=lambda size: by_size(size).verdict != "recognised")
    shown, inside = distinct[max(0, recognised - 1)], sizes[:0]
    whose = "every client"
    if recognised:
        inside = sizes[sizes <= shown]
        if len(inside) < len(sizes):
            whose = f"{count(len(inside))} of {count(len(sizes))} clients, with at most {count(shown)} {noun} each"
    part = float(inside.sum() / sizes.sum())
    return GroupExposure(view, name, by_size(shown), seen.moves(view, shown, 1), part, 1, whose, noun)


@dataclass(frozen=True)
class _Option:
    """A setting with values to try, mildest first, and the exposure for each value."""

    what: str
    bound: str
    values: Sequence[float]
    exposure: Callable[[float], Exposure]

    def amounts(self, *, recognised: bool) -> list[str]:
        """Describe the values that change the verdict; ``recognised`` is whether the verdict is "recognised" now."""
        verdict = cache(lambda value: self.exposure(value).verdict)
        partly = _first(lambda value: verdict(value) != "recognised", self.values) if recognised else None
        hidden = _first(lambda value: verdict(value) == "hidden", self.values)
        named = {} if partly in {None, hidden} else {partly: "for uncertain recognition"}
        named |= {} if hidden is None else {hidden: "to hide every record"}
        return [f"{self.bound} {_number(value)} {effect}" for value, effect in named.items() if value is not None]


def protection_advice(seen: VisibleMoves, worst: GroupExposure) -> Iterator[str]:
    """Yield the smallest changes of each setting that hide a group's records, or make their recognition uncertain.

    Args:
        worst: the most exposed group of a view.
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
    yield _Option("Principal components of the inputs as features", "at most", inputs, narrower)
    whole = [value for value in _GRID if value > clients and value == int(value)]
    yield _Option(
        "Clients in a secure sum" if worst.view == SERVER else "Clients in a cluster", "at least", whole, summed
    )
    rule, active = accounting.private_rule(seen.local), seen.local.gradient_privacy
    now = 0.0 if rule is None else rule.noise_multiplier
    if rule is None or now:
        clipped = seen if active is not None else seen.clipped(_ASSUMED_NORM)
        share = 1.0 if active is None or not now else active.noise_multiplier / now

        def noisier(multiplier: float) -> Exposure:
            noise, gradient_noise = clipped.noise(size, steps, passes, clients, multiplier * share)
            return clipped.most(replace(moves, noise=noise, gradient_noise=gradient_noise))

        norm = "" if active is not None else f" with gradients clipped to {number(_ASSUMED_NORM)}"
        larger = [value for value in _GRID if value > now]
        yield _Option(f"Noise multiplier of DP-SGD{norm}", "at least", larger, noisier)
    if seen.federation.kind == "images" and seen.copies == 1 and not moves.noise:

        def transformed(more: float) -> Exposure:
            return seen.most(replace(moves, copies=inf, passes=int(more)))

        more = [value for value in _GRID if passes <= value <= _MAX_PASSES and value == int(value)]
        what = "Passes per round over transformed images, if the attacker searches for the transform"
        yield _Option(what, "at least", more, transformed)


def _first(holds: Callable[[float], bool], values: Sequence[float]) -> float | None:
    """Return the first value from which on ``holds`` is true, by bisection, or None."""
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


VIEWS = (SERVER, CLIENT, OUTSIDER)

COLUMNS = (
    "view", "group", "verdict", "recognised", "clients", "examples", "rounds", "layer", "inputs", "outputs", "capacity",
    "distinct", "auc.low", "auc.high", "auc.expected",
)  # fmt: skip
"""The columns of `Preflight.views`."""

_ATTACKER = {
    SERVER: "The server, from each client's updates",
    CLIENT: "Another client, from the models of every round",
    OUTSIDER: "An outsider, from the initial and the final models",
}
"""Each view's attacker, and the data that this attacker sees."""

_VIEW_NAMES = {SERVER: "the server", CLIENT: "another client", OUTSIDER: "an outsider"}


@dataclass(frozen=True, eq=False)
class Preflight:
    """The records that each view could recognise from updates, predicted before training.

    Other attacks, such as queries of the released models, are not covered.

    Args:
        views: one row per view and group, with the columns `COLUMNS`. The verdict (`exposure_rule.Exposure`) is for the
            most exposed client, or for the sum over clients. The column "recognised" is the fraction of the group's
            records that can be recognised. The columns "clients" and "examples" count the contributors to an update,
            and "rounds" counts the rounds until recognition. The columns "auc.low" and "auc.high" limit the AUC of the
            attack; "auc.expected" is the predicted AUC, or NaN.
        answers: a short answer per view.
        sentences: the explanation of each view's answer, as sentences.
        changes: changes of settings that reduce the exposure of each view's most exposed group.
        assumptions: the assumptions of the rule, including the sizes of clusters.
        epsilons: the epsilon of a record after all rounds with DP-SGD, by view; the key "" means every view.
        delta: the delta of the epsilons.
        bounds: bounds on any attack on a record, by the keys of ``epsilons``.
        choice: whether the bounds also cover which cluster a client chooses.
    """

    views: pd.DataFrame
    answers: Mapping[str, str]
    sentences: Mapping[str, Sequence[str]]
    changes: Mapping[str, Sequence[str]]
    assumptions: Sequence[str]
    epsilons: Mapping[str, float] = field(default_factory=dict)
    delta: float = 0.0
    bounds: Mapping[str, AttackBound] = field(default_factory=dict)
    choice: bool = False
    __repr__ = one_line

    def flat(self) -> dict[str, float | str]:
        """Return the keys and values of ``shoal preflight --json``; gates limit ``views.<view>.<group>.auc.high``."""
        flat: dict[str, float | str] = {}
        for row in self.views.to_dict("records"):
            key = f"views.{row['view']}.{row['group']}"
            flat |= {f"{key}.{name}": row[name] for name in COLUMNS[2:] if row[name] == row[name]}
        known = {view: epsilon for view, epsilon in self.epsilons.items() if isfinite(epsilon)}
        flat |= {f"epsilon.{view}".removesuffix("."): epsilon for view, epsilon in known.items()}
        flat |= {"delta": self.delta} if known else {}
        return flat

    def __str__(self) -> str:
        return "\n\n".join("\n".join([title, *(f"- {line}" for line in lines)]) for title, lines in self.parts())

    def parts(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the title and the sentences of each part of the report."""
        answers = [f"{_ATTACKER[view]}: {answer}" for view, answer in self.answers.items()]
        yield "Who could recognise a training record", answers
        views = names_by((_VIEW_NAMES[view], tuple(said)) for view, said in self.sentences.items())
        yield from ((f"Why: {join_words(names)}", said) for said, names in views.items())
        if self.epsilons:
            said = [self._promise_words(view, epsilon) for view, epsilon in self.epsilons.items()]
            said += [] if self.choice else ["The guarantee does not cover which cluster a client chooses."]
            yield "What DP-SGD guarantees", said
        yield from ((f"What would change it: {of}", said) for of, said in self.changes.items() if said)
        yield "What this assumes", self.assumptions

    def _promise_words(self, view: str, epsilon: float) -> str:
        """Describe what an epsilon means for membership."""
        accuracy, auc = self.bounds[view]
        bound = (
            f"no attack on a record has a balanced accuracy above {decimal(accuracy)} or an AUC above {decimal(auc)}"
        )
        if accuracy > 0.995:
            bound = "this limits no attack noticeably"
        whose = _VIEW_NAMES.get(view, "every view")
        return f"Against {whose}, epsilon {number(epsilon)} per record at delta {number(self.delta)}: {bound}."


def preflight(seen: VisibleMoves, *, first_round: int = 1, steered: bool = False) -> Preflight:
    """Apply the rule of exposure to every view and group.

    Args:
        steered: whether a coordinator steers defences.

    Example:
        >>> import torch, shoal
        >>> draw = shoal.Stream(0).generator()
        >>> clients = [(torch.randn(4, 50, generator=draw), [0, 1, 0, 1]) for _ in range(5)]
        >>> federation = shoal.Federation.from_tensors(clients, test=(torch.randn(50, 50, generator=draw), [0, 1] * 25))
        >>> model = shoal.create_model("mlp", shoal.VectorShape(inputs=50, classes=2), hidden=16)
        >>> report = shoal.Simulation(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=5).preflight()
        >>> report.views[["view", "verdict", "rounds", "capacity", "distinct"]].to_numpy().tolist()
        [['server', 'recognised', 1, 16, 4], ['client', 'recognised', 2, 32, 20], ['outsider', 'between', 1, 16, 20]]
    """
    groups = seen.federation.groups_with_clients
    rows, answers, said, changes = [], dict[str, str](), dict[str, list[str]](), dict[str, list[str]]()
    for view in VIEWS:
        if not seen.layers:
            answers[view] = seen.nothing
            continue
        found = [predicted_exposure(seen, view, group) for group in groups]
        rows += [one.row() for one in found]
        answers[view] = "; ".join(_together(found, lambda one: one.answer)) + "."
        said[view] = _together(found, GroupExposure.sentence)
        if view != OUTSIDER:
            worst = max(found, key=lambda one: (one.exposure.auc, one.exposure.expected))
            changes[f"{worst.group}, to {_VIEW_NAMES[view]}"] = [*protection_advice(seen, worst)]
    views, choice = pd.DataFrame(rows, columns=[*COLUMNS]), choice_noise(seen.algorithm)
    epsilons, delta, bounds = _promise(seen, choice, first_round)
    assumptions = _assumptions(seen, steered)
    return Preflight(views, answers, said, changes, assumptions, epsilons, delta, bounds, choice is not None)


def _together(found: Sequence[GroupExposure], said: Callable[[GroupExposure], str]) -> list[str]:
    """Return each distinct sentence with its groups' names, or without names if all groups share one sentence."""
    groups = names_by((one.group, said(one)) for one in found)
    if len(groups) == 1:
        return [*groups]
    return [f"{', '.join(named)}: {sentence}" for sentence, named in groups.items()]


def _promise(
    seen: VisibleMoves, choice: float | None, first_round: int
) -> tuple[dict[str, float], float, Mapping[str, AttackBound]]:
    """Return the largest epsilons of any client's record, their delta, and their bounds; empty without DP-SGD."""
    rule = accounting.private_rule(seen.local)
    if rule is None:
        return {}, 0.0, {}
    rounds = max(1, round(seen.share_of_clients * seen.rounds))
    everybody = torch.arange(len(seen.federation))
    if rule.noise == "sum":
        attended, copies = torch.full_like(everybody, rounds), most_copies(seen.federation.clients)
        by_view = accounting.epsilons_by_view(rule, attended, choice, copies=copies)
        largest = {view: float(epsilons.max()) for view, epsilons in by_view.items()}
        return largest, rule.delta, {**accounting.bounds_by_view(rule, attended, choice, copies=copies)}
    local = client_trainings(seen.algorithm, seen.setup.local)
    local = local.changed(lambda local: replace(seen.setup, local=local).first_local())
    cohorts = [everybody] * rounds
    private = accounting.PrivateTrainings(seen.federation, cohorts, local, rule, first_round, choice)
    return {"": float(private.epsilons().max())}, rule.delta, {"": private.bound()}


def _assumptions(seen: VisibleMoves, steered: bool) -> list[str]:
    federation = seen.federation
    named = {federation.groups[group]: seen.sum_of_clients(group)[0] for group in federation.groups_with_clients}
    sums = ", ".join(f"{count(clients)} of {group}" for group, clients in named.items())
    lines = []
    if not seen.has(LocalOnly):
        lines.append(f"Clusters match the groups; numbers of clients in a sum: {sums}.")
    if seen.share_of_clients < 1:
        lines.append("Participation is random, so numbers of examples and rounds are averages.")
    if seen.copies == inf:
        lines.append("The attacker knows the family of image transforms and searches it for each record.")
    if steered:
        lines.append("A coordinator's changes of defences are ignored.")
    lines.append("The attacker knows the learning rate and subtracts weight decay, momentum and control variates.")
    lines.append("A predicted AUC assumes that the label is known, and uses the initial model's gradients.")
    lines.append("Attacks that query released models are not predicted; shoal audit measures them after training.")
    return lines
