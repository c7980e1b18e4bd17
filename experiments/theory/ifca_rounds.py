"""Rounds of IFCA and IFCA-MIR on the mixture in float64, by the house's own choice and shares, keeping every iterate.

The risk is a smooth synthetic function of the model that is larger near the truth of a smaller cluster:

    l(theta) = 1/2 + c * sum_j w_j(theta) / |S*_j|      w = softmax(-4 |theta - theta*_j|^2 / Delta^2)

with c such that the sums' ends, where one w_j is 1, differ by ``gap``. As in Algorithm 1 only the choice sees it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from mixture import Mixture
from torch import Tensor

from shoal.algorithms import IFCA, IFCAMIR
from shoal.core.randomness import Stream
from shoal.data import Preferences

Risk = Callable[[Tensor], Tensor]
"""From models (..., d) to risks (...)."""


@dataclass(frozen=True)
class Rule:
    """How a run goes: the averaging, every client's weight of risk, the learning rate."""

    averaging: Literal["gradient", "model"] = "gradient"
    beta: float = 0.0
    rate: float = 0.5


@dataclass(frozen=True, eq=False)
class Course:
    """Models (T + 1, s, d), choices (T + 1, m) and distances to the own truth (T + 1, s), from round 0."""

    models: Tensor
    choices: Tensor
    distances: Tensor


def drawn(sizes: tuple[int, ...], batch: int, d: int, sd: float, stream: Stream) -> tuple[Mixture, Tensor]:
    """A mixture with clusters of ``sizes`` clients, and first models 0.15 Delta from their truths.

    Truths are multiples of Bernoulli(1/2)^d, scaled so that the largest first model has norm 1 (Assumption 4).
    """
    coins = torch.rand(len(sizes), d, generator=stream("truth").generator(), dtype=torch.float64)
    truth = (coins < 0.5).double()
    away = torch.randn(len(sizes), d, generator=stream("start").generator(), dtype=torch.float64)
    start = truth + 0.15 * least_distance(truth) * away / away.norm(dim=1, keepdim=True)
    scale = 1 / float(start.norm(dim=1).max())
    truth, start = scale * truth, scale * start
    cluster = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = torch.randn(len(cluster), batch, d, generator=stream("inputs").generator(), dtype=torch.float64)
    noise = torch.randn(len(cluster), batch, generator=stream("noise").generator(), dtype=torch.float64)
    y = torch.einsum("mnd,md->mn", x, truth[cluster]) + sd * noise
    return Mixture(x, y, truth, cluster), start


def least_distance(truth: Tensor) -> float:
    """The paper's Delta: the least distance between two truths (k, d)."""
    return float(torch.pdist(truth).min())


def synthetic_risk(mixture: Mixture, gap: float) -> Risk:
    """The risk of this file's head; ``gap`` is between a model of the smallest and one of the largest cluster."""
    inverse = 1 / torch.bincount(mixture.cluster).double()
    spread = float(inverse.max() - inverse.min())
    height = inverse * (gap / spread if spread else 0.0)
    width = least_distance(mixture.truth) ** 2 / 4

    def risk(models: Tensor) -> Tensor:
        squared = (models[..., None, :] - mixture.truth).square().sum(dim=-1)
        return 0.5 + torch.softmax(-squared / width, dim=-1) @ height

    return risk


def losses(mixture: Mixture, models: Tensor) -> Tensor:
    """Mean squared error of models (k, d) on each client: (m, k)."""
    return (mixture.x @ models.T - mixture.y[..., None]).square().mean(dim=1)


def chosen(mixture: Mixture, models: Tensor, risk: Risk, beta: float) -> Tensor:
    """Line 12 of Algorithm 1, by `IFCAMIR.choose`: (m,)."""
    weights = torch.full((len(mixture.x),), beta, dtype=torch.float64)
    return IFCAMIR(IFCA(len(models))).choose(losses(mixture, models), risk(models), Preferences(weights, weights))


def play(mixture: Mixture, models: Tensor, rule: Rule, risk: Risk, rounds: int) -> Course:
    """``rounds`` rounds from ``models`` (s, d): full batches, one gradient step, merged by `IFCA.shares`."""
    m, n, _ = mixture.x.shape
    algorithm = IFCA(len(models), averaging=rule.averaging)
    iterates, choices = [models], []
    for _ in range(rounds):
        choices.append(chosen(mixture, models, risk, rule.beta))
        residual = torch.einsum("mnd,md->mn", mixture.x, models[choices[-1]]) - mixture.y
        gradient = 2 / n * torch.einsum("mnd,mn->md", mixture.x, residual)
        models = models - rule.rate * algorithm.shares(choices[-1], torch.full((m,), n)) @ gradient
        iterates.append(models)
    choices.append(chosen(mixture, models, risk, rule.beta))
    every = torch.stack(iterates)
    return Course(every, torch.stack(choices), (every - mixture.truth).norm(dim=-1))


def flip_gap(mixture: Mixture, models: Tensor, client: int, beta: float) -> tuple[float, float]:
    """The risk gap at which a client of cluster 0 leaves model 0 for model 1: by the law, and found by bisection.

    The law: it leaves when alpha (f_1 - f_0) < beta (l_0 - l_1).
    """
    own = losses(mixture, models)[client : client + 1]
    law = (1 - beta) / beta * float(own[0, 1] - own[0, 0])
    weight = torch.tensor([beta], dtype=torch.float64)
    low, high = 0.0, 2 * law + 1
    while (middle := (low + high) / 2) not in (low, high):
        risks = torch.tensor([middle, 0.0], dtype=torch.float64)
        stays = int(IFCAMIR(IFCA(2)).choose(own, risks, Preferences(weight, weight))) == 0
        low, high = (middle, high) if stays else (low, middle)
    return law, high
