"""Figures of several seeds in words: spreads, and differences of the same seed."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import t

from shoal.metrics import mean_interval


def spread(values: pd.Series) -> str:
    """Mean and standard deviation over seeds.

    >>> spread(pd.Series([0.5, 0.6, 0.7]))
    '0.600 ± 0.100'
    """
    digits = 1 if values.abs().max() > 2 else 3
    return f"{values.mean():.{digits}f} ± {values.std():.{digits}f}"


def differences(values: pd.Series) -> list[str]:
    """Of one difference a seed: mean, 95 % interval (Student's t), and how many are above 0.

    >>> differences(pd.Series([0.1, 0.2, 0.3]))
    ['+0.200', '-0.048 to +0.448', '3 of 3']
    """
    digits = 1 if values.abs().max() > 2 else 3
    low, high = mean_interval(values.to_numpy())
    return [
        f"{values.mean():+.{digits}f}",
        f"{low:+.{digits}f} to {high:+.{digits}f}",
        f"{int((values > 0).sum())} of {len(values)}",
    ]


def fieller(above: NDArray[np.float64], below: NDArray[np.float64], confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the ratio of the means of pairs: all f for which the mean of above - f below may be 0.

    Fieller 1954, "Some problems in interval estimation", Journal of the Royal Statistical Society B 16.

    Args:
        above, below: (n,) each.
        confidence: that the interval has.

    Returns:
        Its ends; NaN, where it is unbounded or n is below 2.
    """
    if len(above) < 2:
        return float("nan"), float("nan")
    (vaa, vab), (_, vbb) = np.cov(above, below) / len(above)
    square, a, b = t.ppf((1 + confidence) / 2, len(above) - 1) ** 2, above.mean(), below.mean()
    # The roots of (a - f b)^2 = square (vaa - 2 f vab + f^2 vbb).
    lead, middle, last = b**2 - square * vbb, a * b - square * vab, a**2 - square * vaa
    if lead <= 0:
        return float("nan"), float("nan")
    half = np.sqrt(max(middle**2 - lead * last, 0.0))
    return float((middle - half) / lead), float((middle + half) / lead)


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table under a title."""
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return f"\n**{title}**\n\n" + "\n".join(lines)
