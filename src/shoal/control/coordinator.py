"""The coordinator at the server: integral control of each cluster's risk with the cheapest defences first."""

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
    """A power law for the advantage of the strongest attack: ``2 A - 1 = factor * n ** -exponent``.

    A is the attack accuracy, and n is the number of training examples per class. Factor and exponent depend on the
    network, the data and the training, and must be measured. The default values are for RMIA against a small network on
    Fashion-MNIST (`docs/results/audit/measured.md`).

    Args:
        factor: the advantage 2 A - 1 with one example per class.
        exponent: the exponent of the number of examples per class.

    Example:
        >>> import shoal
        >>> [round(shoal.RiskPrediction().risk(examples), 2) for examples in (1, 10, 100, 1000)]
        [1.0, 0.79, 0.65, 0.58]
    """

    factor: PositiveFloat = 1.09
    exponent: PositiveFloat = 0.28

    def risk(self, examples_per_class: float) -> float:
        """Predict the balanced attack accuracy in [0.5, 1].

        >>> round(RiskPrediction().risk(25), 3)
        0.721
        """
        return 0.5 + min(1.0, self.factor * max(examples_per_class, 1.0) ** -self.exponent) / 2

    def examples_per_class(self, risk: float) -> float:
        """Return the smallest number of examples per class whose predicted risk is at most ``risk``; 0 if any number
        suffices.

        The result times the number of classes is a value for `CFL.min_examples`.

        Raises:
            InputError: the risk is at most 0.5 or above 1.

        >>> round(RiskPrediction().examples_per_class(0.721)), RiskPrediction().examples_per_class(1.0)
        (25, 0.0)
        """
        require(0.5 < risk <= 1, f"'risk' must be above 0.5 and at most 1 (got {risk:g})")
        if risk >= self.risk(1):
            return 0.0
        return (self.factor / (2 * risk - 1)) ** (1 / self.exponent)


LOG = logging.getLogger(__name__)

CHANCE = 0.5
"""The chance level of a balanced attack accuracy, and the smallest limit that training can meet."""

MIN_REDUCTION = 0.25
"""The lower bound on a defence's measured risk reduction, as a fraction of the prior."""

ROUND_FIGURES = ("over_limit", "heldout_accuracy", "limit_unmet")
"""The figures of each cluster that a coordinator adds to rounds.csv."""


@settings
class LimitController:
    """A coordinator that sets the strength of each defence in each cluster after every risk estimate.

    A knob is a defence, or a mechanism of the algorithm, with a strength in [0, 1]. Each client answers one bit:
    whether the risk of its model is above the client's limit. For each cluster the coordinator computes the fraction s
    of clients over their limit, and updates the required risk reduction d:

    1. If the fraction s is above ``target``, the risk reduction d grows by ``gain * (s - target)``.
    2. If the fraction s is below ``target - hysteresis``, the risk reduction d shrinks by ``release * (target - s)``.
       With ``release_on = "interval"``, the upper ends of the risks' 95 % intervals decide whether the risk reduction d
       shrinks.
    3. If the held-out accuracy is below its best value by more than ``max_cost`` plus two standard errors of a
       difference, the risk reduction d is halved, and the first two rules do not apply.
    4. The strengths are set to reduce the risk by d at a total cost of at most ``max_cost`` (`allocate`).

    The risk reduction d is between 0 and the largest reduction that the defences can achieve. The effect of a defence
    starts from a prior (`Knob`) and is learned from all clusters (`Sensitivity`). With gain 0, or while no client is
    over its limit, all directives are 0, and the coordinator changes no bit of the trained models.

    Args:
        knobs: the steered defences, by the name of their directive.
        target: the allowed fraction of a cluster's clients whose risk is above their limit.
        hysteresis: the margin below ``target``: defences are weakened only if the fraction of clients over their limit
            is below ``target - hysteresis``.
        gain: the speed of strengthening. If the fraction s of clients over their limit is above ``target``, an estimate
            adds ``gain * (s - target)`` to the required risk reduction (in attack accuracy).
        release: the speed of weakening. If the fraction s of clients over their limit is below ``target - hysteresis``,
            an estimate subtracts ``release * (target - s)`` from the required risk reduction.
        release_on: the figure that clients compare with their limits before defences are weakened: the "estimate" of
            the risk, or the upper end of the 95 % "interval". With "interval", each client sends two answers.
        max_cost: the largest loss of held-out accuracy by all defences together.
        audit_factor: the slope of a strong attack's accuracy against the estimated risk, measured by audits. The risk
            reported to clients is ``audit_level + audit_factor * (risk - 0.5)``.
        audit_level: the accuracy of a strong attack at an estimated risk of 0.5, measured by audits.
        vote_epsilon: the epsilon of randomised response for each answer; by default answers are exact. A client answers
            once per estimate (twice with ``release_on = "interval"``) and, with ``prediction``, once before the first
            round.
        prediction: the prediction of the risk before the first round, which sets the first directives; by default the
            first directives are 0.
        min_clients: the number of clients below which a model gets a discount on its loss when clients choose a model
            (directive "price"). The discount is at least 0, and changes by ``price_step * (min_clients - clients) /
            min_clients`` nats per estimate. 0 disables discounts.
        price_step: the step, in nats, by which discounts change after each estimate; see ``min_clients``.
        known_risks: a function from the state to the certain risk of each client's model, (N,), NaN if unknown;
            ``None`` means that all risks are unknown.

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
        """Set the first directives, which are 0 without a prediction of the risk.

        The prediction of the risk assumes clusters of equal size. All clients answer whether the predicted risk is
        above their limit.
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
        """Set the directives for the risks in the state."""
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
        """Convert estimated risks (K,) to the risks (K,) that are reported to clients."""
        return self.audit_level + self.audit_factor * (risks - CHANCE)

    def steer(self, state: State, shares: Tensor, possible: Tensor, utility: Tensor, error: Tensor) -> State:
        """Set the directives from the clients' answers and the held-out accuracy.

        Args:
            shares: the fraction of each model's members over their limit, (K,).
            possible: the fraction of each model's members that could be over their limit, (K,), which must be small
                before defences are weakened.
            utility: the held-out accuracy of each model, (K,).
            error: the standard error of the held-out accuracy, (K,).
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
                    "round %d: cluster %d stays above its members' limits: %.0f %% of the members answer that the "
                    "risk of %.3f is too high, although the defences are as strong as 'max_cost' = %.3f allows",
                    state.round, k, 100 * float(shares[k]), float(self.reported_risks(state.risks)[k]), self.max_cost,
                )  # fmt: skip
        memory = replace(memory, demand=demand, strengths=strengths, limit_unmet=unmet)
        return self._directed(state, memory, self._prices(state))

    def _demand(self, demand: float, share: float, possible: float, fell: float, error: float) -> float:
        """Return a cluster's required risk reduction, without an upper bound."""
        if fell > self.max_cost + 2 * math.sqrt(2) * error:
            return demand / 2
        if share > self.target:
            return demand + self.gain * (share - self.target)
        if possible < self.target - self.hysteresis:
            return max(0.0, demand - self.release * (self.target - possible))
        return demand

    def _effects(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return the risk reduction and accuracy cost of each defence at full strength, (J,) each.

        The reduction is at least `MIN_REDUCTION` of its prior. Otherwise one unlucky estimate could switch a defence
        off forever, because only changes of its strength are observed.
        """
        reduction = memory.risk_reduction
        return reduction.effect().maximum(MIN_REDUCTION * reduction.prior), memory.accuracy_cost.effect().clamp(min=0)

    def _most(self, reduction: Tensor, cost: Tensor, held: Tensor | None = None) -> float:
        """Return the largest risk reduction of all defences within the allowed cost."""
        if not self.gain:
            return 0.0
        return float(reduction @ allocate(float(reduction.sum()), reduction, cost, self.max_cost, held))

    def _prices(self, state: State) -> Tensor:
        """Return the price of each model in nats, (K,), at most 0."""
        clusters = len(state.models)
        members = torch.bincount(state.assignment[state.assignment >= 0], minlength=clusters).double()
        before = state.directives.get("price", torch.zeros(0, dtype=torch.float64))
        before = before if len(before) == clusters else torch.zeros(clusters, dtype=torch.float64)
        lack = (self.min_clients - members) / max(1, self.min_clients)
        return -(self.price_step * lack - before).clamp(min=0)

    def _directed(self, state: State, memory: Memory, prices: Tensor) -> State:
        """Return ``state`` with the directives and the coordinator's memory."""
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
    """Return the fraction of each model's members whose risk is above their limit, (K,); NaN without members.

    Each client answers one bit and does not send its limit. With ``epsilon`` the answers use randomised response
    (Warner 1965): an answer is true with probability p = e^epsilon / (1 + e^epsilon). The server corrects a received
    fraction s to (s - (1 - p)) / (2 p - 1), clipped to [0, 1]. The answers to one estimate are epsilon-differentially
    private.

    Args:
        risks: the risks reported to clients, (K,).
        assignment: the model of each client, (N,); -1 if the client has no model and does not answer.
        federation: the clients.
        epsilon: the epsilon of randomised response; None means true answers.
        stream: the random stream for randomised response.
        known: each client's risk that is certain before an estimate, (N,), or NaN; None without such risks.
    """
    asked = torch.nonzero(assignment >= 0).flatten()
    model = assignment[asked]
    thresholds, ids = federation.preferences.threshold[asked], federation.ids[asked]
    risk = risks[model] if known is None else torch.fmax(risks[model], known[asked])
    answers = over_limit_answers(risk, thresholds, ids, epsilon, stream)
    return shares_of_answers(answers, model, len(risks), epsilon)


def over_limit_answers(risks: Tensor, thresholds: Tensor, ids: Tensor, epsilon: float | None, stream: Stream) -> Tensor:
    """Return whether each client's reported risk (n,) is above the client's limit (n,), by randomised response."""
    coins = stream("answers").seeds(ids).double() / 2**63
    return (risks > thresholds) ^ (coins < _flip_probability(epsilon))


def shares_of_answers(answers: Tensor, model: Tensor, clusters: int, epsilon: float | None) -> Tensor:
    """Return the corrected fraction of positive ``answers`` (n,) per ``model`` (n,), as (K,)."""
    flipped = _flip_probability(epsilon)
    members = torch.bincount(model, minlength=clusters).double()
    positive = torch.zeros(clusters, dtype=torch.float64).index_add_(0, model, answers.double())
    return ((positive / members - flipped) / (1 - 2 * flipped)).clamp(0, 1)


def _flip_probability(epsilon: float | None) -> float:
    """The probability of a false answer."""
    return 0.0 if epsilon is None else 1 / (1 + math.exp(epsilon))


def utilities(state: State, federation: Federation, engine: Engine) -> tuple[Tensor, Tensor]:
    """Return each model's accuracy for its members, and the standard error, (K,) float64 each; NaN without members.

    The accuracy is measured on the members' hold-out examples, or on the server's examples if no member has hold-out
    examples. A regression uses minus the mean loss instead of the accuracy.
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
"""The prefix of columns with directives in `rounds.csv`."""


@dataclass(frozen=True, eq=False)
class RecordedDirectives:
    """A coordinator that repeats recorded directives; implements the engine protocol `SteeringRule`.

    Reference federations use the directives of the attacked federation.

    Args:
        coordinator: the coordinator of the attacked run, which sets the first directives.
        by_round: the directives, (K,) float64 each, by the round after which they were set. If a round is missing or K
            differs, the directives do not change.
        stream: the root random stream of the attacked run, for the clients' answers before the first round.

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
        """Return the state with the first directives of the attacked run."""
        return self.coordinator.start(state, federation, engine, self.stream("coordinator", 0))

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """Return the state with the directives that were recorded after the state's round."""
        recorded = self.by_round.get(state.round, {})
        same = {name: values for name, values in recorded.items() if len(values) == len(state.models)}
        return replace(state, directives={**state.directives, **same})

    @staticmethod
    def from_rows(
        coordinator: EngineCoordinator, rows: Sequence[Mapping[str, float]], stream: Stream
    ) -> "RecordedDirectives":
        """Read the directives from the rows of `rounds.csv`, with one row per round and cluster, in order."""
        by_round: dict[int, list[Mapping[str, float]]] = {}
        for row in rows:
            by_round.setdefault(int(row["round"]), []).append(row)
        tensors = {
            number: {name: torch.tensor(values, dtype=torch.float64) for name, values in directives_of(some).items()}
            for number, some in by_round.items()
        }
        return RecordedDirectives(coordinator, tensors, stream)


def directives_of(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the directives (K,) by name, from the rows of `rounds.csv` for one round, one per cluster, in order.

    Example:
        >>> from shoal.control import directives_of
        >>> directives_of([{"round": 1, "cluster": k, "directive.l2": k / 2} for k in (0, 1)])
        {'l2': [0.0, 0.5]}
    """
    names = [column for column in rows[0] if column.startswith(DIRECTIVE_COLUMN)] if rows else []
    return {name.removeprefix(DIRECTIVE_COLUMN): [row[name] for row in rows] for name in names}
