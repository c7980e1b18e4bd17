"""Aggregation: the formula by which every algorithm moves its models.

Source: McMahan et al. 2017 (K = 1); Ghosh et al. 2020, arXiv:2006.04088, Algorithm 1.
"""

import torch
from torch import Tensor

PartialSum = tuple[Tensor, Tensor, Tensor]
"""The models (k,) that some clients move, the weighted sums (k, P) of their parameters, and of their weights (k, 1)."""


class Aggregator:
    """Moves K models towards the parameters that n clients trained, while others are still training.

    ``models_k += sum_i W[k, i] * (end_i - models_k)``. Threads add up what they trained together (`partial_sum`), and
    these sums are added in float64 in a fixed order (`add`), so memory is K models and a few sums for any n.

    Args:
        models: (K, P); left as it is.
        weights: W (K, n); rows sum to at most 1. A row of zeros leaves its model unchanged.

    Example:
        >>> import torch
        >>> from shoal.engine import Aggregator
        >>> aggregator = Aggregator(torch.tensor([[0.0]]), torch.tensor([[0.5, 0.5]]))
        >>> aggregator.add(aggregator.partial_sum(torch.tensor([0, 1]), torch.tensor([[1.0], [3.0]])))
        >>> aggregator.result()
        tensor([[2.]])
    """

    def __init__(self, models: Tensor, weights: Tensor) -> None:
        self.parameters = models.shape[1]
        self._models = models
        self._weights = weights.double()
        self._ends = torch.zeros(models.shape, dtype=torch.float64)
        self._added = torch.zeros(len(models), 1, dtype=torch.float64)

    def partial_sum(self, clients: Tensor, ends: Tensor) -> PartialSum:
        """The weighted sums of the ``ends`` (u, P) of ``clients`` (u,), by model; any thread may call this."""
        weights = self._weights[:, clients]
        moved = torch.nonzero(weights.any(dim=1)).flatten()
        return moved, (weights[moved].to(ends) @ ends).cpu(), weights[moved].sum(dim=1, keepdim=True)

    def add(self, partial: PartialSum) -> None:
        """Add a partial sum; the order of calls decides the last bits."""
        moved, ends, weights = partial
        for k, end, weight in zip(moved.tolist(), ends, weights, strict=True):
            self._ends[k].add_(end)
            self._added[k].add_(weight)

    def result(self) -> Tensor:
        """(K, P), the moved models, a new tensor."""
        moved = torch.empty(self._models.shape)
        # Row by row, or three times all models would be in memory in float64.
        for row, model, added, end in zip(moved, self._models, self._added, self._ends, strict=True):
            row.copy_((1 - added) * model.double() + end)
        return moved


def averaging_weights(assignment: Tensor, weights: Tensor, clusters: int) -> Tensor:
    """W of averaging within clusters: each client counts in its cluster's model in proportion to its weight.

    Args:
        assignment: (n,) int64, each client's cluster.
        weights: (n,) at least 0, dimensionless: all ones for equal shares, or numbers of examples.
        clusters: K, their number.

    Returns:
        (K, n) float64; each row sums to 1, or to 0 for a cluster without clients.

    Example:
        >>> import torch
        >>> from shoal.engine import averaging_weights
        >>> averaging_weights(torch.tensor([0, 0, 1]), torch.tensor([1.0, 3.0, 1.0]), 3)
        tensor([[0.2500, 0.7500, 0.0000],
                [0.0000, 0.0000, 1.0000],
                [0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    members = torch.nn.functional.one_hot(assignment, clusters).T.double() * weights.double()
    total = members.sum(dim=1, keepdim=True)
    return torch.where(total > 0, members / total.clamp(min=1e-300), 0.0)
