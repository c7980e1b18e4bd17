"""How strong each knob is, so that the wanted relief is had at the least cost."""

import torch
from torch import Tensor


def allocate(demand: float, relief: Tensor, cost: Tensor, budget: float, held: Tensor | None = None) -> Tensor:
    """Strengths u (J,) in [0, 1] with ``relief . u`` as near to ``demand`` as ``cost . u <= budget`` allows.

    Of what is ``held`` only as much is changed as that takes: where there is too much, the knob of the highest cost for
    its relief is lowered first; where there is too little, that of the least is raised first. From 0, with both sums
    linear in u, this is the cheapest u of all (the fractional knapsack). Solved anew from 0 at each estimate, two knobs
    of nearly the same cost for their relief would change places whenever noise changes their order.

    Args:
        demand: relief that is wanted.
        relief: (J,) of full strength; a knob without relief is not raised.
        cost: (J,) of full strength; a negative one counts as none.
        budget: the most that may be spent.
        held: (J,) the strengths until now; None: 0.

    >>> allocate(0.05, torch.tensor([0.04, 0.04]), torch.tensor([0.02, 0.01]), 0.02)
    tensor([0.2500, 1.0000])
    >>> allocate(0.05, torch.tensor([0.04, 0.04]), torch.tensor([0.02, 0.01]), 0.02, torch.tensor([0.5, 0.0]))
    tensor([0.5000, 0.7500])
    """
    strengths = torch.zeros_like(relief) if held is None else held.clone()
    costs = cost.clamp(min=0)
    cheapest = sorted(range(len(relief)), key=lambda j: float(costs[j] / relief[j].clamp(min=1e-12)))
    budget -= float(costs @ strengths)
    demand -= float(relief @ strengths)
    for j in reversed(cheapest):
        gives, takes, held_now = float(relief[j]), float(costs[j]), float(strengths[j])
        too_dear = -budget / takes if takes > 0 else 0.0
        too_much = -demand / gives if gives > 0 else 0.0
        lowered = min(held_now, max(0.0, too_dear, too_much))
        strengths[j] = held_now - lowered
        budget += lowered * takes
        demand += lowered * gives
    for j in cheapest:
        gives, takes, held_now = float(relief[j]), float(costs[j]), float(strengths[j])
        if demand <= 0 or gives <= 0:
            continue
        affordable = budget / takes if takes > 0 else 1.0
        strengths[j] = min(1.0, held_now + max(0.0, min(demand / gives, affordable)))
        raised = float(strengths[j]) - held_now
        budget -= raised * takes
        demand -= raised * gives
    return strengths
