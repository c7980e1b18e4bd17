"""Means over the seeds of a sweep, and their spread."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from shoal.reports.sweep.report_spec import Axes, Displayed, Spread

Floats = NDArray[np.float64]


class SeedMeans(NamedTuple):
    """Means over seeds, their spread, and how many seeds have a value, as arrays of one shape."""

    mean: Floats
    spread: Floats
    n: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SeedStatistics:
    """The finished runs of a sweep, arranged by setting and seed.

    Args:
        results: one row per finished run: ``run``, one column per axis, ``seed``, and one column per metric.
        axes: what the sweep varies.
        seeds: of each setting.
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

    def by_seed(self, values: Floats, spec: Displayed) -> Floats:
        """(seeds, displayed settings, ...) the mean of ``values`` (runs, ...) over the settings averaged over.

        It is NaN where one of these runs is missing: a mean over fewer settings would be another quantity.
        """
        missing = np.full((1, *values.shape[1:]), np.nan)
        return np.concatenate([values, missing])[self.rows(spec)].mean(axis=2)

    def metrics_by_seed(self, spec: Displayed) -> Floats:
        """(seeds, displayed settings, metrics) the metrics of ``spec``, NaN where a run has none."""
        return self.by_seed(self._values(spec), spec)

    def undefined(self, spec: Displayed) -> NDArray[np.int64]:
        """(displayed settings, metrics) how many finished runs of a place do not have a metric of ``spec``."""
        lacks = np.concatenate([np.isnan(self._values(spec)), np.zeros((1, len(spec.y)), dtype=bool)])
        return lacks[self.rows(spec)].sum(axis=(0, 2))

    def _values(self, spec: Displayed) -> Floats:
        """(runs, metrics) the metrics of ``spec``, NaN where a run has none."""
        return self.results.reindex(columns=spec.y).to_numpy(dtype=float)


def estimate(values: Floats, spread: Spread) -> SeedMeans:
    """The means of ``values`` (seeds, ...) over seeds, NaN left out, and their spread, which is NaN below two seeds.

    >>> result = estimate(np.array([1.0, 3.0, np.nan]), "sd")
    >>> float(result.mean), float(result.spread), int(result.n)
    (2.0, 1.4142135623730951, 2)
    """
    frame = pd.DataFrame(values.reshape(len(values), -1))
    n, deviation = frame.count(), frame.std()
    if spread == "ci":
        deviation = deviation * stdtrit(n - 1, 0.975) / np.sqrt(n)
    mean, deviation, n = (series.to_numpy().reshape(values.shape[1:]) for series in (frame.mean(), deviation, n))
    return SeedMeans(mean, deviation, n)


def metrics_in(frame: pd.DataFrame, besides: Iterable[str]) -> list[str]:
    """The columns of numbers, other than ``besides``, that have a value."""
    columns = frame.drop(columns=list(besides), errors="ignore").dropna(axis="columns", how="all")
    return [str(name) for name in columns.select_dtypes("number")]
