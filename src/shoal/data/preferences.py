"""Preferences of clients: the risk that each tolerates, and the weight of risk against loss."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from shoal.core.errors import InputError, described, integer, require
from shoal.core.randomness import Stream
from shoal.core.representation import one_line


@dataclass(frozen=True, eq=False)
class Preferences:
    """How N clients weigh privacy against accuracy.

    Args:
        threshold: (N,), the membership-inference accuracy that each client tolerates.
        beta: (N,) in [0, 1], the weight of risk in its choice of a model.
        drawn: whether the thresholds were drawn at random, as `draw_preferences` does where no client set one.
    """

    threshold: Tensor
    beta: Tensor
    drawn: bool = field(default=False, compare=False)  # not part of the content, which a fingerprint compares
    __repr__ = one_line

    @property
    def alpha(self) -> Tensor:
        """(N,), the weight of loss, 1 - beta."""
        return 1 - self.beta

    def take(self, clients: Tensor) -> "Preferences":
        """The preferences of the clients at positions (n,) int64, in that order."""
        return replace(self, threshold=self.threshold[clients], beta=self.beta[clients])


def equal_preferences(clients: int) -> Preferences:
    """The default: each client tolerates 0.65 and weighs risk by 0.5."""
    ones = torch.ones(clients, dtype=torch.float64)
    return Preferences(0.65 * ones, 0.5 * ones)


def draw_preferences(
    clients: int, thresholds: tuple[float, float], beta: float | str | Sequence[float], stream: Stream
) -> Preferences:
    """Thresholds t_i uniform in [low, high], and the weights of risk beta_i.

    Args:
        clients: number of clients.
        thresholds: [low, high] of the membership-inference accuracy that clients tolerate, in [0.5, 1] (IFCA-MIR:
            0.5, 0.8).
        beta: one number for all clients, one for each, or "threshold": the less risk a client tolerates the more it
            weighs, ``beta_i = (high - t_i) / (high - low)``.
        stream: of the thresholds.

    Raises:
        InputError: a value outside its range, or a number of betas other than one or ``clients``.

    Example:
        >>> import shoal
        >>> preferences = shoal.draw_preferences(4, (0.5, 0.8), "threshold", shoal.Stream(0))
        >>> bool(((preferences.threshold >= 0.5) & (preferences.threshold <= 0.8)).all())
        True
        >>> int(preferences.threshold.argmin()) == int(preferences.beta.argmax())
        True
    """
    clients = integer("clients", clients, "such as 10", 0)
    low, high = thresholds
    require(
        0.5 <= low <= high <= 1,
        f"'thresholds' must be [low, high] with 0.5 <= low <= high <= 1; got [{low:g}, {high:g}]",
    )
    uniform = torch.rand(clients, generator=stream("thresholds").generator(), dtype=torch.float64)
    threshold = low + (high - low) * uniform
    if isinstance(beta, str):
        require(beta == "threshold", f'\'beta\' must be a number in [0, 1] or "threshold"; got "{beta}"')
        require(low < high, "'beta' = \"threshold\" needs 'thresholds' with low < high")
        return Preferences(threshold, (high - threshold) / (high - low), drawn=True)
    return Preferences(threshold, per_client("beta", beta, clients, 0), drawn=low < high)


def per_client(name: str, value: object, clients: int, low: float) -> Tensor:
    """One number, or one per client, as (clients,) float64 in [low, 1].

    Raises:
        InputError: numbers outside this range, or another number of them.
    """
    form = f"'{name}' must be one number or one for each of {clients} clients"
    try:
        values = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{form}; got {described(value)}") from error
    require(values.dim() == 0 or values.shape == (clients,), f"{form}; got {values.numel()} numbers")
    wrong = values[~((values >= low) & (values <= 1))]
    require(len(wrong) == 0, f"'{name}' must be in [{low:g}, 1]; got {wrong[:1].sum():g}")
    return values.expand(clients).clone()
