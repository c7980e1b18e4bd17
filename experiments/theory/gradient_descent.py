"""Gradient averaging on the mixture, from many starts at once: their models are columns of one matrix.

A round takes two products with all inputs: one for the clients' losses, one for the gradients. Most rounds need
little of either, and this is exact up to rounding:

- The square root of client i's loss is a norm of its residual, so it changes by at most ``stretch_i`` times as much as
  the model moves. Until its model and another have together moved (sqrt f_other - sqrt f_own) / stretch_i, the client
  cannot change over to that other, and nobody need look (`margins`).
- A model's gradients sum to X'X theta - X'y over its clients, so while choices stay these sums serve (`sums.py`).
"""

import torch
from mixture import Mixture
from normal_equations import Sums
from torch import Tensor

CONVERGED = 1e-7
"""A run ends when a round changes its models by less than this part of their norm."""

DIVERGED = 1e6
"""A run ends when its models' norm is above this; the truths' norm is below r * sqrt(d)."""

_ROWS = 4096
"""Rows of inputs in one product: 16 MB at d = 1000."""


_PAYS = 10
"""Examples for each dimension from which sums of X'X are read faster than the inputs."""


def descend(mixture: Mixture, models: Tensor, rate: float, rounds: int = 300, *, lazy: bool | None = None) -> Tensor:
    """Models after ``rounds`` rounds from ``models`` (runs, p, d); diverged runs hold infinities.

    Runs that converge or diverge before are not trained further (`CONVERGED`, `DIVERGED`). With ``lazy`` False every
    round computes every loss and gradient anew, which is faster for few examples and the default below 10 d of them.
    """
    m, n, d = mixture.x.shape
    lazy = m * n >= _PAYS * d if lazy is None else lazy
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


def losses(mixture: Mixture, models: Tensor, clients: Tensor) -> Tensor:
    """The loss of every model on ``clients`` (c,): (runs, p, d) -> (c, runs, p)."""
    n, d = mixture.x.shape[1:]
    runs, p = models.shape[:2]
    columns = models.reshape(runs * p, d).T.contiguous()
    parts = []
    for some in clients.split(max(1, _ROWS // n)):
        outputs = (mixture.x[some].reshape(-1, d) @ columns).view(len(some), n, runs * p)
        parts.append(outputs.sub_(mixture.y[some][:, :, None]).square_().mean(dim=1))
    return torch.cat(parts).view(len(clients), runs, p)


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


def margins(seen: Tensor, stretch: Tensor) -> Tensor:
    """How far a client's model and each other must move together before it may change over; infinite for its own.

    Losses (c, runs, p) and each client's stretch (c,) -> (c, runs, p).
    """
    roots, own = seen.sqrt(), seen.argmin(dim=-1, keepdim=True)
    apart = 0.999 * (roots - roots.gather(2, own)) / stretch[:, None, None]
    return apart.scatter(2, own, torch.inf)


class _Memory:
    """Of each run: its clients' choices, how far its models have gone, and how far before a client must look again."""

    def __init__(self, mixture: Mixture, models: Tensor) -> None:
        (runs, p, _), m = models.shape, len(mixture.cluster)
        self.mixture, self.sums = mixture, Sums(mixture, runs, p)
        self.last = models.clone()
        self.gone = torch.zeros(runs, p, dtype=models.dtype)
        self.assignment = torch.zeros(m, runs, dtype=torch.int64)
        self.until = torch.zeros(m, runs, p, dtype=models.dtype)

    def gradient(self, alive: Tensor, now: Tensor) -> Tensor:
        """As `fresh`, of the runs ``alive`` (a,) at models ``now`` (a, p, d)."""
        self.gone[alive] += (now - self.last[alive]).norm(dim=-1)
        self.last[alive] = now
        self._look_again(alive, now)
        summed = self.sums.ready[alive]
        gradient = torch.empty_like(now)
        if bool(summed.any()):
            gradient[summed] = self.sums.gradient(alive[summed], now[summed])
        if not bool(summed.all()):
            seen, gradient[~summed] = fresh(self.mixture, now[~summed])
            self._note(torch.arange(len(seen)), alive[~summed], seen)
        return gradient

    def _look_again(self, alive: Tensor, now: Tensor) -> None:
        gone = self.gone[alive]
        together = gone + gone[torch.arange(len(alive)), self.assignment[:, alive]][..., None]
        doubtful = (together >= self.until[:, alive]).any(dim=-1) & self.sums.ready[alive]
        runs, clients = doubtful.any(dim=0), torch.nonzero(doubtful.any(dim=1)).flatten()
        if len(clients):
            self._note(clients, alive[runs], losses(self.mixture, now[runs], clients))

    def _note(self, clients: Tensor, runs: Tensor, seen: Tensor) -> None:
        """Losses (c, r, p) of ``clients`` (c,) in ``runs`` (r,), at the models as they are."""
        own, gone = seen.argmin(dim=-1), self.gone[runs]
        self.assignment[clients[:, None], runs] = own
        together = gone + gone[torch.arange(len(runs)), own][..., None]
        self.until[clients[:, None], runs] = together + margins(seen, self.mixture.stretch[clients])
        self.sums.note(runs, self.assignment[:, runs])
