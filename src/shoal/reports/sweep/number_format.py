"""How figures are written: with how many decimals, and with which spread and n."""

from shoal.reports.run.tables import DASH
from shoal.reports.sweep.labels import split_key
from shoal.reports.sweep.seed_statistics import Estimate

COUNTED = ("clients", "examples", "violations")
"""Families of figures that count things."""


def digits(key: str) -> int:
    """How many decimals a figure has: 1 for counts and seconds; else 3, and 4 at a false positive rate of 0.1 %.

    >>> digits("violations.minority"), digits("larger.clients"), digits("seconds.total"), digits("mia.minority")
    (1, 1, 1, 3)
    """
    family, _ = split_key(key)
    if family in COUNTED or key in {"migrated", "rounds"} or key.startswith("seconds."):
        return 1
    return 4 if family.startswith("tpr_at_fpr_0.001") else 3


def text(found: Estimate, key: str, seeds: int) -> str:
    """An estimate as people read it; it says n where that is not all ``seeds``.

    >>> text(Estimate(0.8123, 0.0101, 4), "accuracy.overall", seeds=5)
    '0.812 ± 0.010 (n = 4)'
    """
    if found.n == 0:
        return DASH
    told = number(found.mean, key)
    if found.n > 1:
        told += f" ± {number(found.spread, key)}"
    return told if found.n == seeds else f"{told} (n = {found.n})"


def number(value: float, key: str) -> str:
    """A value of the figure ``key`` with its decimals and a true minus sign."""
    return f"{value:z,.{digits(key)}f}".replace("-", "\N{MINUS SIGN}")
