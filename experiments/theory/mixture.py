"""IFCA's synthetic mixture of linear regressions, trained by gradient averaging from many starts at once.

The truth of cluster j is theta*_j = r * Bernoulli(1/2)^d, and a client of that cluster holds n examples of
X ~ N(0, I), y = X theta*_j + sigma N(0, 1). Every round each client takes the model of least mean squared error
on all its examples, and model j moves by -rate * (1/m) * the sum of its clients' gradients 2/n X'(X theta - y), where
m counts all clients. All starts and models are columns of one matrix, so a round is two products with the inputs.

Source: Ghosh et al. 2020, arXiv:2006.04088, section 6.1, and the settings of its official code.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.checks import require
from shoal.core.randomness import Stream

CONVERGED = 1e-7
"""A run ends when a round changes its models by less than this part of their norm."""

DIVERGED = 1e6
"""A run ends when its models' norm is above this; the truths' norm is below r * sqrt(d)."""

_ROWS = 4096
"""Rows of inputs in one product: 16 MB at d = 1000."""


@dataclass(frozen=True)
class Setting:
    """A mixture: ``m`` clients in ``p`` clusters, ``n`` examples each, truths of scale ``r``, noise ``sigma``."""

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
    """What is drawn: inputs x (m, n, d), outputs y (m, n), truth (p, d), each client's true cluster (m,)."""

    x: Tensor
    y: Tensor
    truth: Tensor
    cluster: Tensor


def draw(setting: Setting, stream: Stream, dtype: torch.dtype = torch.float32) -> Mixture:
    """The mixture of ``stream``: clients are dealt to clusters in order, as in the official code."""
    s = setting
    bits = torch.rand(s.p, s.d, generator=stream("truth").generator()) < 0.5
    truth = s.r * bits.to(dtype)
    x = torch.randn(s.m, s.n, s.d, generator=stream("inputs").generator(), dtype=dtype)
    noise = torch.randn(s.m, s.n, generator=stream("noise").generator(), dtype=dtype)
    cluster = torch.arange(s.m) // (s.m // s.p)
    y = torch.bmm(x, truth[cluster][:, :, None])[:, :, 0] + s.sigma * noise
    return Mixture(x, y, truth, cluster)


def starts(setting: Setting, stream: Stream, runs: int) -> Tensor:
    """The first models of ``runs`` runs, Bernoulli(1/2)^d of scale 1 whatever r is: (runs, p, d)."""
    drawn = [torch.rand(setting.p, setting.d, generator=stream("start", run).generator()) < 0.5 for run in range(runs)]
    return torch.stack(drawn).float()


def nearest(models: Tensor, truth: Tensor) -> Tensor:
    """Each run's mean, over its models, of the distance to the nearest truth: (runs, p, d), (k, d) -> (runs,).

    Two models beside the same truth count as near, as in the official code.
    """
    apart = (models.double()[:, :, None] - truth.double()).norm(dim=-1)
    return apart.min(dim=-1).values.mean(dim=-1)


def step(mixture: Mixture, models: Tensor) -> tuple[Tensor, Tensor]:
    """One round's choices (m, runs) and, for each model, 1/m times the sum of its clients' gradients (runs, p, d)."""
    m, n, d = mixture.x.shape
    runs, p = models.shape[:2]
    columns = models.reshape(runs * p, d).T.contiguous()
    gradient = torch.zeros(d, runs * p, dtype=models.dtype)
    choices = []
    clients = max(1, _ROWS // n)
    for x, y in zip(mixture.x.split(clients), mixture.y.split(clients), strict=True):
        rows = x.reshape(-1, d)
        residual = (rows @ columns).view(len(x), n, runs, p).sub_(y[:, :, None, None])
        choice = residual.square().mean(dim=1).argmin(dim=-1)
        residual *= torch.nn.functional.one_hot(choice, p).to(models.dtype)[:, None]
        gradient.addmm_(rows.T, residual.view(-1, runs * p))
        choices.append(choice)
    return torch.cat(choices), (2 / (m * n)) * gradient.T.reshape(runs, p, d)


def descend(mixture: Mixture, models: Tensor, rate: float, rounds: int = 300) -> Tensor:
    """Models after ``rounds`` rounds from ``models`` (runs, p, d); diverged runs hold infinities.

    Runs that converge or diverge before are not trained further (`CONVERGED`, `DIVERGED`).
    """
    ends, alive = models.clone(), torch.arange(len(models))
    for _ in range(rounds):
        if not len(alive):
            break
        now = ends[alive]
        move = rate * step(mixture, now)[1]
        now -= move
        size = now.flatten(1).norm(dim=1)
        diverged = ~(size < DIVERGED)
        now[diverged] = torch.inf
        ends[alive] = now
        alive = alive[~diverged & (move.flatten(1).norm(dim=1) >= CONVERGED * size)]
    return ends
