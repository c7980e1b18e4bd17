"""What an attacker knows of a federation's training, and moves without what is no gradient in them."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.core.representation import one_line
from shoal.engine import LocalSGD


@dataclass(frozen=True)
class ServerOptimizer:
    """The settings of a server that moves models by an optimizer; see `shoal.algorithms.FedOpt`."""

    optimizer: Literal["sgd", "adam", "yogi"]
    learning_rate: float
    beta1: float
    beta2: float
    tau: float


@dataclass(frozen=True, eq=False)
class Knowledge:
    """Settings of a federation that its participants know; what is not known is left at its default.

    Args:
        local: local training in round 1 as clients do it, with their defences (`gradient_privacy`, `augmentation`).
        examples: of each client, where all have as many; None: unknown, or they differ.
        clients: N, of the federation; None: those that are seen.
        noise: standard deviation of the noise that a client adds to each number of its update, beside DP-SGD's.
        relative_noise: the length of a client's noise in lengths of its update (nu of `LaplaceNoise`).
        server: the server's optimizer; None: models move by the mean update.
        control_variates: whether clients correct their steps as SCAFFOLD does.
        continued: whether clients go on from what they sent last, and not from a cluster's model (FedSoft).
        dtype: of the clients' computations; bfloat16 rounds inputs and gradients.

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
    server: ServerOptimizer | None = None
    control_variates: bool = False
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
    def steps(self) -> int | None:
        """Local steps of a client in a round; None: unknown."""
        if self.local is None:
            return None
        if self.examples is None:
            return self.local.steps
        return self.local.steps_of(self.examples)

    def decay_multiple(self, number: int) -> float | None:
        """The kappa of a client's update in round ``number``: its update is ``kappa w`` and a combination of gradients.

        By the recursion of SGD on weights alone, ``v <- momentum v + weight_decay theta``, ``theta <- theta - rate v``,
        from theta = 1; None where the number of steps is unknown.
        """
        if self.local is None or self.steps is None:
            return None
        local, theta, velocity = self.local.at_round(number), 1.0, 0.0
        for _ in range(self.steps):
            velocity = local.momentum * velocity + local.weight_decay * theta
            theta -= local.learning_rate * velocity
        return theta - 1.0

    def deviation(self, number: int, lengths: Tensor, parameters: int) -> Tensor:
        """The noise in each number of clients' updates of round ``number``, without rounding: (n,).

        Args:
            number: of the round.
            lengths: (n,), L2 norms of the updates with their noise.
            parameters: P.
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
    """The kappa for which ``D - kappa W`` has the lowest rank, of matrices (h, d) with h <= d; 0 where none lowers it.

    With d reduced to h by W's leading right singular vectors Z, ``D Z - kappa W Z`` is singular for that kappa as often
    as its rank lacks rows, so kappa is the eigenvalue of ``(W Z)^-1 D Z`` that most others equal.
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
    """Clients' moves without SCAFFOLD's variates, round by round (n, P): multiples of sums of gradients.

    By its recursion, ``c_i <- c_i - c - u_i / (E eta)`` and ``c <- c + sum of changes / N``, the new c_i is the mean of
    i's gradients in the round, so ``-c_i`` is the move.

    Args:
        updates: (n, P) of every round from the first.
        clients: (n,) the positions of their senders, 0 to ``total`` - 1.
        total: N.
        rates: ``E eta`` of every round.
    """
    own, server = torch.zeros(total, updates[0].shape[1], dtype=torch.float64), 0.0
    moves = []
    for update, senders, rate in zip(updates, clients, rates, strict=True):
        change = -server - update.double() / rate
        own[senders] += change
        server = server + change.sum(dim=0) / total
        moves.append(-own[senders])
    return moves
