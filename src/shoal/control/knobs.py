"""Defences that a coordinator steers, the regression of their effects, and the coordinator's memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from shoal.core.settings import PositiveFloat, settings
from shoal.engine import ScalableDefense, State, Tensors

MEMORY_DECAY = 0.9
"""The weight of earlier observations at each estimate, because the effect of a defence changes during training."""


@settings
class Knob:
    """A defence or a mechanism of the algorithm whose strength in [0, 1] a coordinator sets for each cluster.

    The risk reduction and the accuracy cost are prior means, which measured changes correct (`Sensitivity`). At the
    start, the defence with the lowest ratio of cost to risk reduction is strengthened first.

    Args:
        defense: a defence of local training at full strength. None means a mechanism of the algorithm, such as
            `Pooling`, that reads the directive itself.
        risk_reduction: the prior mean of the risk reduction at full strength, in attack accuracy by the risk estimator.
        accuracy_cost: the prior mean of the decrease in held-out accuracy at full strength.

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

    The trend is common to all clusters of an estimate, because training continues in all clusters. The regression
    removes the trend by subtracting the mean over clusters. A single cluster, or clusters with equal changes of
    strengths, show nothing about the effects.

    Args:
        prior: the prior mean of each defence's effect at full strength, (J,) float64.
        information: the sum of ``x x'`` over observations, in units of the noise's variance, (J, J) float64.
        evidence: the sum of ``x (change - prior . x)`` over observations, (J,) float64.
        ratio: the noise's standard deviation divided by s.
    """

    prior: Tensor
    information: Tensor
    evidence: Tensor
    ratio: float = 1.0

    def observed(self, strengths: Tensor, change: Tensor) -> "Sensitivity":
        """Return the regression, updated by one estimate of the risks.

        Args:
            strengths: the change of each cluster's strengths, (K, J).
            change: the change of the risk or accuracy in each cluster, (K,); NaN if unknown.
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
        """Return the posterior mean (J,) of the effects b."""
        count = len(self.prior)
        if count == 0:
            return self.prior
        ridge = self.information + self.ratio**2 * torch.eye(count, dtype=torch.float64)
        return self.prior + torch.linalg.solve(ridge, self.evidence)


def allocate(
    demand: float, risk_reduction: Tensor, accuracy_cost: Tensor, budget: float, held: Tensor | None = None
) -> Tensor:
    """Choose strengths (J,) in [0, 1] whose risk reduction is closest to ``demand`` within the ``budget``.

    The result differs as little as possible from the strengths ``held``. If the risk reduction is too large, the
    defence with the highest cost per reduction is weakened first. If the risk reduction is too small, the defence with
    the lowest cost per reduction is strengthened first. If the current strengths are 0, the result is the cheapest
    choice (the fractional knapsack).

    Args:
        demand: the risk reduction to achieve.
        risk_reduction: the risk reduction of each defence at full strength, (J,). A defence with no risk reduction is
            not strengthened.
        accuracy_cost: the cost of each defence at full strength, (J,). Negative costs count as 0.
        budget: the largest total cost.
        held: the current strengths, (J,); None means 0.

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
    """The memory of a coordinator for K clusters and J defences, stored in `State.control`.

    Figures of clusters have the shape (K,), and strengths have the shape (K, J). Risk, accuracy and the fraction over
    the limit come from the last estimate.

    Args:
        demand: the required risk reduction of each cluster.
        over_limit: the fraction of each model's members over their limit.
        best: the highest held-out accuracy of each cluster so far.
        limit_unmet: whether members were over their limit although the defences were as strong as allowed.
        strengths_before: the strengths until the last estimate.
        risk_reduction: the regression of the risk on the strengths.
        accuracy_cost: the regression of the held-out accuracy on the strengths.
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
        """Return the memory before the first estimate."""
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

        If the number of clusters changed, the memory keeps the learned effects, and takes the strengths that the
        algorithm assigned to the new clusters.
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
        """Return the memory as tensors for `State.control`."""
        learned = {f"{name}_{part}": getattr(getattr(self, name), part) for name in _EFFECTS for part in _LEARNED}
        return {**{name: getattr(self, name) for name in self._OF_CLUSTERS}, **learned}


_EFFECTS, _LEARNED = ("risk_reduction", "accuracy_cost"), ("information", "evidence")


def _prior(knobs: Mapping[str, Knob], effect: str) -> Sensitivity:
    """The regression before the first observation."""
    prior = torch.tensor([getattr(knob, effect) for knob in knobs.values()], dtype=torch.float64)
    return Sensitivity(prior, torch.zeros(len(prior), len(prior), dtype=torch.float64), torch.zeros_like(prior))
