"""Coordinator at the server: integral control of each cluster's risk by the cheapest knob first.

The rounds ask it; it does not wrap the algorithm: it needs risks, which are estimated after the server's update, and
local training, which no algorithm decides.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from shoal.control.feedback import over_limit_shares, utilities
from shoal.control.knobs import Knob, Memory, allocate
from shoal.control.risk_prediction import RiskPrediction
from shoal.core.randomness import Stream
from shoal.core.settings import Count, Fraction, Internal, NonNegativeFloat, PositiveFloat, settings
from shoal.data.federation import Federation
from shoal.engine import ClusterRound, Engine, LocalSGD, State

LOG = logging.getLogger(__name__)

CHANCE = 0.5
"""The balanced accuracy at chance; no training can keep a limit below it."""

MIN_REDUCTION = 0.25
"""The smallest share of a knob's prior risk reduction that measurements may leave of it."""

ROUND_FIGURES = ("over_limit", "heldout_accuracy", "limit_unmet")
"""Figures of each cluster in a coordinator's memory that rounds.csv shows."""


@settings
class LimitController:
    """Coordinator: each estimate of risk becomes a strength of every knob for every cluster.

    Clients answer one bit: whether their model's risk is above what they tolerate. The server's set point is the share
    of a model's members that may say so. Of cluster k, with share s_k of its members over their limit::

        error   e_k = s_k - target, and 0 where it is within ``hysteresis`` below the target
        demand  d_k <- d_k + gain * e_k where e_k > 0, d_k + release * e_k where e_k < 0 (risk reduction that is wanted)
        cost    d_k <- d_k / 2 instead, where held-out accuracy is below its best so far by more than ``max_cost`` and
                two standard errors of a difference, which the best of many estimates exceeds by luck
        release with ``release_on="interval"``, e_k < 0 also needs a small share by the upper ends of the risks' 95 %
                intervals: a low estimate by chance releases nothing
        knobs   u_k: changed until they reduce the risk by d_k, the cheapest increased first, the most expensive
                decreased first; their costs add up to at most ``max_cost`` (`allocate`)

    d_k is kept in [0, the reduction that these knobs can give], against integral windup. The effects of each knob are a
    prior (`Knob`) and then learned from the clusters (`Sensitivity`). With gain 0, or where nobody is over its limit,
    no directive is ever given, and training is that of the algorithm alone, bit for bit.

    A server that "acts as a coordinator" between accuracy and exposure is the future work of IFCA-MIR (its section 7);
    the loop is ours.

    Args:
        knobs: by the name of the directive.
        target: share of a model's members that may be over their limit.
        hysteresis: by how much the share must fall below the target before knobs are released.
        gain: reduction (of balanced accuracy) that is demanded at an estimate, per unit of e_k.
        release: as ``gain``, on the way back.
        release_on: figure that must be within the members' limits before knobs are released: the "estimate" of the
            risk, or the upper end of its "interval", about which members are asked in one more bit.
        max_cost: held-out accuracy that knobs may cost.
        audit_factor: slope of the line from the estimate to what a strong attack finds, by audits; the risk reported to
            clients is ``audit_level + audit_factor * (risk - 0.5)``.
        audit_level: what a strong attack finds where the estimate is 0.5, by audits.
        vote_epsilon: epsilon of each answer of a client, by randomised response: one answer an estimate, two with
            ``release_on="interval"``, and one before the first round with ``prediction``; None: clients answer truly.
        prediction: of the risk before the first round, which sets the first directives; None: these are 0.
        min_clients: the number of members below which a model gets a discount, the directive "price" of `PricedChoice`,
            so that its last members stay: the multiplier of the constraint by dual ascent,
            ``mu_k <- max(0, mu_k + price_step * (min_clients - members_k) / min_clients)`` and price_k = -mu_k nats.
            0: no prices.
        price_step: of the dual ascent, in nats.
        known_risks: the risk (N,) that each client's model has to the attacker of its limit for certain, whatever the
            red team estimates, from the state; NaN: nothing is known. None: of no client.

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
        """Local training of a cluster under its directive; implements the engine's `LocalDefense`."""
        for name, knob in self.knobs.items():
            strength = at.directive.get(name, 0.0)
            if strength > 0 and knob.defense is not None:
                local = knob.defense.scaled(strength).local(local, at)
        return local

    def start(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """``state`` with the first directives: 0, or those that the predicted risk demands.

        A predicted cluster has the federation's examples divided by the number of models, and all clients answer
        whether its risk is over their limits, as after an estimate.
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
        """``state`` with the directives that its risks demand."""
        known = None if self.known_risks is None else self.known_risks(state)

        def shares_over(risks: Tensor, coins: Stream) -> Tensor:
            reported = self.reported_risks(risks)
            return over_limit_shares(reported, state.assignment, federation, self.vote_epsilon, coins, known)

        shares = possible = shares_over(state.risks, stream)
        if self.release_on == "interval":
            # Where no interval is known, its upper end is the estimate.
            possible = shares_over(torch.fmax(state.risks, state.risk_intervals[:, 1]), stream("upper end"))
        return self.steered(state, shares, possible, *utilities(state, federation, engine))

    def reported_risks(self, risks: Tensor) -> Tensor:
        """Risks (K,) as reported to clients, from estimates (K,)."""
        return self.audit_level + self.audit_factor * (risks - CHANCE)

    def steered(self, state: State, shares: Tensor, possible: Tensor, utility: Tensor, error: Tensor) -> State:
        """``state`` with the directives that its risks demand, from clients' answers and accuracy on held-out examples.

        Args:
            state: after an estimate of its risks.
            shares: (K,), as `over_limit_shares`.
            possible: (K,), shares that must be small before knobs are released; the same, or those of the upper ends.
            utility, error: (K,) each, as `utilities`.
        """
        memory = Memory.from_state(state, self.knobs)
        changed = memory.strengths - memory.strengths_before
        # A model that nobody uses keeps its last risk, which says nothing of a knob.
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
