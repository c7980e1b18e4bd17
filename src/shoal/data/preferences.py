"""Draws what clients tolerate, and turns it into how they weigh risk against loss."""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data.federation import Preferences


def draw_preferences(
    clients: int, bounds: tuple[float, float], beta: float | str | Sequence[float], stream: Stream
) -> Preferences:
    """Thresholds uniform in ``bounds`` by client, and the weight of risk by client.

    Args:
        clients: N.
        bounds: lowest and highest membership-inference accuracy tolerated, in [0.5, 1] (IFCA-MIR: 0.5, 0.8).
        beta: one number for all clients, a number for each, or "threshold": the more a client minds, the more
            risk weighs, ``beta_i = (high - t_i) / (high - low)``.
        stream: where the draw comes from.

    Raises:
        InputError: a value outside its range, or not one beta a client.
    """
    low, high = bounds
    require(
        0.5 <= low <= high <= 1,
        f"'privacy.thresholds' must be [low, high] with 0.5 <= low <= high <= 1; got [{low:g}, {high:g}]",
    )
    uniform = torch.rand(clients, generator=stream("thresholds").generator(), dtype=torch.float64)
    threshold = low + (high - low) * uniform
    return Preferences(threshold, _betas(beta, threshold, bounds))


def _betas(beta: float | str | Sequence[float], threshold: Tensor, bounds: tuple[float, float]) -> Tensor:
    low, high = bounds
    if isinstance(beta, str):
        require(beta == "threshold", f'\'privacy.beta\' must be a number in [0, 1] or "threshold"; got "{beta}"')
        require(low < high, "'privacy.beta' = \"threshold\" needs 'privacy.thresholds' with low < high")
        return (high - threshold) / (high - low)
    values = [beta] * len(threshold) if isinstance(beta, int | float) else list(beta)
    require(
        len(values) == len(threshold),
        f"'privacy.beta' must be one number or one for each of {len(threshold)} clients; got {len(values)} numbers",
    )
    for value in values:
        require(0 <= value <= 1, f"'privacy.beta' must be in [0, 1]; got {value:g}")
    return torch.tensor(values, dtype=torch.float64)
