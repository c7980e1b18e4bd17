"""Models before they were drawn to their mean, and the numbers of clients that the mean was weighted by.

`Pooling` turns the models ``theta'_k`` of a round into ``theta_k = (1 - rho) theta'_k + rho sum_j w_j theta'_j``, where
w_j is the share of the clients that trained model j. Their mean is that of what they were made of, so

    theta'_k = (theta_k - rho sum_j w_j theta_j) / (1 - rho)

A client knows rho, and is sent all models, but not w. A gradient of a dense layer has little length in directions in
which inputs vary little, unlike the difference of two models: so w is the least-squares solution for moves that are
short in the metric of the inputs' inverse second moments. In a federation of known size it is a fraction of that.
"""

import torch
from torch import Tensor

_RIDGE = 1e-4
"""Added to second moments, in means of their eigenvalues."""


def moves_without_pooling(models: Tensor, share: float, cohort: int | None, layers: Tensor, inputs: Tensor) -> Tensor:
    """The moves (T, K, P) in float64 of models (T + 1, K, P) from what was sent to what was made before pooling.

    Args:
        models: before the first and after each of T rounds; K >= 2.
        share: rho, in [0, 1).
        cohort: the number of clients of a round; None: unknown.
        layers: (T + 1, K, h, d), the models in a dense layer.
        inputs: (M, d), what comes into it for some records.

    Example:
        >>> import torch
        >>> from shoal.attacks.span.pooled_models import moves_without_pooling
        >>> start, step = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), torch.tensor([[0.5, 0.0], [0.2, 0.0]])
        >>> weights = torch.tensor([0.25, 0.75])
        >>> after = 0.5 * (start + step) + 0.5 * weights @ (start + step)
        >>> models, inputs = torch.stack([start, after]), torch.tensor([[1.0, 0.0], [2.0, 1e-3]])
        >>> moves_without_pooling(models, 0.5, 4, models[:, :, None], inputs)[0].round(decimals=4) + 0.0
        tensor([[0.5000, 0.0000],
                [0.2000, 0.0000]], dtype=torch.float64)
    """
    inputs = inputs.double()
    values, vectors = torch.linalg.eigh(inputs.T @ inputs)
    metric = vectors / (values.clamp(min=0) + _RIDGE * values.mean()).sqrt()
    moves = models.double().diff(dim=0)
    for t, (before, after, made) in enumerate(zip(layers[:-1], layers[1:], models[1:].double(), strict=True)):
        sent, there = before.double() @ metric, after.double() @ metric
        # The mean over k of theta_k / (1 - rho) - start_k, less rho / (1 - rho) sum_j w_j theta_j, is to be short; the
        # weights sum to 1, so one of them is left out.
        target = (there / (1 - share) - sent).mean(dim=0) - share / (1 - share) * there[-1]
        columns = share / (1 - share) * (there[:-1] - there[-1]).flatten(1).T
        free = torch.linalg.lstsq(columns, target.flatten()[:, None]).solution.flatten()
        weights = torch.cat([free, 1 - free.sum()[None]])
        if cohort is not None:
            weights = _of_counts(weights, cohort)
        moves[t] += share / (1 - share) * (made - weights @ made)
    return moves


def _of_counts(weights: Tensor, cohort: int) -> Tensor:
    """The nearest weights (K,) that are numbers of clients, in all ``cohort``, by largest remainder."""
    exact = weights.clamp(min=0) * cohort / weights.clamp(min=0).sum()
    counts = exact.floor()
    missing = cohort - int(counts.sum())
    counts[(exact - counts).argsort(descending=True)[:missing]] += 1
    return counts / cohort
