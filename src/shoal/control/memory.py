"""Memory of a coordinator from one estimate to the next, as a value and as the tensors of a state."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from shoal.control.knobs import Knob, Sensitivity
from shoal.engine import State, Tensors


@dataclass(frozen=True, eq=False)
class Memory:
    """`State.control` of K clusters and J knobs as a value.

    Args:
        demand: (K,), the risk reduction that is wanted.
        risk, heldout_accuracy, over_limit: (K,), at the last estimate the risk, the held-out accuracy, and the share of
            members over their limit.
        best: (K,), the highest held-out accuracy so far.
        limit_unmet: (K,), whether knobs were at their allowed maximum with members still over their limit.
        strengths, strengths_before: (K, J), those of now and of the last estimate.
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
        """The memory before anything was measured."""
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
        """The memory in ``state``.

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
        """The memory as `State.control`."""
        learned = {f"{name}_{part}": getattr(getattr(self, name), part) for name in _EFFECTS for part in _LEARNED}
        return {**{name: getattr(self, name) for name in self._OF_CLUSTERS}, **learned}


_EFFECTS, _LEARNED = ("risk_reduction", "accuracy_cost"), ("information", "evidence")


def _prior(knobs: Mapping[str, Knob], effect: str) -> Sensitivity:
    """The sensitivity to the knobs before anything is learned."""
    prior = torch.tensor([getattr(knob, effect) for knob in knobs.values()], dtype=torch.float64)
    return Sensitivity(prior, torch.zeros(len(prior), len(prior), dtype=torch.float64), torch.zeros_like(prior))
