"""A coordinator at the server: integral control of each cluster's risk by the cheapest knob first.

The paper's future work is a server that "acts as a coordinator" between accuracy and exposure (IFCA-MIR, section 7).
The loop is ours; `docs/coordinator.md` has its drawing, and what of it is proven and what only measured.
It is asked by the rounds and does not wrap the algorithm: it needs risks, which are estimated after the server's
update, and local training, which no algorithm decides.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from shoal.control.allocation import allocate
from shoal.control.feedback import over_limit_shares, utilities
from shoal.control.knob import Knob
from shoal.control.memory import Memory
from shoal.control.risk_prediction import RiskPrediction
from shoal.core.randomness import Stream
from shoal.core.settings import Count, Fraction, Internal, NonNegativeFloat, PositiveFloat, settings
from shoal.data.federation import Federation
from shoal.engine import ClusterRound, Engine, LocalSGD, State

LOG = logging.getLogger(__name__)

GUESSING = 0.5
"""The balanced accuracy of guessing, below which no limit can be kept by any training."""

LEAST = 0.25
"""The least part of a knob's believed relief that measurements may leave of it."""

SHOWN = ("over_limit", "heldout_accuracy", "limit_unmet")
"""What a coordinator remembers of each cluster that rounds.csv shows."""


@settings
class Coordinator:
    """Turns each estimate of risk into a strength of every knob for every cluster.

    Clients answer one bit: whether their model's risk is above what they tolerate. The server's set point is the share
    of a model's members that may say so. Of cluster k, with share s_k of its members over their limit::

        error   e_k = s_k - target, and 0 where it is within ``hysteresis`` below the target
        demand  d_k <- d_k + gain * e_k where e_k > 0, d_k + release * e_k where e_k < 0 (relief of risk that is wanted)
        price   d_k <- d_k / 2 instead, where held-out accuracy lies below its best so far by more than ``max_cost`` and
                two standard errors of a difference, which a best of many estimates is beyond by luck
        release with ``release_on="interval"`` the last of these three needs as few members whom the upper end of the
                risk's 95 % interval is over: a low estimate by chance releases nothing
        knobs   u_k: changed until they relieve d_k, the cheapest raised first, the dearest lowered first, and their
                costs add up to ``max_cost`` at most (`allocate`)

    and d_k is kept in [0, what these knobs can relieve], so that nothing is wound up which they could not answer. What
    each knob relieves and costs is first believed (`Knob`) and then learned from the clusters (`sensitivity`).

    With gain 0, or where nobody is over its limit, no directive is ever given, and training is that of the algorithm
    alone, bit for bit.

    Args:
        knobs: by the name of the directive.
        target: share of a model's members that may be over their limit.
        hysteresis: by how much the share must fall below the target before knobs are released.
        gain: relief (of balanced accuracy) that is asked for at an estimate, for each unit of e_k, by which the
            share of members over their limit is off the target.
        release: as ``gain``, on the way back.
        release_on: what must be within the members' limits before knobs are released: the "estimate" of the risk, or
            the upper end of its "interval", of which members are asked beside the estimate, in one more bit.
        max_cost: held-out accuracy that knobs may cost.
        audit_factor: what clients are asked about is ``0.5 + audit_factor * (risk - 0.5)``: how many times the
            advantage that the estimator sees a strong attack has, by an audit.
        vote_epsilon: epsilon of each answer of a client, by randomised response: one answer an estimate, two with
            ``release_on="interval"``, and one before the first round with ``prediction``; None: clients answer truly.
        prediction: of the risk before the first round, which sets the first directives; None: these are 0.
        min_clients: the number of members below which a model gets a discount, the directive "price" of `PricedChoice`,
            which makes leaving it dearer for those who are left: the multiplier of the constraint by dual ascent,
            ``mu_k <- max(0, mu_k + price_step * (min_clients - members_k) / min_clients)`` and price_k = -mu_k nats.
            0: no prices.
        price_step: of the dual ascent, in nats.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one, shadow=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> red_team = shoal.RedTeam(every=1, estimator="audit", attack=shoal.Gap())
        >>> coordinator = shoal.Coordinator({"l2": shoal.Knob(shoal.L2(0.1))})
        >>> steered = {"red_team": red_team, "coordinator": coordinator}
        >>> result = shoal.simulate(federation, model, shoal.IFCA(clusters=2), shoal.LocalSGD(), rounds=1, **steered)
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
    vote_epsilon: PositiveFloat | None = None
    prediction: RiskPrediction | None = None
    min_clients: Count = 0
    price_step: NonNegativeFloat = 0.1

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Local training of a cluster under its directive; implements the engine's `LocalDefense`."""
        for name, knob in self.knobs.items():
            strength = at.directive.get(name, 0.0)
            if strength > 0 and knob.defense is not None:
                local = knob.defense.scaled(strength).local(local, at)
        return local

    def start(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """``state`` with the first directives: nothing, or what the predicted risk asks for.

        A predicted cluster has the federation's examples divided by the number of models, and all clients answer
        whether its risk is over their limits, as after an estimate.
        """
        del engine
        memory = Memory.empty(len(state.models), self.knobs)
        if self.prediction is not None:
            each = int(federation.clients.sizes.sum()) / len(state.models) / (federation.classes or 1)
            risk = torch.tensor([self.prediction.risk(each)], dtype=torch.float64)
            together = torch.zeros(len(federation), dtype=torch.int64)
            share = float(over_limit_shares(risk, together, federation, self.vote_epsilon, stream))
            relief, cost = self._sensitivities(memory)
            wanted = max(0.0, self.gain * (share - self.target))
            demand = min(wanted, self._most(relief, cost))
            strengths = allocate(demand, relief, cost, self.max_cost).repeat(len(state.models), 1)
            memory = replace(memory, demand=torch.full_like(memory.demand, demand), strengths=strengths)
        return self._told(state, memory, torch.zeros_like(memory.demand))

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """``state`` with the directives that its risks ask for."""
        shares = over_limit_shares(self.told(state.risks), state.assignment, federation, self.vote_epsilon, stream)
        possible = shares
        if self.release_on == "interval":
            upper, coins = self.told(_upper_ends(state)), stream("upper end")
            possible = over_limit_shares(upper, state.assignment, federation, self.vote_epsilon, coins)
        return self.steered(state, shares, possible, *utilities(state, federation, engine))

    def told(self, risks: Tensor) -> Tensor:
        """What clients are asked about (K,), of models with these ``risks`` (K,)."""
        return GUESSING + self.audit_factor * (risks - GUESSING)

    def steered(self, state: State, shares: Tensor, possible: Tensor, utility: Tensor, error: Tensor) -> State:
        """``state`` with the directives that its risks ask for, from what clients and test examples say of each model.

        Args:
            state: after an estimate of its risks.
            shares: (K,), as `over_limit_shares`.
            possible: (K,), those that must be small before knobs are released; the same, or those of the upper ends.
            utility, error: (K,) each, as `utilities`.
        """
        memory, risks_told = Memory.of(state, self.knobs), self.told(state.risks)
        changed = memory.strengths - memory.strengths_before
        # A model that nobody uses keeps its last risk, which says nothing of a knob.
        relieved = (memory.risk - state.risks).where(~shares.isnan(), torch.nan)
        memory = replace(
            memory,
            relief=memory.relief.observed(changed, relieved),
            cost=memory.cost.observed(changed, memory.heldout_accuracy - utility),
            risk=state.risks.clone(),
            heldout_accuracy=utility,
            best=torch.fmax(memory.best, utility),
            over_limit=shares,
            strengths_before=memory.strengths.clone(),
        )
        relief, cost = self._sensitivities(memory)
        demand, strengths, unmet = memory.demand.clone(), memory.strengths.clone(), torch.zeros_like(memory.demand)
        for k in range(len(state.models)):
            if bool(shares[k].isnan()):
                continue  # Nobody's model: its directive stays what it was.
            fell = float(memory.best[k] - utility[k])
            wanted = self._demand(float(demand[k]), float(shares[k]), float(possible[k]), fell, float(error[k]))
            held = memory.strengths[k]
            most = self._most(relief, cost, held)
            demand[k] = min(wanted, most)
            strengths[k] = allocate(float(demand[k]), relief, cost, self.max_cost, held)
            # Only what knobs have already been at says that they are not enough.
            at_most = wanted >= most > 0 and float(relief @ held) >= most - 1e-9
            unmet[k] = float(at_most and float(shares[k]) > self.target)
            if unmet[k] and not memory.limit_unmet[k]:
                LOG.info(
                    "round %d: cluster %d cannot be brought within its members' limits: %.0f %% of them say that its "
                    "risk of %.3f is too high, with knobs at the most that %.3f of accuracy allows",
                    state.round, k, 100 * float(shares[k]), float(risks_told[k]), self.max_cost,
                )  # fmt: skip
        memory = replace(memory, demand=demand, strengths=strengths, limit_unmet=unmet)
        return self._told(state, memory, self._prices(state))

    def _demand(self, demand: float, share: float, possible: float, fell: float, error: float) -> float:
        """The relief that is wanted of a cluster, before it is bounded by what knobs can relieve."""
        if fell > self.max_cost + 2 * math.sqrt(2) * error:
            return demand / 2
        if share > self.target:
            return demand + self.gain * (share - self.target)
        if possible < self.target - self.hysteresis:
            return max(0.0, demand - self.release * (self.target - possible))
        return demand

    def _sensitivities(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """What full strength of each knob relieves and costs, (J,) each.

        The relief is never taken to be less than ``LEAST`` of what was believed at the start: one unlucky estimate
        would otherwise switch a knob off for good, since of a knob that does not move nothing is learned.
        """
        return memory.relief.effect().maximum(LEAST * memory.relief.prior), memory.cost.effect().clamp(min=0)

    def _most(self, relief: Tensor, cost: Tensor, held: Tensor | None = None) -> float:
        """What all knobs together can relieve at the cost that is allowed, from the strengths that are held."""
        return float(relief @ allocate(float(relief.sum()), relief, cost, self.max_cost, held)) if self.gain else 0.0

    def _prices(self, state: State) -> Tensor:
        """(K,) the price of each model, in nats, at most 0."""
        clusters = len(state.models)
        members = torch.bincount(state.assignment[state.assignment >= 0], minlength=clusters).double()
        before = state.directives.get("price", torch.zeros(0, dtype=torch.float64))
        before = before if len(before) == clusters else torch.zeros(clusters, dtype=torch.float64)
        lack = (self.min_clients - members) / max(1, self.min_clients)
        return -(self.price_step * lack - before).clamp(min=0)

    def _told(self, state: State, memory: Memory, prices: Tensor) -> State:
        """``state`` with the directives, and what the coordinator remembers."""
        directives = {name: memory.strengths[:, j].clone() for j, name in enumerate(self.knobs)}
        if self.min_clients:
            directives["price"] = prices
        return replace(state, directives={**state.directives, **directives}, control=memory.tensors())


def _upper_ends(state: State) -> Tensor:
    """The upper ends (K,) of the risks' intervals; where none is known, the estimate is all there is."""
    return torch.fmax(state.risks, state.risk_intervals[:, 1])
