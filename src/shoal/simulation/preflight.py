"""What a simulation will show of its records, by the rule of exposure, before its first round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, exp, inf, isfinite, nan, sqrt
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor

from shoal.algorithms import CFL, PACFL, FedEM, FedRC, FedRep, FedSoft, LocalOnly, MetricPrivacy
from shoal.algorithms.wrapper import with_bases
from shoal.algorithms.wrappers.shared_body import head_of
from shoal.audit.preflight import Exposure, LayerShape, Moves, layer_shapes, most_exposed
from shoal.audit.records import CLIENT, OUTSIDER, SERVER
from shoal.core.formats import count, decimal, number
from shoal.core.representation import one_line
from shoal.defenses import Augmentation, LaplaceNoise, accounting
from shoal.engine import State, client_trainings
from shoal.simulation.coordination import choice_noise

if TYPE_CHECKING:
    from shoal.simulation.simulation import Simulation

VIEWS = (SERVER, CLIENT, OUTSIDER)

COLUMNS = (
    "view", "group", "verdict", "recognised", "clients", "examples", "rounds", "layer", "inputs", "outputs", "capacity",
    "distinct", "auc.low", "auc.high",
)  # fmt: skip
"""The columns of `Preflight.views`."""

_EXAMPLES = 2000
"""Examples by which the rank of what layers read is computed."""

_MOST = 1 << 24
"""Clients beyond which no advice goes."""

_MOST_PASSES = 1000
"""Passes beyond which none goes."""

_ATTACKER = {
    SERVER: "The server, which sees each client's updates",
    CLIENT: "A client, which sees the models of every round",
    OUTSIDER: "An outsider who also has the initial models",
}
"""Who sees what, in words."""

_LINEAR_OPTIMIZERS = ("SGD", "ASGD")
"""Optimizers whose steps are sums of gradients."""


@dataclass(frozen=True, eq=False)
class Preflight:
    """Which records each view could recognise by the span of moves, before anything is trained.

    It says nothing of other attacks, such as those that query the released models.

    Args:
        views: one row per view and group, with `COLUMNS`. "verdict": as `shoal.audit.preflight.Exposure`, of the client
            or sum that shows most; "recognised": the share of the group's records that are; "clients" and "examples":
            behind a move; "rounds": from which on; the layer that gives most away, and its numbers; "auc.low" and
            "auc.high": what the verdict allows for the AUC of the span attack.
        sentences: on each view, a sentence a group.
        changes: what would change it, for the groups that show most.
        assumptions: of the rule, and the sizes of clusters.
        epsilons: of a record after all rounds, with DP-SGD: for every view, "", or by view, with noise in the sum.
        delta: of these.
        choice: whether they cover a client's choice of model.
    """

    views: pd.DataFrame
    sentences: Mapping[str, Sequence[str]]
    changes: Sequence[str]
    assumptions: Sequence[str]
    epsilons: Mapping[str, float] = field(default_factory=dict)
    delta: float = 0.0
    choice: bool = False
    __repr__ = one_line

    def flat(self) -> dict[str, float | str]:
        """The keys and values of ``shoal preflight --json``; of these gates limit ``views.<view>.<group>.auc.high``."""
        flat: dict[str, float | str] = {}
        for row in self.views.to_dict("records"):
            key = f"views.{row['view']}.{row['group']}"
            flat |= {f"{key}.{name}": row[name] for name in COLUMNS[2:]}
        known = {view: epsilon for view, epsilon in self.epsilons.items() if isfinite(epsilon)}
        flat |= {f"epsilon.{view}".removesuffix("."): epsilon for view, epsilon in known.items()}
        flat |= {"delta": self.delta} if known else {}
        return flat

    def __str__(self) -> str:
        return "\n\n".join("\n".join([title, *(f"- {line}" for line in lines)]) for title, lines in self.parts())

    def parts(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Titles and their sentences."""
        yield from ((_ATTACKER[view], said) for view, said in self.sentences.items())
        if self.epsilons:
            said = [_promise(view, epsilon, self.delta) for view, epsilon in self.epsilons.items()]
            yield "What DP-SGD promises", said if self.choice else [*said, "A client's choice of model is not covered."]
        last = (("What would change it", self.changes), ("What this assumes", self.assumptions))
        yield from ((title, said) for title, said in last if said)


def preflight(simulation: "Simulation") -> Preflight:
    """The rule of exposure on every view and group of a simulation.

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
    plan = _Plan(simulation)
    rows, said, changes = [], {view: [] for view in VIEWS}, []
    for view in VIEWS:
        if not plan.layers:
            said[view].append(plan.nothing)
            continue
        found = [plan.exposed(view, group) for group in simulation.federation.groups_with_clients]
        rows += [one.row() for one in found]
        said[view] = [one.sentence() for one in found]
        if view != OUTSIDER:
            worst = max(found, key=lambda one: (one.exposure.auc[0], one.exposure.auc[1]))
            changes += plan.changes(worst)
    views, choice = pd.DataFrame(rows, columns=[*COLUMNS]), choice_noise(simulation.algorithm)
    epsilons, delta = plan.promise(choice)
    return Preflight(views, said, changes, plan.assumptions(), epsilons, delta, choice is not None)


@dataclass(frozen=True, eq=False)
class RecognisedRisks:
    """The risk that records certainly have by the rule of exposure, which no red team's queries show.

    Of a cluster as it is now, over all rounds of the simulation. The balanced accuracy of an attack that recognises
    records is taken for the least AUC that the rule then predicts.

    Args:
        simulation: with the view of its figures, and those that clients' limits name.
    """

    simulation: "Simulation"

    def __call__(self, state: State) -> Tensor:
        """(N,) float64 of each client's model to the attacker of its limit; NaN where the rule recognises nothing."""
        federation, assignment = self.simulation.federation, state.assignment
        sizes = federation.clients.sizes
        views = federation.preferences.views(self.simulation.view)
        risks = torch.full((len(federation),), torch.nan, dtype=torch.float64)
        members = torch.bincount(assignment[assignment >= 0], minlength=len(state.models))
        # A client sees sums over its cluster, the server each client alone.
        mean = [ceil(float(sizes[assignment == k].double().mean())) if n else 0 for k, n in enumerate(members.tolist())]
        for i, (view, k, size) in enumerate(zip(views, assignment.tolist(), sizes.tolist(), strict=True)):
            if view == CLIENT and k >= 0 and mean[k]:
                risks[i] = self._least(view, mean[k], int(members[k]))
            elif view == SERVER and k >= 0 and size:
                risks[i] = self._least(view, size, 1)
        return risks

    def _least(self, view: str, size: int, clients: int) -> float:
        if (view, size, clients) not in self._known:
            exposure = self._plan.most(self._plan.moves(view, size, clients)) if self._plan.layers else None
            recognised = exposure is not None and exposure.verdict == "recognised"
            self._known[view, size, clients] = exposure.auc[0] if exposure is not None and recognised else nan
        return self._known[view, size, clients]

    @cached_property
    def _plan(self) -> "_Plan":
        return _Plan(self.simulation)

    @cached_property
    def _known(self) -> dict[tuple[str, int, int], float]:
        return {}


@dataclass(frozen=True)
class _Exposed:
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
            layer.name, layer.inputs, layer.outputs, one.capacity, one.distinct, *one.auc,
        )  # fmt: skip

    def sentence(self) -> str:
        """What the rule says of the group."""
        one, layer = self.exposure, self.exposure.layer
        after = "" if self.view == OUTSIDER else f" after {_rounds(one.rounds)}"
        what = f"'{layer.name}', a layer of {count(layer.inputs)} inputs and {count(layer.outputs)} outputs"
        shown = f"{self.inputs()} in {what}"
        if one.verdict == "recognised":
            return f"{self.group}: every record of {self.whose} can be recognised{after}: {shown}."
        if one.verdict == "hidden":
            return f"{self.group}: the records of {self.whose} are hidden from this attack: {shown}{self.why()}."
        return f"{self.group}: records of {self.whose} may be recognised in part: {shown}{self.why()}."

    def inputs(self) -> str:
        """The distinct inputs in words."""
        examples, distinct = self.moves.examples_seen(self.exposure.rounds), self.exposure.distinct
        if distinct == examples:
            return f"{count(examples)} {self.noun}"
        return f"{count(distinct)} inputs of {count(examples)} {self.noun}"

    def why(self) -> str:
        """Why they are not recognised."""
        one, noise = self.exposure, ", under noise" if self.moves.noise else ""
        if one.capacity > one.distinct:
            return noise or ", whose moves are no plain sums of gradients"
        many = f"{count(one.capacity)} direction{'s' * (one.capacity > 1)}"
        return f", which shows {many} in {_rounds(one.rounds)}{noise}"


class _Plan:
    """The layers, sizes and local training of a simulation."""

    def __init__(self, simulation: "Simulation") -> None:
        self.simulation, self.federation = simulation, simulation.federation
        self.local, self.bases = simulation.setup.first_local(), [*with_bases(simulation.algorithm)]
        augmentation = self.local.augmentation
        still = isinstance(augmentation, Augmentation) and not (
            augmentation.rotation or augmentation.shift or augmentation.crop
        )
        self.copies = 1.0 if augmentation is None else 2.0 if still else inf

    @property
    def nothing(self) -> str:
        """Why the rule says nothing."""
        if self._has(LocalOnly):
            return "nothing is sent, so there is nothing to see but the models that clients release."
        return "no dense layer, convolution or embedding is sent, and the rule is of no other."

    def _has(self, *kinds: type) -> bool:
        return any(isinstance(base, kinds) for base in self.bases)

    @cached_property
    def layers(self) -> tuple[LayerShape, ...]:
        """The layers whose moves are sent."""
        if self._has(LocalOnly):
            return ()
        federation, model = self.federation, self.simulation.setup.model
        x = torch.cat([part.x[:_EXAMPLES] for part in (federation.clients, federation.test, federation.shadow)])
        # Transformed images have all dimensions, also where those as they are lack some.
        layers = layer_shapes(model, x[:_EXAMPLES], ranks=self.copies == 1)
        heads = [head_of(model.layout, base.head) for base in self.bases if isinstance(base, FedRep)]
        kept = {slot.name for head in heads for slot in model.layout.slots if bool(head[slot.start])}
        return tuple(layer for layer in layers if f"{layer.name}.weight" not in kept)

    def clusters(self, group: int) -> int:
        """The clients that train the model of a group's clients, where clusters find the groups."""
        clients, groups = len(self.federation), len(self.federation.groups_with_clients)
        of_group = int((self.federation.group == group).sum())
        if self._has(CFL, PACFL):
            return of_group
        models = next((int(getattr(base, "clusters")) for base in self.bases if hasattr(base, "clusters")), 1)  # noqa: B009
        if models == 1 or self._has(FedSoft, FedEM, FedRC):
            return clients
        return ceil(of_group / (models // groups)) if models >= groups else ceil(clients / models)

    def moves(self, view: str, size: int, clients: int) -> Moves:
        """What a view sees of clients with ``size`` examples: of one, or of a sum of so many."""
        local, participation = self.local, self.simulation.participation
        passes, steps = local.passes_of(size), local.steps_of(size)
        rounds, share = self.simulation.rounds, min(1.0, steps * local.batch(size) / size)
        if view == SERVER:
            rounds, clients, participation = max(1, round(participation * rounds)), 1, 1.0
        else:
            share *= participation
        summed, merged = max(1.0, clients * participation), 1
        if view == OUTSIDER:
            passes, steps, merged, rounds = passes * rounds, steps * rounds, rounds, 1
            # Of what was trained on in any of them.
            share = 1 - (1 - share) ** merged
        return Moves(
            size * clients, rounds, passes, merged, share or 1.0, self.copies,
            noise=self._noise(steps, passes, summed), exact=self._exact(view),
        )  # fmt: skip

    def _noise(self, steps: int, passes: int, clients: float) -> float:
        """The noise of a move in units of what one example adds at most."""
        rule, filtered = self.local.gradient_privacy, self.simulation.setup.client_filter
        noise = 0.0 if rule is None else rule.noise_multiplier * sqrt(steps * clients) / passes
        if isinstance(filtered, LaplaceNoise) and filtered.noise_multiplier is not None:
            # Of the update's own length, which no example exceeds.
            laplace = filtered.noise_multiplier * sqrt(clients / self.simulation.setup.model.parameters)
            noise = sqrt(noise**2 + laplace**2)
        return noise

    def _exact(self, view: str) -> bool:
        """Whether moves are sums of (error x input), but for noise whose size is known."""
        optimizer, filtered = self.local.optimizer, self.simulation.setup.client_filter
        known = filtered is None or (isinstance(filtered, LaplaceNoise) and filtered.epsilon is None)
        linear = optimizer is None or optimizer.name in _LINEAR_OPTIMIZERS
        return known and linear and (view == SERVER or not self._has(MetricPrivacy))

    def exposed(self, view: str, group: int) -> _Exposed:
        """What a view sees of a group."""
        name, noun = self.federation.groups[group], self.federation.kind
        sizes = self.federation.clients.sizes[self.federation.group == group]
        sizes = sizes[sizes > 0]
        if view != SERVER:
            clients = self.clusters(group)
            mean = ceil(float(sizes.double().mean()))
            moves = self.moves(view, mean, clients)
            exposure = self.most(moves)
            recognised = float(exposure.verdict == "recognised")
            whose = f"the {count(clients)} clients of a sum" if clients > 1 else "a client alone in its cluster"
            return _Exposed(view, name, exposure, moves, recognised, clients, whose, noun)
        by_size = {size: self.most(self.moves(view, size, 1)) for size in sizes.unique().tolist()}
        open_to = [size for size, exposure in by_size.items() if exposure.verdict == "recognised"]
        shown = max(open_to, default=min(by_size))
        inside = sizes[sizes <= shown] if open_to else sizes[:0]
        whose = "every client"
        if open_to and shown < max(by_size):
            whose = f"{count(len(inside))} of {count(len(sizes))} clients, those with at most {count(shown)} {noun},"
        recognised = float(inside.sum() / sizes.sum())
        return _Exposed(view, name, by_size[shown], self.moves(view, shown, 1), recognised, 1, whose, noun)

    def most(self, moves: Moves, layers: Sequence[LayerShape] = ()) -> Exposure:
        """The exposure by the layer that gives most away."""
        exposure = most_exposed(layers or self.layers, moves)
        assert exposure is not None
        return exposure

    def changes(self, worst: _Exposed) -> Iterator[str]:
        """What would end the exact attack of a view on a group, and what would hide every record from it."""
        if worst.exposure.verdict == "hidden":
            return
        moves, clients = worst.moves, worst.clients
        size = moves.examples // clients
        noise = sqrt(self.local.steps_of(size) * clients) / self.local.passes_of(size)
        widest = max((one.inputs for one in self.layers if one.reads_data and one.positions == 1), default=0)

        def narrower(less: int) -> Exposure:
            most = [min(one.inputs, widest - less) if one.reads_data else one.inputs for one in self.layers]
            return self.most(moves, [replace(one, inputs=n) for one, n in zip(self.layers, most, strict=True)])

        def summed(more: int) -> Exposure:
            of_all = clients + more
            return self.most(replace(moves, examples=size * of_all, noise=moves.noise * sqrt(of_all / clients)))

        def noisier(tenths: int) -> Exposure:
            return self.most(replace(moves, noise=noise * tenths / 10))

        def transformed(passes: int) -> Exposure:
            return self.most(replace(moves, copies=inf, passes=passes))

        sums = "clients of a secure sum" if worst.view == SERVER else "clients of a cluster"
        options: list[tuple[str, Callable[[int], str], Callable[[int], Exposure], int]] = [
            (
                "inputs, as a fixed map of features makes them",
                lambda k: f"at most {count(widest - k)}",
                narrower,
                widest - 1,
            ),
            (sums, lambda k: f"at least {count(clients + k)}", summed, _MOST),
        ]
        if not moves.noise:
            options.append(("noise multiplier of DP-SGD", lambda k: f"at least {number(k / 10)}", noisier, _MOST))
        if self.federation.kind == "images" and self.copies == 1:
            passes = "passes a round over transformed images, against who searches the transform"
            options.append((passes, lambda k: f"at least {count(k)}", transformed, _MOST_PASSES))
        for what, words, seen, most in options:
            ends = _first(lambda k, seen=seen: seen(k).verdict != "recognised", most)
            hides = _first(lambda k, seen=seen: seen(k).verdict == "hidden", most)
            exact = worst.exposure.verdict == "recognised" and ends not in (None, hides) and seen is not noisier
            parts = [f"{words(ends)} end the exact attack"] if exact and ends is not None else []
            parts += [] if hides is None else [f"{words(hides)} hide every record from it"]
            if parts:
                yield f"{worst.group}, {worst.view}: {what}: {', '.join(parts)}."

    def promise(self, choice: float | None) -> tuple[dict[str, float], float]:
        """The epsilons of a record, the largest of all clients, and their delta; none without DP-SGD."""
        simulation, rule = self.simulation, accounting.private_rule(self.local)
        if rule is None:
            return {}, 0.0
        rounds, everybody = (
            max(1, round(simulation.participation * simulation.rounds)),
            torch.arange(len(self.federation)),
        )
        if rule.noise == "sum":
            by_view = accounting.epsilons_by_view(rule, torch.full_like(everybody, rounds), choice)
            return {view: float(epsilons.max()) for view, epsilons in by_view.items()}, rule.delta
        local = client_trainings(simulation.algorithm, simulation.setup.local)
        local = local.changed(lambda local: replace(simulation.setup, local=local).first_local())
        count = self.federation, [everybody] * rounds, local, rule, simulation.first_round
        return {"": float(accounting.federation_epsilons(*count, choice).max())}, rule.delta

    def assumptions(self) -> list[str]:
        """What the rule takes for granted of this simulation."""
        federation = self.federation
        named = {federation.groups[group]: self.clusters(group) for group in federation.groups_with_clients}
        sums = ", ".join(f"{count(clients)} of {group}" for group, clients in named.items())
        lines = []
        if not self._has(LocalOnly):
            lines.append(f"Clients that train one model, where clusters find the groups: {sums}.")
        if self.simulation.participation < 1:
            lines.append("Clients take part by chance, so examples behind a move and rounds are means.")
        if self.copies == inf:
            lines.append("The attacker knows the family of transforms, and searches it for each record.")
        if self.simulation.coordinator is not None:
            lines.append("Defences that a coordinator steers are left out.")
        lines.append("The attacker knows the learning rate and subtracts weight decay, momentum and control variates.")
        lines.append("Only the span of moves is judged: attacks that query released models are not.")
        return lines


def _rounds(number: int) -> str:
    return "one round" if number == 1 else f"{count(number)} rounds"


def _first(holds: Callable[[int], bool], most: int) -> int | None:
    """The least k in 1..most for which something holds that goes on to hold; None: for none."""
    low, high = 0, 1
    while high < most and not holds(high):
        low, high = high, 2 * high
    high = min(high, most)
    if high < 1 or not holds(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _promise(view: str, epsilon: float, delta: float) -> str:
    """What an epsilon says of membership, in words."""
    # The largest difference of true and false positive rates of any test under (epsilon, delta)-differential privacy.
    ratio = exp(-epsilon)
    accuracy = min(1.0, (1 + (1 - ratio + 2 * delta * ratio) / (1 + ratio)) / 2)
    bound = f"no attack on a record has a balanced accuracy above {decimal(accuracy)}"
    if accuracy > 0.995:
        bound = "that bounds no attack noticeably"
    whose = f"of view '{view}'" if view else "of every view"
    return f"Epsilon {number(epsilon)} of a record at delta {number(delta)} after all rounds, {whose}: {bound}."
