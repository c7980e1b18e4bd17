"""Means over the seeds of a sweep, and their spread."""

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
    """Means over seeds, their spread, and how many seeds have a value, as arrays of one shape."""

    mean: SeedValues
    spread: SeedValues
    n: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SeedStatistics:
    """The finished runs of a sweep, arranged by setting and seed.

    Args:
        results: one row per finished run: ``run``, one column per axis, ``seed``, and one column per metric.
        axes: what the sweep varies.
        seeds: the seeds of each setting.
    """

    results: pd.DataFrame
    axes: Axes
    seeds: Sequence[int]

    def rows(self, spec: Displayed) -> NDArray[np.int64]:
        """(seeds, displayed settings, settings averaged over) the row of each run; -1 where it is not finished.

        Settings are in the order of their product, the last axis fastest. Axes that are neither displayed nor held are
        averaged over.
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
        """(seeds, displayed settings, ...) the mean of ``values`` (runs, ...) over the settings averaged over.

        It is NaN where one of these runs is missing: a mean over fewer settings would be another quantity.
        """
        missing = np.full((1, *values.shape[1:]), np.nan)
        return np.concatenate([values, missing])[self.rows(spec)].mean(axis=2)

    def metrics_by_seed(self, spec: Displayed) -> SeedValues:
        """(seeds, displayed settings, metrics) the metrics of ``spec``, NaN where a run has none."""
        return self.by_seed(self._values(spec), spec)

    def undefined(self, spec: Displayed) -> NDArray[np.int64]:
        """(displayed settings, metrics) how many finished runs of a place do not have a metric of ``spec``."""
        lacks = np.concatenate([np.isnan(self._values(spec)), np.zeros((1, len(spec.y)), dtype=bool)])
        return lacks[self.rows(spec)].sum(axis=(0, 2))

    def _values(self, spec: Displayed) -> SeedValues:
        """(runs, metrics) the metrics of ``spec``, NaN where a run has none."""
        return self.results.reindex(columns=spec.y).to_numpy(dtype=float)


def estimate(values: SeedValues) -> SeedMeans:
    """The means of ``values`` (seeds, ...) over seeds, NaN left out, and their standard deviation, NaN below two seeds.

    >>> result = estimate(np.array([1.0, 3.0, np.nan]))
    >>> float(result.mean), float(result.spread), int(result.n)
    (2.0, 1.4142135623730951, 2)
    """
    frame = pd.DataFrame(values.reshape(len(values), -1))
    columns: list[pd.Series] = [frame.mean(), frame.std(), frame.count()]
    mean, deviation, n = (series.to_numpy().reshape(values.shape[1:]) for series in columns)
    return SeedMeans(mean, deviation, n)


def metrics_in(frame: pd.DataFrame, besides: Iterable[str]) -> list[str]:
    """The columns of numbers, other than ``besides``, that have a value."""
    columns = frame.drop(columns=list(besides), errors="ignore").dropna(axis="columns", how="all")
    return [str(name) for name in columns.select_dtypes("number")]


LEAST_ALIKE = 6
"""Seeds that must all differ the same way to show it without a spread: 2 / 2^6 is below 5 %."""


class Difference(NamedTuple):
    """The mean over n seeds of (setting - other setting), with Student's 95 % interval for ``tests`` of them at once.

    Without a second seed its ends are NaN. ``same``: no seed differs.
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
        """The difference of the metric ``key`` in values (seeds,), NaN where a setting has none."""
        known = by_seed[~np.isnan(by_seed)]
        n, mean = len(known), float(known.mean()) if len(known) else nan
        same = n > 1 and not known.any()
        return Difference(key, mean, *mean_interval(known, 1 - 0.05 / tests), same, n, tests)

    @property
    def shown(self) -> bool:
        """Whether the interval leaves out 0; where all seeds differ by the same, their equal signs must be rare."""
        return (self.low > 0 or self.high < 0) and (self.low < self.high or self.n >= LEAST_ALIKE)

    @property
    def interval(self) -> str:
        """Its ends; empty where there are none."""
        ends = [] if isnan(self.low) else [self.low, self.high]
        return " to ".join(signed_difference(end, self.key) for end in ends)

    @property
    def text(self) -> str:
        """Within a cell: the difference with its interval, or that it is not decided."""
        if self.n == 0:
            return ""
        if self.same:
            return f"the same in {self.n} seed{'s' * (self.n > 1)}"
        end = f" ({self.interval})" if self.shown else ", not decided"
        return signed_difference(self.mean, self.key) + end


class Best(NamedTuple):
    """The setting of the best mean, its difference to each other one, the next best first, and their means."""

    setting: str
    mean: float
    others: dict[str, Difference]
    means: dict[str, float]

    @staticmethod
    def of(by_seed: SeedValues, names: Sequence[str], key: str, better: str | None) -> "Best | None":
        """The best of the settings called ``names`` by values (seeds, settings); None where fewer than two have any.

        Differences are on the side of the best, with intervals that hold for all of them at once, since the best is
        chosen among them (Bonferroni).
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
        """The settings that it is not shown to differ from."""
        return [name for name, difference in self.others.items() if not difference.shown]

    @property
    def same(self) -> bool:
        """Whether no seed tells any two settings apart."""
        return all(difference.same for difference in self.others.values())


def signed_difference(value: float, key: str) -> str:
    """A difference of the metric ``key`` with its sign."""
    text = format_value(value, key)
    return text if value <= 0 or float(text) == 0 else f"+{text}"


def called(name: str) -> str:
    """A setting within a sentence, in quotation marks where it would read as a part of it.

    >>> called("IFCA"), called("none"), called("noise 1, clipped")
    ('IFCA', "'none'", "'noise 1, clipped'")
    """
    return f"'{name}'" if name[:1].islower() or "," in name else name
