"""The quantities of IFCA-MIR's Assumptions 1 to 4 and Theorem 4, for least squares on Gaussian inputs.

In the paper eta is both a variance and the learning rate, and alpha both the slack of the initialisation and a
client's weight of loss. Here: ``loss_sd`` (eta of Assumption 2), ``gradient_sd`` (sigma of Assumption 3), ``rate``
(learning rate), ``slack`` (alpha of Assumption 4), ``alpha`` and ``beta`` (weights of loss and of risk).

For f(theta, (x, y)) = (x'theta - y)^2 with x ~ N(0, I) and noise of standard deviation sd, a model at distance a from
the true model has residuals N(0, a^2 + sd^2), so

    F(theta) = a^2 + sd^2            Hessian of F = 2 I, so lambda = L = 2
    variance of f = 2 (a^2 + sd^2)^2            variance of the gradient = 4 ((d + 1) a^2 + d sd^2)
"""

import math
from dataclasses import dataclass

import torch
from mixture import Mixture
from torch import Tensor

LAMBDA = L = 2.0


def loss_variance(distance: float, sd: float) -> float:
    """Variance of the squared residual of one example, for a model at ``distance`` from the true one."""
    return 2 * (distance**2 + sd**2) ** 2


def gradient_variance(distance: float, sd: float, d: int) -> float:
    """Trace of the covariance of one example's gradient, for a model at ``distance`` from the true one."""
    return 4 * ((d + 1) * distance**2 + d * sd**2)


def sampled_variances(distance: float, sd: float, d: int, generator: torch.Generator) -> tuple[float, float]:
    """Both variances by Monte Carlo, from 200,000 new examples."""
    count = 200_000
    x = torch.randn(count, d, generator=generator, dtype=torch.float64)
    residual = distance * x[:, 0] - sd * torch.randn(count, generator=generator, dtype=torch.float64)
    gradient = 2 * residual[:, None] * x
    return float(residual.square().var()), float(gradient.var(dim=0).sum())


def _eigenvalue_range(x: Tensor) -> tuple[float, float]:
    """Least and largest eigenvalue of the mean squared error's Hessian on the inputs x (N, d)."""
    values = torch.linalg.eigvalsh(2 / len(x) * x.T @ x)
    return float(values[0]), float(values[-1])


@dataclass(frozen=True)
class Conditions:
    """The quantities of Assumption 4 and Theorem 4.

    ``clients`` (the paper's n), ``batch`` (B), ``clusters`` (s), ``p``, ``delta_truths`` (Delta), ``initial_distance``
    (the largest one), and the standard deviations of loss and gradient.
    """

    clients: int
    batch: int
    clusters: int
    p: float
    delta_truths: float
    initial_distance: float
    loss_sd: float
    gradient_sd: float
    lam: float = LAMBDA
    smooth: float = L

    @property
    def slack(self) -> float:
        """The largest alpha for which the initialisation condition holds; negative where it holds for none."""
        return 0.5 - self.initial_distance / (self.delta_truths * math.sqrt(self.lam / self.smooth))

    @property
    def batch_needed(self) -> float:
        """B >= s eta^2 / (alpha^2 lambda^2 Delta^4)."""
        return self.clusters * (self.loss_sd / (self.slack * self.lam * self.delta_truths**2)) ** 2

    @property
    def p_needed(self) -> float:
        """p >= log(nB) / n."""
        return math.log(self.clients * self.batch) / self.clients

    @property
    def delta_needed(self) -> float:
        """The right side of the condition on Delta, without the constants and logarithms that O~ hides."""
        a, b, n = self.slack, self.batch, self.clients
        return max(a ** (-2 / 5) * b ** (-1 / 5), a ** (-1 / 3) * n ** (-1 / 6) * b ** (-1 / 3))

    @property
    def factor(self) -> float:
        """1 - p lambda / (8 L), the factor of a round on the distance."""
        return 1 - self.p * self.lam / (8 * self.smooth)

    def epsilon0(self, delta: float) -> float:
        """The bound on epsilon_0 that holds with probability 1 - ``delta``."""
        n, b, a, delta_truths = self.clients, self.batch, self.slack, self.delta_truths
        first = self.gradient_sd / (delta * self.smooth * math.sqrt(self.p * n * b))
        second = (self.loss_sd / (a * self.lam * delta_truths**2)) ** 2 / (delta * b)
        third = self.loss_sd * self.gradient_sd * self.clusters**1.5
        return first + second + third / (delta**1.5 * a * self.lam * self.smooth * delta_truths**2 * math.sqrt(n * b))


def hessian_ranges(mixture: Mixture) -> dict[str, tuple[float, float]]:
    """Eigenvalue ranges of the empirical Hessians: the widest over clients, and over clusters' pooled examples."""
    clients = [_eigenvalue_range(x) for x in mixture.x]
    pooled = [_eigenvalue_range(mixture.x[mixture.cluster == j].flatten(0, 1)) for j in range(len(mixture.truth))]
    return {
        name: (min(low for low, _ in ranges), max(high for _, high in ranges))
        for name, ranges in (("clients", clients), ("clusters", pooled))
    }
