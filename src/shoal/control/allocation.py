"""How strong each knob is, so that the wanted relief is had at the least cost."""

import torch
from torch import Tensor


def allocate(demand: float, relief: Tensor, cost: Tensor, budget: float) -> Tensor:
    """Strengths u (J,) in [0, 1] with the largest ``min(relief . u, demand)`` at the least ``cost . u <= budget``.

    Both are linear in u, so the knob of least cost for its relief goes first (the fractional knapsack).

    Args:
        demand: relief that is wanted.
        relief: (J,) of full strength; a knob without relief stays off.
        cost: (J,) of full strength; a negative one counts as none.
        budget: the most that may be spent.

    >>> allocate(0.05, torch.tensor([0.04, 0.04]), torch.tensor([0.02, 0.01]), 0.02)
    tensor([0.2500, 1.0000])
    """
    strengths = torch.zeros_like(relief)
    costs = cost.clamp(min=0)
    for j in sorted(range(len(relief)), key=lambda j: float(costs[j] / relief[j].clamp(min=1e-12))):
        if demand <= 0 or float(relief[j]) <= 0:
            continue
        affordable = 1.0 if float(costs[j]) == 0 else budget / float(costs[j])
        strengths[j] = max(0.0, min(1.0, demand / float(relief[j]), affordable))
        demand -= float(strengths[j] * relief[j])
        budget -= float(strengths[j] * costs[j])
    return strengths
