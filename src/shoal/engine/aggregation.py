"""The one formula by which every algorithm of the house moves its models."""

import torch
from torch import Tensor

PartialSum = tuple[Tensor, Tensor, Tensor]
"""Of some owners: the models (k,) they move, the sums (k, P) of their ends by their shares, and those shares (k, 1)."""


class Aggregator:
    """Moves K models towards the ends of n owners, while they are still training.

    ``models_k += sum_i W[k, i] * (end_i - models_k)``. Threads add up the ends that they trained together (`part`),
    and the parts are added in float64 in a fixed order (`add`), so memory is K models and a few parts, whatever the
    number of owners.

    Args:
        models: (K, P); left as it is.
        shares: W (K, n); rows sum to at most 1. A row of zeros leaves its model unchanged.

    Source: McMahan et al. 2017 (K = 1); Ghosh et al. 2020, arXiv:2006.04088, Algorithm 1.

    >>> merge = Merge(torch.tensor([[0.0]]), torch.tensor([[0.5, 0.5]]))
    >>> merge.add(merge.part(torch.tensor([0, 1]), torch.tensor([[1.0], [3.0]])))
    >>> merge.models()
    tensor([[2.]])
    """

    def __init__(self, models: Tensor, shares: Tensor) -> None:
        self._models = models
        self._shares = shares.double()
        self._ends = torch.zeros(models.shape, dtype=torch.float64)
        self._counted = torch.zeros(len(models), 1, dtype=torch.float64)

    def partial_sum(self, owners: Tensor, ends: Tensor) -> PartialSum:
        """The sums of the ends (u, P) of ``owners`` (u,), by model, each by its share; any thread may ask."""
        shares = self._shares[:, owners]
        which = torch.nonzero(shares.any(dim=1)).flatten()
        return which, (shares[which].to(ends) @ ends).cpu(), shares[which].sum(dim=1, keepdim=True)

    def add(self, part: PartialSum) -> None:
        """Count a part; the order of parts decides the last bits."""
        which, ends, counted = part
        for k, end, share in zip(which.tolist(), ends, counted, strict=True):
            self._ends[k].add_(end)
            self._counted[k].add_(share)

    def result(self) -> Tensor:
        """(K, P), the moved models, a new tensor."""
        return ((1 - self._counted) * self._models.double() + self._ends).float()


def averaging_weights(assignment: Tensor, weights: Tensor, models: int) -> Tensor:
    """W of the averaging algorithms: the clients of a model share it in proportion to their weights.

    Args:
        choice: (n,) int64, each client's model.
        weights: (n,) at least 0, dimensionless: all ones for equal shares, or numbers of examples.
        models: K.

    Returns:
        (K, n) float64; each row sums to 1, or to 0 where nobody chose the model.

    >>> averaging_weights(torch.tensor([0, 0, 1]), torch.tensor([1.0, 3.0, 1.0]), 3)
    tensor([[0.2500, 0.7500, 0.0000],
            [0.0000, 0.0000, 1.0000],
            [0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    members = torch.nn.functional.one_hot(assignment, models).T.double() * weights.double()
    total = members.sum(dim=1, keepdim=True)
    return torch.where(total > 0, members / total.clamp(min=1e-300), 0.0)
