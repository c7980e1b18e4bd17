"""Means and standard deviations over the seeds of a sweep."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import isnan, nan
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shoal.metrics.intervals import mean_interval
from shoal.reports.sweep.report_spec import Axes, Displayed, format_value

SeedValues = NDArray[np.float64]


class SeedMeans(NamedTuple):
    """Means and standard deviations over seeds, and numbers of seeds with a value, as arrays of equal shape."""

    mean: SeedValues
    spread: SeedValues
    n: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SeedStatistics:
    """The finished runs of a sweep, arranged by setting and seed.

    Args:
        results: one row per finished run, with the columns ``run`` and ``seed``, and a column per axis and per metric.
    """

    results: pd.DataFrame
    axes: Axes
    seeds: Sequence[int]

    def rows(self, spec: Displayed) -> NDArray[np.int64]:
        """Return the row of each run in ``results``, (seeds, displayed settings, averaged settings); -1 marks
        unfinished runs.

        The settings are ordered like nested loops; the last axis varies fastest.
        """
        by, where = spec.displayed, spec.where
        rest = [axis for axis in self.axes if axis not in by]
        settings = [[where[axis]] if axis in where else self.axes[axis] for axis in (*by, *rest)]
        runs = self.results[["seed", *by, *rest]].itertuples(index=False, name=None)
        row_of = {run: row for row, run in enumerate(runs)}
        rows = np.array([row_of.get(run, -1) for run in product(self.seeds, *settings)])
        places = int(np.prod([len(self.axes[axis]) for axis in by]))
        return rows.reshape(len(self.seeds), places, -1)

    def by_seed(self, values: SeedValues, spec: Displayed) -> SeedValues:
        """Average ``values`` (runs, ...) over the axes of `average`; the result is (seeds, displayed settings, ...).

        A mean is NaN if a run is missing.
        """
        missing = np.full((1, *values.shape[1:]), np.nan)
        return np.concatenate([values, missing])[self.rows(spec)].mean(axis=2)

    def metrics_by_seed(self, spec: Displayed) -> SeedValues:
        """Return the metrics of ``spec``, (seeds, displayed settings, metrics); missing metrics are NaN."""
        return self.by_seed(self._values(spec), spec)

    def undefined(self, spec: Displayed) -> NDArray[np.int64]:
        """Count the finished runs without a metric of ``spec``, (displayed settings, metrics)."""
        lacks = np.concatenate([np.isnan(self._values(spec)), np.zeros((1, len(spec.y)), dtype=bool)])
        return lacks[self.rows(spec)].sum(axis=(0, 2))

    def _values(self, spec: Displayed) -> SeedValues:
        """Return the metrics of ``spec``, (runs, metrics), NaN if a run has none."""
        return self.results.reindex(columns=spec.y).to_numpy(dtype=float)


def estimate(values: SeedValues) -> SeedMeans:
    """Compute means and standard deviations of ``values`` (seeds, ...) over seeds, ignoring NaN.

    The standard deviation is NaN with fewer than two seeds.

    >>> result = estimate(np.array([1.0, 3.0, np.nan]))
    >>> float(result.mean), float(result.spread), int(result.n)
    (2.0, 1.4142135623730951, 2)
    """
    frame = pd.DataFrame(values.reshape(len(values), -1))
    columns: list[pd.Series] = [frame.mean(), frame.std(), frame.count()]
    mean, deviation, n = (series.to_numpy().reshape(values.shape[1:]) for series in columns)
    return SeedMeans(mean, deviation, n)


def metrics_in(frame: pd.DataFrame, besides: Iterable[str]) -> list[str]:
    """Return the names of numeric columns with at least one value, except the columns ``besides``."""
    columns = frame.drop(columns=list(besides), errors="ignore").dropna(axis="columns", how="all")
    return [str(name) for name in columns.select_dtypes("number")]


LEAST_ALIKE = 6
"""The smallest number of seeds on which an equal difference is significant, since 2 / 2^6 is below 5 %."""


class Difference(NamedTuple):
    """The mean difference between two settings over paired seeds, with Student's 95 % interval.

    Args:
        low, high: the ends of the interval, or NaN with fewer than two seeds.
        tests: the number of differences with simultaneous intervals.
    """

    key: str
    mean: float
    low: float
    high: float
    same: bool
    n: int
    tests: int

    @staticmethod
    def of(by_seed: SeedValues, key: str, tests: int = 1) -> "Difference":
        """Estimate the mean of differences (seeds,) of the metric ``key``, ignoring NaN."""
        known = by_seed[~np.isnan(by_seed)]
        n, mean = len(known), float(known.mean()) if len(known) else nan
        same = n > 1 and not known.any()
        return Difference(key, mean, *mean_interval(known, 1 - 0.05 / tests), same, n, tests)

    @property
    def shown(self) -> bool:
        """Whether the difference is significant.

        A difference that is equal on all seeds is significant only with at least `LEAST_ALIKE` seeds.
        """
        return (self.low > 0 or self.high < 0) and (self.low < self.high or self.n >= LEAST_ALIKE)

    @property
    def interval(self) -> str:
        """The ends of the interval as text, or an empty string without an interval."""
        ends = [] if isnan(self.low) else [self.low, self.high]
        return " to ".join(signed_difference(end, self.key) for end in ends)

    @property
    def text(self) -> str:
        """The difference with its interval, or "not decided", for a table cell."""
        if self.n == 0:
            return ""
        if self.same:
            return f"the same in {self.n} seed{'s' * (self.n > 1)}"
        end = f" ({self.interval})" if self.shown else ", not decided"
        return signed_difference(self.mean, self.key) + end


class Best(NamedTuple):
    """The setting with the best mean, compared with every other setting.

    Args:
        others: the best setting's difference from every other setting, by the other setting's name, the next best
            first.
    """

    setting: str
    mean: float
    others: dict[str, Difference]
    means: dict[str, float]

    @staticmethod
    def of(by_seed: SeedValues, names: Sequence[str], key: str, better: str | None) -> "Best | None":
        """Find the best setting from values (seeds, settings), or return ``None`` if fewer than two settings have
        values.

        The intervals of the differences are simultaneous (Bonferroni).
        """
        sign = -1 if better == "lower" else 1
        means = {i: float(np.nanmean(column)) for i, column in enumerate(by_seed.T) if not np.isnan(column).all()}
        names = [*map(called, names)]
        first, *rest = sorted(means, key=lambda i: -sign * means[i]) or [0]
        if not rest:
            return None
        others = {names[i]: Difference.of(by_seed[:, first] - by_seed[:, i], key, len(rest)) for i in rest}
        return Best(names[first], means[first], others, {names[i]: mean for i, mean in means.items()})

    @property
    def untold(self) -> list[str]:
        """The settings that do not differ significantly from the best setting."""
        return [name for name, difference in self.others.items() if not difference.shown]

    @property
    def same(self) -> bool:
        """Whether all settings are equal on every seed."""
        return all(difference.same for difference in self.others.values())


def signed_difference(value: float, key: str) -> str:
    """Format a difference of the metric ``key`` with its sign."""
    text = format_value(value, key)
    return text if value <= 0 or float(text) == 0 else f"+{text}"


def called(name: str) -> str:
    """Return a setting's name for use in a sentence, with quotation marks where necessary.

    >>> called("IFCA"), called("none"), called("noise 1, clipped")
    ('IFCA', "'none'", "'noise 1, clipped'")
    """
    return f"'{name}'" if name[:1].islower() or "," in name else name
