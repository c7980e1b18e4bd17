"""An attacker's knowledge of a federation's training, and functions that convert updates into sums of gradients."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.core.formats import one_line
from shoal.engine import LocalSGD


@dataclass(frozen=True)
class ServerOptimizer:
    """The settings of the server's optimizer; see `shoal.algorithms.FedOpt`."""

    optimizer: Literal["sgd", "adam", "yogi"]
    learning_rate: float
    beta1: float
    beta2: float
    tau: float


@dataclass(frozen=True, eq=False)
class Knowledge:
    """The training settings that a federation's participants know; unknown settings keep their defaults.

    Args:
        local: the clients' local training in round 1, with its defences (`gradient_privacy`, `augmentation`).
        examples: the number of examples per client, or ``None`` if unknown or different between clients.
        clients: the federation's number N of clients; ``None`` means the number of clients in the updates.
        noise: the standard deviation per parameter of the noise on a client's update, excluding DP-SGD's noise.
        relative_noise: the length of a client's noise divided by the length of its update (nu of `LaplaceNoise`).
        proximal: mu of FedProx.
        server: the server's optimizer, or ``None`` if the server adds the mean update to the model.
        control_variates: whether clients correct their steps as in SCAFFOLD.
        pooling: rho, the weight of the mean of all models in each model after a round (`shoal.algorithms.Pooling`).
        cohort: the number of clients per round, or ``None`` if unknown.
        continued: whether clients start from their own last model instead of a cluster's model (FedSoft).
        dtype: the precision of the clients' computations; bfloat16 rounds inputs and gradients.

    Example:
        >>> import shoal
        >>> from shoal.attacks import Knowledge
        >>> local = shoal.LocalSGD(epochs=2, batch_size=10, learning_rate=0.5, weight_decay=0.1)
        >>> round(Knowledge(local, examples=10).decay_multiple(1), 6)
        -0.0975
    """

    local: LocalSGD | None = None
    examples: int | None = None
    clients: int | None = None
    noise: float = 0.0
    relative_noise: float = 0.0
    proximal: float = 0.0
    server: ServerOptimizer | None = None
    control_variates: bool = False
    pooling: float = 0.0
    cohort: int | None = None
    continued: bool = False
    dtype: torch.dtype = torch.float32
    __repr__ = one_line

    @property
    def decays(self) -> bool:
        """Whether weights decay."""
        return self.local is not None and self.local.weight_decay > 0

    @property
    def noisy(self) -> bool:
        """Whether clients add noise."""
        private = None if self.local is None else self.local.gradient_privacy
        return self.noise > 0 or self.relative_noise > 0 or (private is not None and private.noise_multiplier > 0)

    @property
    def max_grad_norm(self) -> float:
        """The L2 norm to which clients clip each example's gradient; infinite without clipping."""
        rule = None if self.local is None else self.local.gradient_privacy
        return math.inf if rule is None else rule.max_grad_norm

    @property
    def steps(self) -> int | None:
        """The number of local steps of a client per round, or ``None`` if unknown."""
        if self.local is None:
            return None
        if self.examples is None:
            return self.local.steps
        return self.local.steps_of(self.examples)

    def decay_multiple(self, number: int) -> float | None:
        """Return the weight-decay factor kappa of round ``number``.

        A client's update is ``kappa w`` plus a combination of gradients. With theta = 1 at the start, SGD with weight
        decay but without gradients of the loss takes the steps ``v <- momentum v + weight_decay theta + mu (theta -
        1)``, ``theta <- theta - rate v``; kappa is the final theta minus 1. The result is ``None`` if the number of
        steps is unknown.
        """
        if self.local is None or self.steps is None:
            return None
        local, theta, velocity = self.local.at_round(number), 1.0, 0.0
        for _ in range(self.steps):
            velocity = local.momentum * velocity + local.weight_decay * theta + self.proximal * (theta - 1)
            theta -= local.learning_rate * velocity
        return theta - 1.0

    def deviation(self, number: int, lengths: Tensor, parameters: int) -> Tensor:
        """Return the standard deviation of the noise per parameter in n clients' updates of round ``number``, (n,).

        ``lengths`` (n,) are the updates' L2 norms. Rounding is not included.
        """
        variance = lengths.new_full(lengths.shape, self.noise**2, dtype=torch.float64)
        variance += (self.relative_noise * lengths) ** 2 / (1 + self.relative_noise**2) / parameters
        rule = None if self.local is None else self.local.gradient_privacy
        if self.local is not None and rule is not None and rule.noise_multiplier > 0:
            batch = self.local.batch(self.examples or 32)
            step = self.local.at_round(number).learning_rate * rule.noise_multiplier * rule.max_grad_norm / batch
            variance += (self.steps or 1) * step**2
        return variance.sqrt()


def fitted_decay(move: Tensor, weight: Tensor) -> float:
    """Return the kappa for which ``D - kappa W`` (h, d) has the lowest rank; 0 if none is found or h > d.

    With Z the leading right singular vectors of W, kappa is the most frequent eigenvalue of ``(W Z)^-1 D Z``. The
    multiplicity of kappa is the number of missing ranks of ``D Z - kappa W Z``.
    """
    tall = min(weight.shape)
    _, _, vectors = torch.linalg.svd(weight.double(), full_matrices=False)
    if weight.shape[0] > weight.shape[1]:
        return 0.0
    reduced = vectors[:tall].T
    values = torch.linalg.eigvals(torch.linalg.solve(weight.double() @ reduced, move.double() @ reduced))
    real = values.real[values.imag.abs() <= 1e-3 * values.abs().max()].sort().values
    # The narrowest interval with three values.
    if len(real) < 4:
        return 0.0
    spread = real[2:] - real[:-2]
    place = int(spread.argmin())
    near = real[(real - real[place + 1]).abs() <= 1e-3 * values.abs().max()]
    return float(near.median()) if float(spread[place]) < 1e-4 * float(values.abs().max()) else 0.0


def without_variates(updates: list[Tensor], clients: list[Tensor], total: int, rates: list[float]) -> list[Tensor]:
    """Remove SCAFFOLD's control variates from clients' updates, round by round.

    In SCAFFOLD, ``c_i <- c_i - c - u_i / (E eta)`` and ``c <- c + sum of changes / N``. The new c_i is the mean of
    client i's gradients in the round, so the update without control variates is ``-c_i``.

    Args:
        updates: the updates of every round from the first, each (n, P).
        clients: the indices of the clients in each round, 0 to ``total`` - 1, each (n,).
        total: the number N of clients.
        rates: the value of ``E eta`` in every round.
    """
    variates, server = torch.zeros(total, updates[0].shape[1], dtype=torch.float64), 0.0
    moves = []
    for update, senders, rate in zip(updates, clients, rates, strict=True):
        change = -server - update.double() / rate
        variates[senders] += change
        server = server + change.sum(dim=0) / total
        moves.append(-variates[senders])
    return moves


def mean_updates(moves: Tensor, server: ServerOptimizer | None) -> tuple[Tensor, Tensor]:
    """Compute the mean updates (T, K, P) float64 from model changes (T, K, P) by a server's optimizer.

    The optimizer is inverted separately for each parameter, starting from its initial moments. A step s satisfies ``s
    (sqrt(v) + tau) = m``, with the moments ``m = a + c delta`` and ``v = p + q delta^2``. The mean update delta is
    therefore a root of a quadratic equation:

        (c^2 - s^2 q) delta^2 + 2 c b delta + b^2 - s^2 p = 0,   b = a - s tau,   (b + c delta) s >= 0

    If both roots fit, delta is the root with the smaller absolute value. For the Yogi optimizer, the sign of q depends
    on whether delta^2 is below the previous v.

    Returns:
        The mean updates, and the inversion's amplification of rounding errors, (T, K).
    """
    factors = torch.ones(moves.shape[:2], dtype=torch.float64)
    if server is None:
        return moves, factors
    first, second = torch.zeros_like(moves[0]), torch.full_like(moves[0], server.tau**2)
    updates = torch.zeros_like(moves)
    for t, move in enumerate(moves):
        moved = move.nan_to_num().ne(0).any(dim=1, keepdim=True)
        step = move / server.learning_rate
        if server.optimizer == "sgd":
            delta, m, v = step - server.beta1 * first, step, second
            scale = torch.ones_like(step)
        else:
            delta, v = _adaptive_root(step, first, second, server)
            m = server.beta1 * first + (1 - server.beta1) * delta
            scale = (v.sqrt() + server.tau) / (1 - server.beta1)
        updates[t] = torch.where(moved, delta, 0.0)
        first, second = torch.where(moved, m, first), torch.where(moved, v, second)
        factors[t] = scale.nan_to_num().square().mean(dim=1).sqrt() / server.learning_rate
    return updates, factors


def _adaptive_root(step: Tensor, first: Tensor, second: Tensor, server: ServerOptimizer) -> tuple[Tensor, Tensor]:
    """Return the mean update delta and the updated second moment (`mean_updates`)."""
    a, c, rest = server.beta1 * first, 1 - server.beta1, 1 - server.beta2
    b = a - step * server.tau
    if server.optimizer == "adam":
        branches = [(server.beta2 * second, rest, None)]
    else:
        branches = [(second, -rest, True), (second, rest, False)]
    best, moment = torch.full_like(step, torch.inf), second
    for p, q, below in branches:
        square, half = c**2 - step**2 * q, c * b
        root = (half**2 - square * (b**2 - step**2 * p)).clamp(min=0).sqrt()
        # The stable pair of roots: one by division.
        large = -(half + torch.where(half >= 0, root, -root))
        constant = b**2 - step**2 * p
        for delta in (large / square, constant / large):
            fits = torch.isfinite(delta) & ((b + c * delta) * step >= -1e-12 * step.abs())
            if below is not None:
                fits &= (delta**2 <= second) if below else (delta**2 >= second)
            better = fits & (delta.abs() < best.abs())
            best, moment = torch.where(better, delta, best), torch.where(better, p + q * delta**2, moment)
    none = ~torch.isfinite(best)
    return torch.where(none, 0.0, best), moment
