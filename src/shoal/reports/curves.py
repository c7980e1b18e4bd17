"""Curves over rounds."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from shoal.core.formats import decimal
from shoal.reports.plotting import LineStyle
from shoal.reports.svg import add_named_points

NAMED = 60
"""Values of a curve that are named: more could not be told apart with a pointer."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Values by round, NaN where there is none."""

    label: str
    values: pd.Series
    style: LineStyle

    @property
    def end(self) -> str:
        """The last value, in words."""
        known = self.values.dropna()
        return f"{self.label} {decimal(known.iloc[-1]) if len(known) else 'unknown'}"

    def key(self, marker: str = "") -> Line2D:
        """The entry of the legend: the line, or ``marker`` alone."""
        dashes = "" if marker else self.style.dashes
        return Line2D([], [], color=self.style.color, linestyle=dashes, marker=marker, label=self.label)

    def draw(self, axes: Axes) -> Line2D:
        """Draw and return the curve, with a dot for a value without neighbours, of which no line would show any."""
        known = self.values.notna()
        alone = known & ~known.shift(1, fill_value=False) & ~known.shift(-1, fill_value=False)
        (line,) = axes.plot(
            self.values.index, self.values, color=self.style.color, linestyle=self.style.dashes,
            marker="o", markersize=4, markevery=alone.tolist(),
        )  # fmt: skip
        self.name_values(axes)
        return line

    def name_values(self, axes: Axes) -> None:
        """Let at most `NAMED` of the values, evenly chosen and with the last, be named under the pointer."""
        values = self.values.dropna()
        values = values.iloc[np.unique(np.linspace(0, len(values) - 1, min(NAMED, len(values))).round().astype(int))]
        texts = [f"{self.label}, round {number:.0f}: {decimal(value)}" for number, value in values.items()]
        add_named_points(axes, values.index.to_list(), values.to_list(), texts)


def over_rounds(axes: Axes) -> None:
    """Let the axis across count rounds."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def round_axes(figure: MplFigure, label: str) -> Axes:
    """Axes over rounds."""
    axes = figure.subplots()
    over_rounds(axes)
    axes.set_ylabel(label)
    return axes


def fit_rounds(axes: Axes, rounds: pd.Series) -> float:
    """Limit the axis to the ``rounds`` there are; returns its right end."""
    first, last = float(rounds.min()), float(rounds.max())
    end = last + max(0.5, 0.02 * (last - first + 1))
    axes.set_xlim(first - 0.5, end)
    return end
