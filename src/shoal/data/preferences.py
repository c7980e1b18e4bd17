"""Preferences of clients: the risk that each tolerates, and the weight of risk against loss."""

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
"""Attacker of an attack, and of a figure; each sees what those before it see. An outsider has the final models; a
client is sent the initial model and every round's models of all clusters; the server sees each client's updates and
choices."""

VIEWS: tuple[View, ...] = get_args(View)
"""All views, from the one that sees least."""


@dataclass(frozen=True, eq=False)
class Preferences:
    """How N clients weigh privacy against accuracy.

    Args:
        threshold: (N,), the membership-inference accuracy that each client tolerates.
        beta: (N,) in [0, 1], the weight of risk in its choice of a model.
        drawn: whether the thresholds were drawn at random, as `draw_preferences` does where no client set one.
        view: (N,) int64, the attacker that each client's threshold is about, by its position in `VIEWS`. None: the
            attacker of the run's own figures.
    """

    threshold: Tensor
    beta: Tensor
    drawn: bool = field(default=False, compare=False)  # not part of the content, which a fingerprint compares
    view: Tensor | None = field(default=None, compare=False)
    __repr__ = one_line

    @property
    def alpha(self) -> Tensor:
        """(N,), the weight of loss, 1 - beta."""
        return 1 - self.beta

    def take(self, clients: Tensor) -> "Preferences":
        """The preferences of the clients at positions (n,) int64, in that order."""
        view = None if self.view is None else self.view[clients]
        return replace(self, threshold=self.threshold[clients], beta=self.beta[clients], view=view)

    def views(self, default: View) -> list[View]:
        """The attacker of each client's threshold; ``default`` where no client names one."""
        return [default] * len(self.threshold) if self.view is None else [VIEWS[i] for i in self.view.tolist()]


def equal_preferences(clients: int) -> Preferences:
    """The default: each client tolerates 0.65 and weighs risk by 0.5."""
    ones = torch.ones(clients, dtype=torch.float64)
    return Preferences(0.65 * ones, 0.5 * ones)


def draw_preferences(
    clients: int,
    thresholds: tuple[float, float],
    beta: float | str | Sequence[float],
    stream: Stream,
    view: View | Sequence[View] | None = None,
) -> Preferences:
    """Thresholds t_i uniform in [low, high], and the weights of risk beta_i.

    Args:
        clients: number of clients.
        thresholds: [low, high] of the membership-inference accuracy that clients tolerate, in [0.5, 1] (IFCA-MIR:
            0.5, 0.8).
        beta: one number for all clients, one for each, or "threshold": the less risk a client tolerates the more it
            weighs, ``beta_i = (high - t_i) / (high - low)``.
        stream: of the thresholds.
        view: the attacker that clients' thresholds are about, one for all or one for each; None: that of the run's own
            figures.

    Raises:
        InputError: a value outside its range, or a number of betas or views other than one or ``clients``.

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
        return Preferences(threshold, (high - threshold) / (high - low), drawn=True, view=views_of(view, clients))
    weights = per_client("beta", beta, clients, 0)
    return Preferences(threshold, weights, drawn=low < high, view=views_of(view, clients))


def views_of(view: View | Sequence[View] | None, clients: int) -> Tensor | None:
    """`Preferences.view` of one view for all ``clients`` or one for each.

    Raises:
        InputError: another word, or another number of them.
    """
    if view is None:
        return None
    names = [view] * clients if isinstance(view, str) else list(view)
    require(len(names) == clients, f"'view' must be one view or one for each of {clients} clients; got {len(names)}")
    for name in names:
        require(name in VIEWS, f"'view' must be {one_of(VIEWS)}; got {describe(name)}")
    return torch.tensor([VIEWS.index(name) for name in names], dtype=torch.int64)


def per_client(name: str, value: object, clients: int, low: float) -> Tensor:
    """One number, or one per client, as (clients,) float64 in [low, 1].

    Raises:
        InputError: numbers outside this range, or another number of them.
    """
    form = f"'{name}' must be one number or one for each of {clients} clients"
    try:
        values = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{form}; got {describe(value)}") from error
    require(values.dim() == 0 or values.shape == (clients,), f"{form}; got {values.numel()} numbers")
    wrong = values[~((values >= low) & (values <= 1))]
    require(len(wrong) == 0, f"'{name}' must be in [{low:g}, 1]; got {wrong[:1].sum():g}")
    return values.expand(clients).clone()
