"""Gradient averaging on the mixture, from many starts at once: their models are columns of one matrix.

A round takes two products with all inputs: one for the clients' losses, one for the gradients. Most rounds need
neither, and this is exact up to rounding:

- The square root of client i's loss is a norm of its residual, so it changes by at most ``stretch_i`` times as much as
  the model moves. While two models have together moved less than the least (sqrt f_other - sqrt f_chosen) / stretch_i
  since the losses were computed, no client changes its choice (`room`).
- Where the clients of a true cluster all choose the same model, their gradients sum to X'X theta - X'y (`normal`).
"""

import torch
from mixture import Mixture
from torch import Tensor

CONVERGED = 1e-7
"""A run ends when a round changes its models by less than this part of their norm."""

DIVERGED = 1e6
"""A run ends when its models' norm is above this; the truths' norm is below r * sqrt(d)."""

_ROWS = 4096
"""Rows of inputs in one product: 16 MB at d = 1000."""


def descend(mixture: Mixture, models: Tensor, rate: float, rounds: int = 300, *, lazy: bool = True) -> Tensor:
    """Models after ``rounds`` rounds from ``models`` (runs, p, d); diverged runs hold infinities.

    Runs that converge or diverge before are not trained further (`CONVERGED`, `DIVERGED`). With ``lazy`` False every
    round computes every loss and gradient anew.
    """
    ends, alive, memory = models.clone(), torch.arange(len(models)), _Memory(mixture, models)
    for _ in range(rounds):
        if not len(alive):
            break
        now = ends[alive]
        move = rate * (memory.gradient(alive, now) if lazy else fresh(mixture, now)[1])
        now -= move
        size = now.flatten(1).norm(dim=1)
        diverged = ~(size < DIVERGED)
        now[diverged] = torch.inf
        ends[alive] = now
        alive = alive[~diverged & (move.flatten(1).norm(dim=1) >= CONVERGED * size)]
    return ends


def fresh(mixture: Mixture, models: Tensor) -> tuple[Tensor, Tensor]:
    """Every client's loss (m, runs, p) and, for each model, 1/m of the sum of its clients' gradients (runs, p, d)."""
    m, n, d = mixture.x.shape
    runs, p = models.shape[:2]
    columns = models.reshape(runs * p, d).T.contiguous()
    gradient = torch.zeros(d, runs * p, dtype=models.dtype)
    losses = []
    clients = max(1, _ROWS // n)
    for x, y in zip(mixture.x.split(clients), mixture.y.split(clients), strict=True):
        rows = x.reshape(-1, d)
        residual = (rows @ columns).view(len(x), n, runs, p).sub_(y[:, :, None, None])
        losses.append(residual.square().mean(dim=1))
        mine = torch.nn.functional.one_hot(losses[-1].argmin(dim=-1), p)
        residual *= mine.to(models.dtype)[:, None]
        gradient.addmm_(rows.T, residual.view(-1, runs * p))
    return torch.cat(losses), (2 / (m * n)) * gradient.T.reshape(runs, p, d)


def room(losses: Tensor, stretch: Tensor) -> Tensor:
    """How far two models of a run may move together before a client of one may choose the other: (runs, p, p)."""
    m, runs, p = losses.shape
    roots = losses.sqrt()
    choice = losses.argmin(dim=-1)
    margins = (roots - roots.gather(2, choice[..., None])) / stretch[:, None, None]
    least = torch.full((runs, p, p), torch.inf, dtype=losses.dtype)
    place = (torch.arange(runs) * p)[None] + choice
    least.view(runs * p, p).scatter_reduce_(0, place.reshape(-1, 1).expand(-1, p), margins.reshape(m * runs, p), "amin")
    least.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    return 0.999 * least


class _Memory:
    """Of each run: models when its losses were last computed, room since then, and the model of each whole cluster."""

    def __init__(self, mixture: Mixture, models: Tensor) -> None:
        runs, p, _ = models.shape
        self.mixture = mixture
        self.seen = models.clone()
        self.room = torch.zeros(runs, p, p, dtype=models.dtype)
        self.model_of = torch.zeros(runs, len(mixture.truth), dtype=torch.int64)

    def gradient(self, alive: Tensor, now: Tensor) -> Tensor:
        """As `fresh`, of the runs ``alive`` (a,) at models ``now`` (a, p, d)."""
        moved = (now - self.seen[alive]).norm(dim=-1)
        known = (moved[:, :, None] + moved[:, None] < self.room[alive]).flatten(1).all(dim=1)
        gradient = torch.empty_like(now)
        if bool(known.any()):
            gradient[known] = self._whole(now[known], self.model_of[alive[known]])
        if bool((~known).any()):
            losses, gradient[~known] = fresh(self.mixture, now[~known])
            self._remember(alive[~known], now[~known], losses)
        return gradient

    def _remember(self, runs: Tensor, models: Tensor, losses: Tensor) -> None:
        first = torch.stack([(self.mixture.cluster == j).nonzero()[0, 0] for j in range(self.model_of.shape[1])])
        choice = losses.argmin(dim=-1)
        self.model_of[runs] = choice[first].T
        self.seen[runs] = models
        whole = (choice == choice[first][self.mixture.cluster]).all(dim=0)
        self.room[runs] = room(losses, self.mixture.stretch) * whole[:, None, None]

    def _whole(self, now: Tensor, model_of: Tensor) -> Tensor:
        m, n, _ = self.mixture.x.shape
        gradient, every = torch.zeros_like(now), torch.arange(len(now))
        for xx, xy, model in zip(*self.mixture.normal, model_of.T, strict=True):
            gradient[every, model] += now[every, model] @ xx - xy
        return (2 / (m * n)) * gradient
