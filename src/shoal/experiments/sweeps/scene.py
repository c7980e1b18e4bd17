"""What a figure is about: its wish, what the sweep varies, and the runs that stand at one place of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from shoal.core.checks import InputError, nearest
from shoal.experiments.frames import Floats
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


def named(scene: Scene, setting: str) -> str:
    """A setting of `by` with its axis, where it is a number and says little alone."""
    by = scene.asked.by
    plain = by is not None and all(isinstance(each, str) for each in scene.axes[by])
    # A number alone in its line would be lost.
    return setting if plain or by is None else f"{scene.words.axis(by)}\N{NO-BREAK SPACE}{setting}"
