"""What a figure is about: its wish, what the sweep varies, and the runs that stand at one place of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from shoal.core.checks import InputError, nearest
from shoal.experiments.frames import Floats, column
from shoal.experiments.sweeps.shown import Axes, FigureSection, Value
from shoal.experiments.sweeps.words import Words


@dataclass(frozen=True)
class Scene:
    """A figure that is asked for, over the runs there are.

    Args:
        asked: the figure.
        results: a row a finished run.
        axes: what the sweep varies.
        seeds: of the sweep.
        words: names of axes, settings and keys.
    """

    asked: FigureSection
    results: pd.DataFrame
    axes: Axes
    seeds: Sequence[int]
    words: Words

    def settings(self, axis: str | None) -> Sequence[Value | None]:
        """The settings of an axis in the order of the file; None alone where the figure has no such axis."""
        return [None] if axis is None else self.axes[axis]

    def rows(self, x: Value | None, by: Value | None) -> list[list[int | None]]:
        """(seeds, settings averaged over) the row of each run at a place of the figure; None where a run is missing."""
        shown = ((self.asked.x, x), (self.asked.by, by))
        held = self.asked.where | {axis: value for axis, value in shown if axis is not None and value is not None}
        choices = list(product(*([held[axis]] if axis in held else self.axes[axis] for axis in self.axes)))
        return [[self._row.get((*each, seed)) for each in choices] for seed in self.seeds]

    @cached_property
    def _row(self) -> Mapping[tuple[Value, ...], int]:
        keys = zip(*(self.results[name].tolist() for name in (*self.axes, "seed")), strict=True)
        return {key: row for row, key in enumerate(keys)}


@dataclass(frozen=True)
class Mark:
    """What stands at one place of a chart.

    Args:
        values: (n,) a figure, one a seed that has it, in the order of the seeds.
        runs: how many runs are finished here.
    """

    values: Floats
    runs: int

    @property
    def n(self) -> int:
        """How many seeds it rests on."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Over seeds; NaN without any."""
        return float(self.values.mean()) if self.n else float("nan")


def mark_at(scene: Scene, key: str, x: Value | None, by: Value | None) -> Mark:
    """The figure ``key`` at a place of a chart, each seed averaged over the axes of `average`.

    A seed that lacks any of the runs averaged over is left out: a mean over fewer settings would be another figure.
    """
    figures = column(scene.results, key)
    places = scene.rows(x, by)
    seeds = [np.mean([np.nan if row is None else figures[row] for row in rows]) for rows in places]
    values = np.array(seeds, dtype=float)
    return Mark(values[~np.isnan(values)], sum(row is not None for rows in places for row in rows))


def mean_and_spread(values: Floats, spread: str) -> tuple[Floats, Floats]:
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


def need_keys(asked: Iterable[str], frames: Iterable[pd.DataFrame], besides: Iterable[str]) -> None:
    """Each key that is asked for is a column of numbers in one of ``frames``, ``besides`` excepted.

    Raises:
        InputError: no frame has one of them.
    """
    other = set(besides)
    known: set[str] = set()
    for frame in frames:
        names = [str(name) for name in frame if name not in other and name not in known]
        known.update(name for name in names if pd.api.types.is_numeric_dtype(frame[name]) and frame[name].notna().any())
    for key in asked:
        if key not in known:
            hint = nearest(key, known) if known else "they have none"
            raise InputError(f"no run has the figure '{key}'; {hint}")
