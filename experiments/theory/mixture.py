"""IFCA's synthetic mixture of linear regressions.

The true model of cluster j is theta*_j = r * Bernoulli(1/2)^d, and a client of that cluster has n examples of
X ~ N(0, I), y = X theta*_j + sigma N(0, 1). Every round each client takes the model of least mean squared error
on all its examples, and model j moves by -rate * (1/m) * the sum of its clients' gradients 2/n X'(X theta - y), where
m counts all clients. `gradient_descent.py` trains it.

Source: Ghosh et al. 2020, arXiv:2006.04088, section 6.1, and the settings of its official code.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream


@dataclass(frozen=True)
class Setting:
    """A mixture's sizes: ``m`` clients in ``p`` clusters, ``n`` examples each, true models of scale ``r`` in ``d``
    dimensions, noise ``sigma``.
    """

    m: int
    n: int
    p: int
    r: float
    sigma: float
    d: int = 1000

    def __post_init__(self) -> None:
        require(min(self.m, self.n, self.p, self.d) >= 1, f"m, n, p and d must be at least 1; got {self}")
        require(self.m % self.p == 0, f"m = {self.m} clients cannot be split evenly into p = {self.p} clusters")
        require(self.r > 0 and self.sigma >= 0, f"r must be above 0 and sigma at least 0; got {self}")


@dataclass(frozen=True, eq=False)
class Mixture:
    """A data set: inputs x (m, n, d), outputs y (m, n), true models (p, d), each client's true cluster (m,)."""

    x: Tensor
    y: Tensor
    truth: Tensor
    cluster: Tensor

    @cached_property
    def normal_equations(self) -> tuple[Tensor, Tensor]:
        """Each cluster's X'X (p, d, d) and X'y (p, d), which give the gradient of all its clients in one product."""
        members = [self.cluster == j for j in range(len(self.truth))]
        pooled = [(self.x[inside].flatten(0, 1), self.y[inside].flatten()) for inside in members]
        return torch.stack([x.T @ x for x, _ in pooled]), torch.stack([x.T @ y for x, y in pooled])

    @cached_property
    def lipschitz(self) -> Tensor:
        """An upper bound on the largest singular value of each client's X / sqrt(n): (m,).

        It is a Lipschitz constant of the square root of the client's loss. The bound is the 16-norm of the eigenvalues
        of XX' / n, which takes three products.
        """
        gram = torch.bmm(self.x, self.x.transpose(1, 2)) / self.x.shape[1]
        scale = gram.diagonal(dim1=1, dim2=2).sum(dim=1)
        power = gram / scale[:, None, None]
        for _ in range(3):
            power = torch.bmm(power, power)
        return (1.0001 * scale * power.square().sum(dim=(1, 2)) ** (1 / 16)).sqrt()


def draw_mixture(setting: Setting, stream: Stream, dtype: torch.dtype = torch.float32) -> Mixture:
    """A random mixture; clients are in the order of their clusters, as in the official code."""
    s = setting
    bits = torch.rand(s.p, s.d, generator=stream("truth").generator()) < 0.5
    truth = s.r * bits.to(dtype)
    x = torch.randn(s.m, s.n, s.d, generator=stream("inputs").generator(), dtype=dtype)
    noise = torch.randn(s.m, s.n, generator=stream("noise").generator(), dtype=dtype)
    cluster = torch.arange(s.m) // (s.m // s.p)
    y = torch.bmm(x, truth[cluster][:, :, None])[:, :, 0] + s.sigma * noise
    return Mixture(x, y, truth, cluster)


def draw_starts(setting: Setting, stream: Stream, runs: int) -> Tensor:
    """Random initial models of ``runs`` runs, Bernoulli(1/2)^d of scale 1 for any r: (runs, p, d)."""
    bits = [torch.rand(setting.p, setting.d, generator=stream("start", run).generator()) < 0.5 for run in range(runs)]
    return torch.stack(bits).float()


def distance_to_truth(models: Tensor, truth: Tensor) -> Tensor:
    """Mean over a run's models of the distance to the nearest true model: (runs, p, d), (k, d) -> (runs,).

    Two models may be near the same true model, as in the official code.
    """
    distances = (models.double()[:, :, None] - truth.double()).norm(dim=-1)
    return distances.min(dim=-1).values.mean(dim=-1)
