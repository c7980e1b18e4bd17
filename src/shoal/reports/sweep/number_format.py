"""Numbers as text: how many decimals a metric has, and an estimate with its spread and n."""

from math import isnan

from shoal.reports.sweep.labels import split_key

DASH = "\N{EN DASH}"
"""Stands for an undefined value."""

COUNTS = ("clients", "examples", "violations")
"""Families of metrics that count something."""


def decimals_of(key: str) -> int:
    """The decimals of a metric: 1 for counts and seconds; otherwise 3, and 4 at a false positive rate of 0.1 %.

    >>> decimals_of("violations.minority"), decimals_of("seconds.total"), decimals_of("mia.minority")
    (1, 1, 3)
    """
    family, _ = split_key(key)
    if family in COUNTS or key in {"migrated", "rounds"} or key.startswith("seconds."):
        return 1
    return 4 if family.startswith("tpr_at_fpr_0.001") else 3


def format_value(value: float, key: str, decimals: int | None = None) -> str:
    """A value of the metric ``key`` with its decimals and a true minus sign; a dash for NaN."""
    places = decimals_of(key) if decimals is None else decimals
    return DASH if isnan(value) else f"{value:z,.{places}f}".replace("-", "\N{MINUS SIGN}")


def format_estimate(mean: float, spread: float, n: int, key: str, seeds: int) -> str:
    """A mean over ``n`` seeds with its spread, and with ``n`` where that is not all ``seeds``.

    >>> format_estimate(0.8123, 0.0101, 4, "accuracy.overall", seeds=5)
    '0.812 ± 0.010 (n = 4)'
    """
    text = format_value(mean, key) + (f" ± {format_value(spread, key)}" if n > 1 else "")
    return text if n in (0, seeds) else f"{text} (n = {n})"
