"""Coordinator at the server: integral control of each cluster's risk by the cheapest knob first.

The rounds ask it; it does not wrap the algorithm: it needs risks, which are estimated after the server's update, and
local training, which no algorithm decides.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from shoal.control.knobs import Knob, Memory, allocate
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Count, Fraction, Internal, NonNegativeFloat, PositiveFloat, settings
from shoal.data.federation import Federation
from shoal.engine import ClusterRound, Engine, LocalSGD, State, SteeringRule as EngineCoordinator, Tensors
from shoal.models.model import NegativeLoss, accuracy


@settings
class RiskPrediction:
    """Advantage of the strongest attack, ``2 A - 1 = factor * n ** -exponent`` with n training examples per class.

    Centralised training follows a power law of this kind. Its two numbers depend on network, data and training, and
    must be measured (`docs/results/audit/measured.md`: 1.09 and 0.28 by RMIA, a small network on Fashion-MNIST).

    Args:
        factor: the advantage with one example per class.
        exponent: the exponent of the number of examples per class, above 0.

    Example:
        >>> import shoal
        >>> [round(shoal.RiskPrediction().risk(examples), 2) for examples in (1, 10, 100, 1000)]
        [1.0, 0.79, 0.65, 0.58]
    """

    factor: PositiveFloat = 1.09
    exponent: PositiveFloat = 0.28

    def risk(self, examples_per_class: float) -> float:
        """Predict the balanced accuracy A in [0.5, 1].

        >>> round(RiskPrediction().risk(25), 3)
        0.721
        """
        return 0.5 + min(1.0, self.factor * max(examples_per_class, 1.0) ** -self.exponent) / 2

    def examples_per_class(self, risk: float) -> float:
        """Return the smallest number of examples per class with a predicted risk of at most ``risk``; 0 for any number.

        Times the number of classes, it suits an algorithm's smallest number of examples (`CFL.min_examples`).

        Raises:
            InputError: a risk that no number of examples reaches.

        >>> round(RiskPrediction().examples_per_class(0.721)), RiskPrediction().examples_per_class(1.0)
        (25, 0.0)
        """
        require(0.5 < risk <= 1, f"'risk' must be above 0.5 and at most 1; got {risk:g}")
        if risk >= self.risk(1):
            return 0.0
        return (self.factor / (2 * risk - 1)) ** (1 / self.exponent)


LOG = logging.getLogger(__name__)

CHANCE = 0.5
"""The balanced accuracy at chance; no training meets a limit below it."""

MIN_REDUCTION = 0.25
"""The lower bound on a knob's measured risk reduction, as a share of its prior."""

ROUND_FIGURES = ("over_limit", "heldout_accuracy", "limit_unmet")
"""Figures of each cluster in a coordinator's memory, for rounds.csv."""


@settings
class LimitController:
    """A coordinator that turns each estimate of risk into a strength of every knob for every cluster.

    Clients answer one bit: whether their model's risk is above their limit. For cluster k, where s_k is the fraction of
    members over their limit::

        error   e_k = s_k - target, and 0 within ``hysteresis`` below the target
        demand  d_k <- d_k + gain * e_k if e_k > 0, d_k + release * e_k if e_k < 0 (demanded risk reduction)
        cost    d_k <- d_k / 2 instead, if held-out accuracy is below its best by more than ``max_cost`` and two
                standard errors of a difference, since the best of many estimates is also lucky
        release with ``release_on="interval"``, e_k < 0 also needs a small share by the upper ends of the risks' 95 %
                intervals, so that a low estimate by chance releases nothing
        knobs   u_k: changed until they reduce the risk by d_k, the cheapest increased first, the most expensive
                decreased first; their costs add up to at most ``max_cost`` (`allocate`)

    d_k stays in [0, the largest reduction of these knobs], against integral windup. The effects of each knob start from
    a prior (`Knob`) and are learned from the clusters (`Sensitivity`). With gain 0, or while no member is over its
    limit, all directives are 0 and training is bit-identical to the algorithm alone.

    IFCA-MIR (section 7) proposes a server that "acts as a coordinator" as future work; the loop is ours.

    Args:
        knobs: the knobs, by the name of their directive.
        target: the allowed fraction of a model's members over their limit.
        hysteresis: the distance of that fraction below the target at which knobs are released.
        gain: demanded reduction (of balanced accuracy) per estimate and unit of e_k.
        release: the gain for releasing.
        release_on: figure that must be within the members' limits to release knobs: the "estimate" of the risk, or the
            upper end of its "interval", which takes one more bit from members.
        max_cost: largest cost of knobs in held-out accuracy.
        audit_factor: slope from the estimate to a strong attack's accuracy, from audits; the risk reported to clients
            is ``audit_level + audit_factor * (risk - 0.5)``.
        audit_level: a strong attack's accuracy at an estimate of 0.5, from audits.
        vote_epsilon: epsilon of each answer of a client, by randomised response: one answer per estimate, two with
            ``release_on="interval"``, and one before the first round with ``prediction``; None: exact answers.
        prediction: prediction of the risk before the first round, for the first directives; None: these are 0.
        min_clients: a model with fewer members gets a discount, the directive "price" of `PricedChoice`, to keep its
            last members: ``mu_k <- max(0, mu_k + price_step * (min_clients - members_k) / min_clients)`` by dual
            ascent, and price_k = -mu_k nats. 0: no prices.
        price_step: the step of the dual ascent, in nats.
        known_risks: function from the state to the certain risk (N,) of each client's model towards the attacker in the
            client's limit, apart from the red team's estimate; NaN: unknown. None: unknown for all.

    Example:
        >>> import shoal.toy
        >>> federation, model, _ = shoal.toy.two_groups()
        >>> red_team = shoal.RedTeam(every=1, estimator="audit", attack=shoal.Gap())
        >>> coordinator = shoal.LimitController({"l2": shoal.Knob(shoal.L2(0.1))})
        >>> steered = {"red_team": red_team, "coordinator": coordinator}
        >>> settings = federation, model, shoal.IFCA(clusters=2), shoal.LocalSGD()
        >>> result = shoal.Run(shoal.Simulation(*settings, rounds=1, **steered)).train()
        >>> result.rounds["over_limit"].tolist(), result.rounds["directive.l2"].tolist()
        ([0.0, 1.0], [0.0, 1.0])
    """

    knobs: Annotated[Mapping[str, Knob], Internal()] = field(default_factory=dict)
    target: Fraction = 0.1
    hysteresis: Fraction = 0.05
    gain: NonNegativeFloat = 0.1
    release: NonNegativeFloat = 0.02
    release_on: Literal["estimate", "interval"] = "estimate"
    max_cost: NonNegativeFloat = 0.01
    audit_factor: PositiveFloat = 1.0
    audit_level: Fraction = CHANCE
    vote_epsilon: PositiveFloat | None = None
    prediction: RiskPrediction | None = None
    min_clients: Count = 0
    price_step: NonNegativeFloat = 0.1
    known_risks: Annotated[Callable[[State], Tensor] | None, Internal()] = None

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Return the local training of a cluster under its directive; implements the engine's `LocalDefense`."""
        for name, knob in self.knobs.items():
            strength = at.directive.get(name, 0.0)
            if strength > 0 and knob.defense is not None:
                local = knob.defense.with_strength(strength).local(local, at)
        return local

    def start(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """Set the first directives: 0, or those for the predicted risk.

        The prediction assumes clusters of equal size, and all clients answer as after an estimate.
        """
        memory = Memory.empty(len(state.models), self.knobs)
        if self.prediction is not None:
            examples_per_class = int(federation.clients.sizes.sum()) / len(state.models) / (federation.classes or 1)
            risk = torch.tensor([self.prediction.risk(examples_per_class)], dtype=torch.float64)
            one_cluster = torch.zeros(len(federation), dtype=torch.int64)
            share = float(over_limit_shares(risk, one_cluster, federation, self.vote_epsilon, stream))
            effects = self._effects(memory)
            demand = min(max(0.0, self.gain * (share - self.target)), self._most(*effects))
            strengths = allocate(demand, *effects, self.max_cost).repeat(len(state.models), 1)
            memory = replace(memory, demand=torch.full_like(memory.demand, demand), strengths=strengths)
        return self._directed(state, memory, torch.zeros_like(memory.demand))

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """Set the directives for the state's risks."""
        known = None if self.known_risks is None else self.known_risks(state)

        def shares_over(risks: Tensor, coins: Stream) -> Tensor:
            reported = self.reported_risks(risks)
            return over_limit_shares(reported, state.assignment, federation, self.vote_epsilon, coins, known)

        shares = possible = shares_over(state.risks, stream)
        if self.release_on == "interval":
            # Where no interval is known, its upper end is the estimate.
            possible = shares_over(torch.fmax(state.risks, state.risk_intervals[:, 1]), stream("upper end"))
        return self.steer(state, shares, possible, *utilities(state, federation, engine))

    def reported_risks(self, risks: Tensor) -> Tensor:
        """Convert estimates (K,) to the risks (K,) reported to clients."""
        return self.audit_level + self.audit_factor * (risks - CHANCE)

    def steer(self, state: State, shares: Tensor, possible: Tensor, utility: Tensor, error: Tensor) -> State:
        """Set the directives from clients' answers and accuracy on held-out examples.

        Args:
            state: the state after an estimate of its risks.
            shares: (K,), from `over_limit_shares`.
            possible: (K,), shares that must be small to release knobs: ``shares``, or those of the upper ends.
            utility, error: (K,) each, from `utilities`.
        """
        memory = Memory.from_state(state, self.knobs)
        changed = memory.strengths - memory.strengths_before
        # The unchanged risk of a model without members tells nothing about a knob.
        reduction = (memory.risk - state.risks).where(~shares.isnan(), torch.nan)
        memory = replace(
            memory,
            risk_reduction=memory.risk_reduction.observed(changed, reduction),
            accuracy_cost=memory.accuracy_cost.observed(changed, memory.heldout_accuracy - utility),
            risk=state.risks.clone(),
            heldout_accuracy=utility,
            best=torch.fmax(memory.best, utility),
            over_limit=shares,
            strengths_before=memory.strengths.clone(),
        )
        effects = self._effects(memory)
        demand, strengths, unmet = memory.demand.clone(), memory.strengths.clone(), torch.zeros_like(memory.demand)
        for k in range(len(state.models)):
            if bool(shares[k].isnan()):
                continue  # Nobody's model: its directive stays what it was.
            fell = float(memory.best[k] - utility[k])
            wanted = self._demand(float(demand[k]), float(shares[k]), float(possible[k]), fell, float(error[k]))
            held = memory.strengths[k]
            most = self._most(*effects, held)
            demand[k] = min(wanted, most)
            strengths[k] = allocate(float(demand[k]), *effects, self.max_cost, held)
            # Only knobs that have been at their maximum already are known not to be enough.
            at_most = wanted >= most > 0 and float(effects[0] @ held) >= most - 1e-9
            unmet[k] = float(at_most and float(shares[k]) > self.target)
            if unmet[k] and not memory.limit_unmet[k]:
                LOG.info(
                    "round %d: cluster %d cannot be brought within its members' limits: %.0f %% of them say that its "
                    "risk of %.3f is too high, with knobs at the most that %.3f of accuracy allows",
                    state.round, k, 100 * float(shares[k]), float(self.reported_risks(state.risks)[k]), self.max_cost,
                )  # fmt: skip
        memory = replace(memory, demand=demand, strengths=strengths, limit_unmet=unmet)
        return self._directed(state, memory, self._prices(state))

    def _demand(self, demand: float, share: float, possible: float, fell: float, error: float) -> float:
        """The risk reduction that is wanted of a cluster, before it is bounded by what knobs can give."""
        if fell > self.max_cost + 2 * math.sqrt(2) * error:
            return demand / 2
        if share > self.target:
            return demand + self.gain * (share - self.target)
        if possible < self.target - self.hysteresis:
            return max(0.0, demand - self.release * (self.target - possible))
        return demand

    def _effects(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Risk reduction and accuracy cost of each knob at full strength, (J,) each.

        The reduction is at least `MIN_REDUCTION` of its prior: one unlucky estimate would otherwise switch a knob off
        for good, since nothing is learned of a knob that does not move.
        """
        reduction = memory.risk_reduction
        return reduction.effect().maximum(MIN_REDUCTION * reduction.prior), memory.accuracy_cost.effect().clamp(min=0)

    def _most(self, reduction: Tensor, cost: Tensor, held: Tensor | None = None) -> float:
        """The largest risk reduction of all knobs together at the allowed cost, from the strengths that are held."""
        if not self.gain:
            return 0.0
        return float(reduction @ allocate(float(reduction.sum()), reduction, cost, self.max_cost, held))

    def _prices(self, state: State) -> Tensor:
        """(K,) the price of each model, in nats, at most 0."""
        clusters = len(state.models)
        members = torch.bincount(state.assignment[state.assignment >= 0], minlength=clusters).double()
        before = state.directives.get("price", torch.zeros(0, dtype=torch.float64))
        before = before if len(before) == clusters else torch.zeros(clusters, dtype=torch.float64)
        lack = (self.min_clients - members) / max(1, self.min_clients)
        return -(self.price_step * lack - before).clamp(min=0)

    def _directed(self, state: State, memory: Memory, prices: Tensor) -> State:
        """``state`` with the directives and the coordinator's memory."""
        directives = {name: memory.strengths[:, j].clone() for j, name in enumerate(self.knobs)}
        if self.min_clients:
            directives["price"] = prices
        return replace(state, directives={**state.directives, **directives}, control=memory.tensors())


def over_limit_shares(
    risks: Tensor,
    assignment: Tensor,
    federation: Federation,
    epsilon: float | None,
    stream: Stream,
    known: Tensor | None = None,
) -> Tensor:
    """Return the fraction (K,) of each model's members with a risk above their threshold; NaN without members.

    Thresholds stay with the clients, because each answers one bit. With ``epsilon`` the answers are by randomised
    response (Warner 1965), true with probability p = e^epsilon / (1 + e^epsilon), which is epsilon-differentially
    private per estimate; the server corrects the fraction s that it receives to (s - (1 - p)) / (2 p - 1), kept in [0,
    1].

    Args:
        risks: (K,), the risks reported to clients.
        assignment: (N,), each client's model; -1: none, and no answer.
        federation: the clients.
        epsilon: the epsilon of randomised response; None: true answers.
        stream: the stream of the flipped answers.
        known: (N,), the certain risk of each client's model, whatever is estimated; NaN: unknown. None: unknown for
            all.
    """
    asked = torch.nonzero(assignment >= 0).flatten()
    model = assignment[asked]
    thresholds, ids = federation.preferences.threshold[asked], federation.ids[asked]
    risk = risks[model] if known is None else torch.fmax(risks[model], known[asked])
    answers = over_limit_answers(risk, thresholds, ids, epsilon, stream)
    return shares_of_answers(answers, model, len(risks), epsilon)


def over_limit_answers(risks: Tensor, thresholds: Tensor, ids: Tensor, epsilon: float | None, stream: Stream) -> Tensor:
    """Return the clients' part of `over_limit_shares`: the answers (n,) bool of clients with ``ids`` (n,) to the
    reported risks (n,) of their models and the thresholds (n,) that they tolerate.
    """
    coins = stream("answers").seeds(ids).double() / 2**63
    return (risks > thresholds) ^ (coins < _flip_probability(epsilon))


def shares_of_answers(answers: Tensor, model: Tensor, clusters: int, epsilon: float | None) -> Tensor:
    """Count the ``answers`` (n,) of clients by their ``model`` (n,): shares (K,)."""
    flipped = _flip_probability(epsilon)
    members = torch.bincount(model, minlength=clusters).double()
    positive = torch.zeros(clusters, dtype=torch.float64).index_add_(0, model, answers.double())
    return ((positive / members - flipped) / (1 - 2 * flipped)).clamp(0, 1)


def _flip_probability(epsilon: float | None) -> float:
    """The probability of an answer that is not true."""
    return 0.0 if epsilon is None else 1 / (1 + math.exp(epsilon))


def utilities(state: State, federation: Federation, engine: Engine) -> tuple[Tensor, Tensor]:
    """Accuracy of each model for its members, and its standard error, (K,) float64 each; NaN without members.

    The accuracy is measured on the hold-out examples of the model's members, who send counts; if clients have none, on
    the server's shadow set. In a regression it is minus the mean loss.
    """
    metric = NegativeLoss(engine.model.loss) if federation.classes is None else accuracy
    values, errors = [], []
    for k, model in enumerate(state.models):
        held = federation.holdout.take(torch.nonzero(state.assignment == k).flatten())
        if len(held.indices):
            rows = held.indices.to(held.y.device)
            outputs, labels = engine.outputs(model, held.x, rows).cpu(), held.y[rows].cpu()
        elif bool((state.assignment == k).any()) and len(federation.shadow):
            outputs, labels = engine.outputs(model, federation.shadow.x).cpu(), federation.shadow.y.cpu()
        else:
            values.append(math.nan)
            errors.append(math.nan)
            continue
        of_examples = metric(outputs, labels).double()
        values.append(float(of_examples.mean()))
        errors.append(float(of_examples.std(correction=0)) / math.sqrt(len(of_examples)))
    return torch.tensor(values, dtype=torch.float64), torch.tensor(errors, dtype=torch.float64)


DIRECTIVE_COLUMN = "directive."
"""Prefix of the names of `rounds.csv`'s columns with directives."""


@dataclass(frozen=True, eq=False)
class RecordedDirectives:
    """Coordinator that repeats recorded directives; implements the engine's protocol `SteeringRule`.

    Reference federations must train as the attacked federation did. The server told every client these directives, so
    an attacker knows them.

    Args:
        coordinator: the attacked run's coordinator, for the first directives.
        by_round: (K,) float64 per directive, by the round before it. If a round is missing, or K differs, directives
            stay.
        stream: the root of the attacked run's random streams, for the clients' answers before the first round.

    Example:
        >>> import shoal
        >>> from shoal.control import RecordedDirectives
        >>> rows = [{"round": 5, "cluster": k, "directive.l2": k / 2} for k in (0, 1)]
        >>> coordinator = shoal.LimitController({"l2": shoal.Knob(shoal.L2(0.1))})
        >>> recorded = RecordedDirectives.from_rows(coordinator, rows, shoal.Stream(0))
        >>> recorded.by_round[5]["l2"]
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """

    coordinator: EngineCoordinator
    by_round: Mapping[int, Tensors]
    stream: Stream

    def start(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """Return the first directives of the attacked run, with its clients' answers."""
        return self.coordinator.start(state, federation, engine, self.stream("coordinator", 0))

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """Return the directives of the last round of ``state``."""
        recorded = self.by_round.get(state.round, {})
        same = {name: values for name, values in recorded.items() if len(values) == len(state.models)}
        return replace(state, directives={**state.directives, **same})

    @staticmethod
    def from_rows(
        coordinator: EngineCoordinator, rows: Sequence[Mapping[str, float]], stream: Stream
    ) -> "RecordedDirectives":
        """Return the directives in `rounds.csv`, one row per round and cluster, in order."""
        by_round: dict[int, list[Mapping[str, float]]] = {}
        for row in rows:
            by_round.setdefault(int(row["round"]), []).append(row)
        tensors = {
            number: {name: torch.tensor(values, dtype=torch.float64) for name, values in directives_of(some).items()}
            for number, some in by_round.items()
        }
        return RecordedDirectives(coordinator, tensors, stream)


def directives_of(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the directives (K,) by name in the rows of `rounds.csv` of one round, one per cluster, in order.

    Example:
        >>> from shoal.control import directives_of
        >>> directives_of([{"round": 1, "cluster": k, "directive.l2": k / 2} for k in (0, 1)])
        {'l2': [0.0, 0.5]}
    """
    names = [column for column in rows[0] if column.startswith(DIRECTIVE_COLUMN)] if rows else []
    return {name.removeprefix(DIRECTIVE_COLUMN): [row[name] for row in rows] for name in names}
