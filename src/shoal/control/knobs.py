"""Knobs of a coordinator: their strengths, their effects and how these are learned, and the memory of all that."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from shoal.core.settings import PositiveFloat, settings
from shoal.engine import ScalableDefense, State, Tensors

MEMORY_DECAY = 0.9
"""Weight of what was learned until the last estimate: the effect of a knob changes while a model learns."""


@settings
class Knob:
    """A means whose strength u in [0, 1] is decided anew for each cluster.

    Args:
        defense: a defence of local training, at full strength. None: an algorithm's own means, such as `Pooling`, which
            reads the directive of this knob's name.
        risk_reduction: the fall of a model's risk at full strength, in balanced accuracy by the risk estimator.
        accuracy_cost: the fall of accuracy on held-out examples at full strength.

    Both are prior means, which measured changes correct (`Sensitivity`). At the start their ratio decides the knob that
    moves first.

    Example:
        >>> import shoal
        >>> knob = shoal.Knob(shoal.L2(0.1), risk_reduction=0.04, accuracy_cost=0.01)
        >>> [knob.defense.with_strength(strength).penalty for strength in (0.0, 0.5, 1.0)]
        [0.0, 0.05, 0.1]
    """

    defense: ScalableDefense | None
    risk_reduction: PositiveFloat = 0.05
    accuracy_cost: PositiveFloat = 0.01


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Bayesian linear regression ``change = b . change of strengths + trend + noise`` with b ~ N(prior, s^2 I).

    All clusters of one estimate share the trend, since training continues in all of them; subtracting the clusters'
    mean on both sides removes it. One cluster alone, or clusters whose strengths changed alike, teach nothing.

    Args:
        prior: (J,) float64, the prior mean of the effect of full strength of each of J knobs.
        information: (J, J) float64, the sum of ``x x'`` over observations, in units of the noise's variance.
        evidence: (J,) float64, the sum of ``x (change - prior . x)``.
        ratio: the noise's standard deviation over s.
    """

    prior: Tensor
    information: Tensor
    evidence: Tensor
    ratio: float = 1.0

    def observed(self, strengths: Tensor, change: Tensor) -> "Sensitivity":
        """Return the regression after one more estimate.

        Args:
            strengths: (K, J), the change of each cluster's strengths.
            change: (K,), the change of the figure; NaN where it is not known.
        """
        measured = ~change.isnan()
        if int(measured.sum()) < 2:
            return self
        x = strengths[measured] - strengths[measured].mean(dim=0)
        y = change[measured] - change[measured].mean()
        return Sensitivity(
            self.prior,
            MEMORY_DECAY * self.information + x.T @ x,
            MEMORY_DECAY * self.evidence + x.T @ (y - x @ self.prior),
            self.ratio,
        )

    def effect(self) -> Tensor:
        """(J,) the posterior mean of b."""
        count = len(self.prior)
        if count == 0:
            return self.prior
        ridge = self.information + self.ratio**2 * torch.eye(count, dtype=torch.float64)
        return self.prior + torch.linalg.solve(ridge, self.evidence)


def allocate(
    demand: float, risk_reduction: Tensor, accuracy_cost: Tensor, budget: float, held: Tensor | None = None
) -> Tensor:
    """Strengths u (J,) in [0, 1] with ``risk_reduction . u`` as near to ``demand`` as ``accuracy_cost . u <= budget``
    allows.

    Strengths that are ``held`` change as little as that takes: where there is too much, the knob of the highest cost
    per reduction is lowered first; where there is too little, that of the lowest is raised first. From 0 this is the
    cheapest u of all (the fractional knapsack). Solved anew from 0 at each estimate, two knobs of nearly the same cost
    per reduction would change places whenever noise changes their order.

    Args:
        demand: the reduction that is wanted.
        risk_reduction: (J,) of full strength; a knob of 0 is not raised.
        accuracy_cost: (J,) of full strength; a negative one counts as 0.
        budget: the largest total cost.
        held: (J,) the strengths until now; None: 0.

    >>> allocate(0.05, torch.tensor([0.04, 0.04]), torch.tensor([0.02, 0.01]), 0.02)
    tensor([0.2500, 1.0000])
    >>> allocate(0.05, torch.tensor([0.04, 0.04]), torch.tensor([0.02, 0.01]), 0.02, torch.tensor([0.5, 0.0]))
    tensor([0.5000, 0.7500])
    """
    strengths = torch.zeros_like(risk_reduction) if held is None else held.clone()
    costs = accuracy_cost.clamp(min=0)
    cheapest = sorted(range(len(costs)), key=lambda j: float(costs[j] / risk_reduction[j].clamp(min=1e-12)))
    budget -= float(costs @ strengths)
    demand -= float(risk_reduction @ strengths)
    for j in reversed(cheapest):
        gain, cost, strength = float(risk_reduction[j]), float(costs[j]), float(strengths[j])
        too_expensive = -budget / cost if cost > 0 else 0.0
        too_much = -demand / gain if gain > 0 else 0.0
        lowered = min(strength, max(0.0, too_expensive, too_much))
        strengths[j] = strength - lowered
        budget += lowered * cost
        demand += lowered * gain
    for j in cheapest:
        gain, cost, strength = float(risk_reduction[j]), float(costs[j]), float(strengths[j])
        if demand <= 0 or gain <= 0:
            continue
        affordable = budget / cost if cost > 0 else 1.0
        strengths[j] = min(1.0, strength + max(0.0, min(demand / gain, affordable)))
        raised = float(strengths[j]) - strength
        budget -= raised * cost
        demand -= raised * gain
    return strengths


@dataclass(frozen=True, eq=False)
class Memory:
    """`State.control` of K clusters and J knobs as a value.

    Args:
        demand: (K,), the demanded risk reduction.
        risk, heldout_accuracy, over_limit: (K,), the risk, the held-out accuracy, and the fraction of members over
            their limit, at the last estimate.
        best: (K,), the highest held-out accuracy so far.
        limit_unmet: (K,), whether knobs were at their allowed maximum with members still over their limit.
        strengths, strengths_before: (K, J), the strengths of now and of the last estimate.
        risk_reduction, accuracy_cost: the effect of knobs on the risk and on the held-out accuracy.
    """

    demand: Tensor
    risk: Tensor
    heldout_accuracy: Tensor
    best: Tensor
    over_limit: Tensor
    limit_unmet: Tensor
    strengths: Tensor
    strengths_before: Tensor
    risk_reduction: Sensitivity = field(repr=False)
    accuracy_cost: Sensitivity = field(repr=False)

    _OF_CLUSTERS = (
        "demand", "risk", "heldout_accuracy", "best", "over_limit", "limit_unmet", "strengths", "strengths_before",
    )  # fmt: skip

    @staticmethod
    def empty(clusters: int, knobs: Mapping[str, Knob]) -> "Memory":
        """Return the memory before anything was measured."""
        nothing = torch.zeros(clusters, dtype=torch.float64)
        none = torch.zeros(clusters, len(knobs), dtype=torch.float64)
        unknown = torch.full_like(nothing, torch.nan)
        # Copies: a checkpoint stores no tensor twice.
        return Memory(
            demand=nothing, risk=unknown, heldout_accuracy=unknown.clone(), best=unknown.clone(),
            over_limit=unknown.clone(), limit_unmet=nothing.clone(), strengths=none, strengths_before=none.clone(),
            risk_reduction=_prior(knobs, "risk_reduction"), accuracy_cost=_prior(knobs, "accuracy_cost"),
        )  # fmt: skip

    @staticmethod
    def from_state(state: State, knobs: Mapping[str, Knob]) -> "Memory":
        """Return the memory in ``state``.

        Where the number of clusters has changed, it has what was learned of the knobs, and the strengths that the
        algorithm gave to its new clusters, which stay until an estimate asks for others.
        """
        control, clusters = state.control, len(state.models)
        if "demand" not in control:
            return Memory.empty(clusters, knobs)
        learned = {
            name: replace(_prior(knobs, name), **{part: control[f"{name}_{part}"] for part in _LEARNED})
            for name in _EFFECTS
        }
        same = len(control["demand"]) == clusters
        of_clusters = {name: control[name] for name in Memory._OF_CLUSTERS if same}
        memory = replace(Memory.empty(clusters, knobs), **learned, **of_clusters)
        directives = [state.directives[name] for name in knobs if name in state.directives]
        if same or not directives or any(len(row) != clusters for row in directives) or len(directives) < len(knobs):
            return memory
        strengths = torch.stack(directives, dim=1)
        demand = strengths @ memory.risk_reduction.effect().clamp(min=0)
        return replace(memory, demand=demand, strengths=strengths, strengths_before=strengths.clone())

    def tensors(self) -> Tensors:
        """Return the memory as `State.control`."""
        learned = {f"{name}_{part}": getattr(getattr(self, name), part) for name in _EFFECTS for part in _LEARNED}
        return {**{name: getattr(self, name) for name in self._OF_CLUSTERS}, **learned}


_EFFECTS, _LEARNED = ("risk_reduction", "accuracy_cost"), ("information", "evidence")


def _prior(knobs: Mapping[str, Knob], effect: str) -> Sensitivity:
    """The sensitivity to the knobs before anything is learned."""
    prior = torch.tensor([getattr(knob, effect) for knob in knobs.values()], dtype=torch.float64)
    return Sensitivity(prior, torch.zeros(len(prior), len(prior), dtype=torch.float64), torch.zeros_like(prior))
