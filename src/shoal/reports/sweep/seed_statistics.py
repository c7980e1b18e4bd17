"""The runs of a sweep by their settings, and what a figure of theirs is over seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import nan

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from shoal.core.errors import InputError, nearest
from shoal.reports.frames import Floats, column
from shoal.reports.sweep.spec import Axes, Spread, Value


@dataclass(frozen=True)
class Outcomes:
    """The runs there are, among those that the sweep asks for.

    Args:
        results: a row a finished run: ``run``, a column an axis, ``seed``, and a column a figure.
        axes: what the sweep varies.
        seeds: of the sweep.
    """

    results: pd.DataFrame
    axes: Axes
    seeds: Sequence[int]

    def rows(self, settings: Mapping[str, Value]) -> list[list[int | None]]:
        """(seeds, settings averaged over) the row of each run where the axes have ``settings``; None where it lacks.

        Axes that ``settings`` leaves out are those averaged over.
        """
        held = [[settings[axis]] if axis in settings else self.axes[axis] for axis in self.axes]
        choices = list(product(*held))
        return [[self._row.get((*each, seed)) for each in choices] for seed in self.seeds]

    def by_seed(self, key: str, settings: Mapping[str, Value]) -> Floats:
        """(seeds,) a figure where the axes have ``settings``, averaged over the axes that these leave out.

        A seed that lacks any of the runs averaged over is NaN: a mean over fewer settings would be another figure.
        """
        figures = column(self.results, key)
        seeds = [[nan if row is None else figures[row] for row in rows] for rows in self.rows(settings)]
        return np.array([np.mean(values) for values in seeds], dtype=float)

    def need(self, keys: Iterable[str]) -> None:
        """Raise `InputError` where no run has one of the figures ``keys``."""
        if len(self.results):
            need_keys(keys, [self.results], (*self.axes, "run", "seed"), "no run has the figure")

    @cached_property
    def _row(self) -> Mapping[tuple[Value, ...], int]:
        keys = zip(*(self.results[name].tolist() for name in (*self.axes, "seed")), strict=True)
        return {key: row for row, key in enumerate(keys)}


@dataclass(frozen=True)
class Estimate:
    """A figure over seeds.

    Args:
        mean: NaN where no seed has the figure.
        spread: see `mean_and_spread`.
        n: seeds that have the figure.
    """

    mean: float
    spread: float
    n: int


def estimate(values: Sequence[float] | Floats, spread: Spread) -> Estimate:
    """What ``values``, one a seed, say of their mean; NaN are left out.

    >>> estimate([1.0, 3.0, nan], "sd")
    Estimate(mean=2.0, spread=1.4142135623730951, n=2)
    """
    known = np.array([value for value in values if not np.isnan(value)], dtype=float)
    mean, deviation = mean_and_spread(known, spread)
    return Estimate(float(mean), float(deviation), len(known))


def mean_and_spread(values: Floats, spread: Spread) -> tuple[Floats, Floats]:
    """The mean over the first dimension, (seeds, ...), and its spread; NaN in ``values`` are left out.

    The spread is the sample standard deviation ("sd") or half the width of the 95 % confidence interval of the mean
    by Student's t ("ci"), and NaN below two seeds.
    """
    known = ~np.isnan(values)
    n = known.sum(axis=0)
    sums = np.where(known, values, 0.0).sum(axis=0)
    mean = np.where(n > 0, sums / np.maximum(n, 1), np.nan)
    squares = np.where(known, values - mean, 0.0) ** 2
    deviation = np.where(n > 1, np.sqrt(squares.sum(axis=0) / np.maximum(n - 1, 1)), np.nan)
    if spread == "ci":
        deviation = deviation * stdtrit(np.maximum(n - 1, 1), 0.975) / np.sqrt(np.maximum(n, 1))
    return mean, deviation


def figures_in(frame: pd.DataFrame, besides: Iterable[str]) -> list[str]:
    """The columns of numbers, ``besides`` excepted, that have one at least."""
    other = set(besides)
    names = [str(name) for name in frame if name not in other]
    return [name for name in names if pd.api.types.is_numeric_dtype(frame[name]) and frame[name].notna().any()]


def need_keys(keys: Iterable[str], frames: Iterable[pd.DataFrame], besides: Iterable[str], lacking: str) -> None:
    """Each of ``keys`` must be among the figures of one of ``frames``, which are looked at as far as necessary.

    Raises:
        InputError: no frame has one of them; ``lacking`` begins the sentence.
    """
    left, known, besides = list(keys), {}, list(besides)
    for frame in frames:
        known |= dict.fromkeys(figures_in(frame, besides))
        left = [key for key in left if key not in known]
        if not left:
            return
    if left:
        raise InputError(f"{lacking} '{left[0]}'; {nearest(left[0], known) if known else 'they have none'}")
