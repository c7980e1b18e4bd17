"""A cell of a sweep's tables: the mean of a figure over seeds, its spread, and how many seeds these are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isnan, nan
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from shoal.experiments.frames import column
from shoal.experiments.sweeps.shown import Axes, Value
from shoal.experiments.sweeps.words import split_key
from shoal.experiments.tables import DASH

Spread = Literal["sd", "ci"]

COUNTED = ("clients", "examples", "violations")
"""Families of figures that count things."""


@dataclass(frozen=True)
class Estimate:
    """A figure over seeds.

    Args:
        mean: NaN where no seed has the figure.
        spread: the sample standard deviation or half the width of the 95 % confidence interval; NaN below two seeds.
        n: seeds that have the figure.
    """

    mean: float
    spread: float
    n: int


def estimate(values: Sequence[float], spread: Spread) -> Estimate:
    """What ``values``, one a seed, say of their mean; NaN are left out. ``ci`` is Student's t.

    >>> estimate([1.0, 3.0, nan], "sd")
    Estimate(mean=2.0, spread=1.4142135623730951, n=2)
    """
    known = np.array([value for value in values if not isnan(value)])
    n = len(known)
    if n < 2:
        return Estimate(float(known[0]) if n else nan, nan, n)
    deviation = float(known.std(ddof=1))
    if spread == "ci":
        deviation *= float(stats.t.ppf(0.975, n - 1)) / n**0.5
    return Estimate(float(known.mean()), deviation, n)


@dataclass(frozen=True)
class Outcomes:
    """The figures of finished runs, found by their settings.

    Args:
        axes: what the sweep varies.
        seeds: of the sweep.
        row: by the axes' settings, in the order of ``axes``, and the seed: the run's row.
        frame: the figures, a row a finished run.
    """

    axes: Axes
    seeds: Sequence[int]
    row: Mapping[tuple[Value, ...], int]
    frame: pd.DataFrame

    @staticmethod
    def of(results: pd.DataFrame, axes: Axes, seeds: Sequence[int]) -> "Outcomes":
        """Those in ``results``, which has a column an axis, a column ``seed``, and a column a figure."""
        keys = zip(*(results[name].tolist() for name in (*axes, "seed")), strict=True)
        return Outcomes(axes, seeds, {key: row for row, key in enumerate(keys)}, results)

    def by_seed(self, key: str, settings: Mapping[str, Value]) -> list[float]:
        """(seeds,) a figure where the axes have these ``settings``, averaged over those that ``settings`` leaves out.

        A seed that lacks any of the runs averaged over is NaN: a mean over fewer settings would be another figure.
        """
        figures = column(self.frame, key)
        held = [[settings[axis]] if axis in settings else self.axes[axis] for axis in self.axes]
        found = []
        for seed in self.seeds:
            rows = [self.row.get((*each, seed)) for each in product(*held)]
            values = [nan if row is None else float(figures[row]) for row in rows]
            found.append(float(np.mean(values)))
        return found


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
