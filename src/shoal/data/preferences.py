"""Clients' preferences: the accepted exposure, and the weight of risk against loss."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from shoal.core.errors import InputError, describe, integer, require
from shoal.core.formats import one_line
from shoal.core.randomness import Stream
from shoal.core.settings import one_of

View = Literal["outsider", "client", "server"]
"""The attacker that an attack assumes. An outsider has the final models; a client receives the initial model and all
clusters' models of every round; the server sees each client's updates and choices. Each view includes the earlier ones.
"""

VIEWS: tuple[View, ...] = get_args(View)
"""All views, weakest first."""


@dataclass(frozen=True, eq=False)
class Preferences:
    """N clients' limits on exposure and weights of risk.

    Args:
        threshold: the membership-inference accuracy that each client accepts, (N,).
        beta: the weight of risk in each client's choice of a model, (N,) in [0, 1].
        drawn: whether the thresholds are random because no client set a limit.
        view: the attacker for each client's threshold, as an index into `VIEWS`, (N,) int64, or None for the attacker
            in the run's results.
    """

    threshold: Tensor
    beta: Tensor
    drawn: bool = field(default=False, compare=False)  # not part of the content, which a fingerprint compares
    view: Tensor | None = field(default=None, compare=False)
    __repr__ = one_line

    @property
    def alpha(self) -> Tensor:
        """The weight of the loss, 1 - beta, (N,)."""
        return 1 - self.beta

    def take(self, clients: Tensor) -> "Preferences":
        """Select the clients at positions (n,) int64, in the given order."""
        view = None if self.view is None else self.view[clients]
        return replace(self, threshold=self.threshold[clients], beta=self.beta[clients], view=view)

    def views(self, default: View) -> list[View]:
        """List the attacker for each client's threshold, which is ``default`` if `view` is None."""
        return [default] * len(self.threshold) if self.view is None else [VIEWS[i] for i in self.view.tolist()]


def equal_preferences(clients: int) -> Preferences:
    """Return the default preferences: each client accepts an exposure of 0.65, and risk has the weight 0.5."""
    ones = torch.ones(clients, dtype=torch.float64)
    return Preferences(0.65 * ones, 0.5 * ones)


def draw_preferences(
    clients: int,
    thresholds: tuple[float, float],
    beta: float | str | Sequence[float],
    stream: Stream,
    view: View | Sequence[View] | None = None,
) -> Preferences:
    """Draw thresholds t_i uniformly from [low, high], and set the weights of risk beta_i.

    Args:
        thresholds: the range [low, high] of the accepted membership-inference accuracy, within [0.5, 1] (IFCA-MIR: 0.5,
            0.8).
        beta: one number for all clients, one number per client, or "threshold" for ``beta_i = (high - t_i) / (high -
            low)``.
        view: the attacker for the thresholds, one for all clients or one per client, or None for the attacker in the
            run's results.

    Raises:
        InputError: a value is outside its allowed range, or the number of betas or views is not 1 or ``clients``.

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
        f"'thresholds' must be [low, high] with 0.5 <= low <= high <= 1 (got [{low:g}, {high:g}])",
    )
    uniform = torch.rand(clients, generator=stream("thresholds").generator(), dtype=torch.float64)
    threshold = low + (high - low) * uniform
    if isinstance(beta, str):
        require(beta == "threshold", f'\'beta\' must be a number in [0, 1] or "threshold" (got "{beta}")')
        require(low < high, f"'beta' = \"threshold\" requires 'thresholds' with low < high (got [{low:g}, {high:g}])")
        return Preferences(threshold, (high - threshold) / (high - low), drawn=True, view=views_of(view, clients))
    weights = per_client("beta", beta, clients, 0)
    return Preferences(threshold, weights, drawn=low < high, view=views_of(view, clients))


def views_of(view: View | Sequence[View] | None, clients: int) -> Tensor | None:
    """Convert one view, or one view per client, to `Preferences.view`.

    Raises:
        InputError: a view is unknown, or the number of views is wrong.
    """
    if view is None:
        return None
    names = [view] * clients if isinstance(view, str) else list(view)
    require(
        len(names) == clients,
        f"'view' must be one view, or a list of {clients} views, one per client (got {len(names)})",
    )
    for name in names:
        require(name in VIEWS, f"'view' must be {one_of(VIEWS)} (got {describe(name)})")
    return torch.tensor([VIEWS.index(name) for name in names], dtype=torch.int64)


def per_client(name: str, value: object, clients: int, low: float) -> Tensor:
    """Convert one number, or one number per client, to (clients,) float64 in [low, 1].

    Raises:
        InputError: a value is outside [low, 1], or the number of values is wrong.
    """
    try:
        values = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"'{name}' must be a number, or {clients} numbers, one per client (got {describe(value)})"
        ) from error
    require(
        values.dim() == 0 or values.shape == (clients,),
        f"'{name}' must be one number or {clients} numbers, one per client (got {values.numel()} numbers)",
    )
    wrong = values[~((values >= low) & (values <= 1))]
    require(len(wrong) == 0, f"'{name}' must be in [{low:g}, 1] (got {wrong[:1].sum():g})")
    return values.expand(clients).clone()
