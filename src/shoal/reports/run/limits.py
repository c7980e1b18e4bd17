"""Clients' limits against the exposure of their models, whichever columns a run's clients.csv has."""

import pandas as pd

EXCEEDED, UNCERTAIN, WITHIN_LIMIT, UNKNOWN = "exceeded", "uncertain", "within", "not measured"
"""What can be said of a client's limit, in the column ``limit``."""


def has_intervals(clients: pd.DataFrame) -> bool:
    """Whether a limit counts as exceeded only where the whole 95 % interval of the exposure lies above it."""
    return "exceeded" in clients


def with_limits(clients: pd.DataFrame, attack: str) -> pd.DataFrame:
    """The clients with what clients.csv says of their limits, or with what an older file lets one say.

    The columns added or replaced:

    - ``exposure``: the balanced accuracy of the attack that decides; otherwise ``mia``, that of the configured attack.
    - ``exposure_low``: the lower end of its 95 % interval; otherwise NaN.
    - ``attack``: the attack's name; otherwise ``attack``, the configured one.
    - ``over``: whether the limit is exceeded: ``exceeded``, by the interval; otherwise ``violated``, by the point
      estimate.
    - ``margin``: how far the limit is exceeded, negative below it: by the lower end where it is known.
    - ``limit``: one of `EXCEEDED`, `UNCERTAIN` (above the limit, but the interval reaches below it), `WITHIN_LIMIT`,
      `UNKNOWN`.
    """
    nothing = pd.Series(float("nan"), clients.index)
    exposure = clients.get("exposure", clients["mia"])
    low = clients.get("exposure_low", nothing)
    over = clients.get("exceeded", clients["violated"]).fillna(0) > 0
    above = (exposure > clients["threshold"]) | (clients["violated"].fillna(0) > 0)
    limit = pd.Series(WITHIN_LIMIT, clients.index).mask(above & has_intervals(clients), UNCERTAIN)
    limit = limit.mask(exposure.isna() | clients["threshold"].isna(), UNKNOWN).mask(over, EXCEEDED)
    name = clients["attack"] if "attack" in clients else pd.Series(attack, clients.index).where(exposure.notna())
    return clients.assign(
        exposure=exposure, exposure_low=low, attack=name, over=over,
        margin=low.fillna(exposure) - clients["threshold"], limit=limit,
    )  # fmt: skip
