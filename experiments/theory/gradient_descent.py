"""Gradient averaging on the mixture for many runs at once: their models are the columns of one matrix.

A round takes two products with all inputs: one for the clients' losses, one for the gradients. Most rounds need
little of either, and this is exact up to rounding:

- The square root of client i's loss is a norm of its residual, so it changes by at most ``lipschitz_i`` times as much
  as the model moves. Until its model and another have together moved (sqrt f_other - sqrt f_own) / lipschitz_i, the
  client cannot prefer that other model, and its losses need not be computed (`switching_distances`).
- A model's gradients sum to X'X theta - X'y over its clients, so the sums can be reused while assignments stay as they
  are (`normal_equations.py`).
"""

import torch
from mixture import Mixture
from normal_equations import NormalEquations
from torch import Tensor

CONVERGED = 1e-7
"""A run ends when a round changes its models by less than this fraction of their norm."""

DIVERGED = 1e6
"""A run ends when its models' norm is above this; the true models' norm is below r * sqrt(d)."""

_ROWS = 4096
"""Rows of inputs in one product: 16 MB at d = 1000."""

_LAZY_EXAMPLES = 10
"""Examples per dimension from which on reading X'X is faster than reading the inputs."""


def descend(mixture: Mixture, models: Tensor, rate: float, rounds: int = 300, *, lazy: bool | None = None) -> Tensor:
    """Models after ``rounds`` rounds from ``models`` (runs, p, d); those of diverged runs are infinite.

    Runs that converge or diverge before are not trained further (`CONVERGED`, `DIVERGED`). With ``lazy`` False every
    round computes every loss and gradient anew, which is faster for few examples and the default below 10 d of them.
    """
    m, n, d = mixture.x.shape
    lazy = m * n >= _LAZY_EXAMPLES * d if lazy is None else lazy
    ends, active, gradients = models.clone(), torch.arange(len(models)), _LazyGradients(mixture, models)
    for _ in range(rounds):
        if not len(active):
            break
        current = ends[active]
        step = rate * (gradients.at(active, current) if lazy else losses_and_gradients(mixture, current)[1])
        current -= step
        size = current.flatten(1).norm(dim=1)
        diverged = ~(size < DIVERGED)
        current[diverged] = torch.inf
        ends[active] = current
        active = active[~diverged & (step.flatten(1).norm(dim=1) >= CONVERGED * size)]
    return ends


def losses_of(mixture: Mixture, models: Tensor, clients: Tensor) -> Tensor:
    """The loss of every model on ``clients`` (c,): (runs, p, d) -> (c, runs, p)."""
    n, d = mixture.x.shape[1:]
    runs, p = models.shape[:2]
    columns = models.reshape(runs * p, d).T.contiguous()
    losses = []
    for chunk in clients.split(max(1, _ROWS // n)):
        outputs = (mixture.x[chunk].reshape(-1, d) @ columns).view(len(chunk), n, runs * p)
        losses.append(outputs.sub_(mixture.y[chunk][:, :, None]).square_().mean(dim=1))
    return torch.cat(losses).view(len(clients), runs, p)


def losses_and_gradients(mixture: Mixture, models: Tensor) -> tuple[Tensor, Tensor]:
    """Every client's losses (m, runs, p) and, for each model, 1/m of the sum of its clients' gradients (runs, p, d)."""
    m, n, d = mixture.x.shape
    runs, p = models.shape[:2]
    columns = models.reshape(runs * p, d).T.contiguous()
    gradient = torch.zeros(d, runs * p, dtype=models.dtype)
    losses = []
    clients = max(1, _ROWS // n)
    for x, y in zip(mixture.x.split(clients), mixture.y.split(clients), strict=True):
        inputs = x.reshape(-1, d)
        residual = (inputs @ columns).view(len(x), n, runs, p).sub_(y[:, :, None, None])
        losses.append(residual.square().mean(dim=1))
        assigned = torch.nn.functional.one_hot(losses[-1].argmin(dim=-1), p)
        residual *= assigned.to(models.dtype)[:, None]
        gradient.addmm_(inputs.T, residual.view(-1, runs * p))
    return torch.cat(losses), (2 / (m * n)) * gradient.T.reshape(runs, p, d)


def switching_distances(losses: Tensor, lipschitz: Tensor) -> Tensor:
    """How far a client's model and another must move together before it may prefer that one; infinite for its own.

    Losses (c, runs, p) and each client's constant (c,) -> (c, runs, p).
    """
    roots, own = losses.sqrt(), losses.argmin(dim=-1, keepdim=True)
    distances = 0.999 * (roots - roots.gather(2, own)) / lipschitz[:, None, None]
    return distances.scatter(2, own, torch.inf)


class _LazyGradients:
    """Gradients of many runs that compute losses only of clients whose assignment may have changed.

    Attributes:
        travelled: (runs, p), how far each model has moved in all.
        assignment: (m, runs), each client's model.
        valid_until: (m, runs, p), how far its model and each other may have moved together before a client's losses
            must be computed again.
    """

    def __init__(self, mixture: Mixture, models: Tensor) -> None:
        (runs, p, _), m = models.shape, len(mixture.cluster)
        self.mixture, self.equations = mixture, NormalEquations(mixture, runs, p)
        self.last = models.clone()
        self.travelled = torch.zeros(runs, p, dtype=models.dtype)
        self.assignment = torch.zeros(m, runs, dtype=torch.int64)
        self.valid_until = torch.zeros(m, runs, p, dtype=models.dtype)

    def at(self, active: Tensor, models: Tensor) -> Tensor:
        """The gradients of `losses_and_gradients`, of the runs ``active`` (a,) at ``models`` (a, p, d)."""
        self.travelled[active] += (models - self.last[active]).norm(dim=-1)
        self.last[active] = models
        self._reassign(active, models)
        summed = self.equations.ready[active]
        gradient = torch.empty_like(models)
        if bool(summed.any()):
            gradient[summed] = self.equations.gradient(active[summed], models[summed])
        if not bool(summed.all()):
            losses, gradient[~summed] = losses_and_gradients(self.mixture, models[~summed])
            self._record(torch.arange(len(losses)), active[~summed], losses)
        return gradient

    def _reassign(self, active: Tensor, models: Tensor) -> None:
        """Compute the losses of the clients whose assignment may have changed."""
        travelled = self.travelled[active]
        together = travelled + travelled[torch.arange(len(active)), self.assignment[:, active]][..., None]
        doubtful = (together >= self.valid_until[:, active]).any(dim=-1) & self.equations.ready[active]
        runs, clients = doubtful.any(dim=0), torch.nonzero(doubtful.any(dim=1)).flatten()
        if len(clients):
            self._record(clients, active[runs], losses_of(self.mixture, models[runs], clients))

    def _record(self, clients: Tensor, runs: Tensor, losses: Tensor) -> None:
        """Take over losses (c, r, p) of ``clients`` (c,) in ``runs`` (r,), at the current models."""
        own, travelled = losses.argmin(dim=-1), self.travelled[runs]
        self.assignment[clients[:, None], runs] = own
        together = travelled + travelled[torch.arange(len(runs)), own][..., None]
        distances = switching_distances(losses, self.mixture.lipschitz[clients])
        self.valid_until[clients[:, None], runs] = together + distances
        self.equations.update(runs, self.assignment[:, runs])
