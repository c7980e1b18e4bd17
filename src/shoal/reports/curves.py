"""Curves over rounds, and values with their names in titles of figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from shoal.core.formats import decimal
from shoal.metrics.intervals import Floats, Ints
from shoal.reports.plotting import LineStyle, add_named_points, key

NAMED = 60
"""Values of a curve that are named: more could not be told apart with a pointer."""


MOST_NAMED = 3
"""Names and values in a title: of more, how many they are and their range."""


def evenly(count: int, most: int = NAMED) -> Ints:
    """At most so many indices of ``count`` values, evenly chosen and with the last.

    >>> evenly(3).tolist(), evenly(9, most=3).tolist()
    ([0, 1, 2], [0, 4, 8])
    """
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))


@dataclass(frozen=True, eq=False)
class Curve:
    """Values by round, NaN where there is none."""

    label: str
    values: pd.Series
    style: LineStyle

    @property
    def end(self) -> str:
        """The last value, in words."""
        values = self.values.dropna()
        return f"{self.label} {decimal(values.iloc[-1]) if len(values) else 'unknown'}"

    @property
    def key(self) -> Line2D:
        """Its entry in a legend."""
        return key(self.label, **self.style.line)

    def draw(self, axes: Axes) -> Line2D:
        """Draw and return the curve, with a dot for a value without neighbours, of which no line would show any."""
        valid = self.values.notna()
        alone = valid & ~valid.shift(1, fill_value=False) & ~valid.shift(-1, fill_value=False)
        (line,) = axes.plot(
            self.values.index, self.values, **self.style.line, marker="o", markersize=4, markevery=alone.tolist()
        )
        self._name_values(axes)
        return line

    def held_until(self, end: float) -> tuple[Floats, Floats]:
        """The rounds and values, the last of which holds until ``end``."""
        return np.append(self.values.index, end), np.append(self.values, self.values.iloc[-1])

    def draw_steps(self, axes: Axes, end: float) -> None:
        """Draw values that hold until the next one, and the last until ``end``."""
        axes.step(*self.held_until(end), where="post", **self.style.line)
        self._name_values(axes)

    def _name_values(self, axes: Axes) -> None:
        values = self.values.dropna()
        values = values.iloc[evenly(len(values))]
        texts = [f"{self.label}, round {number:.0f}: {decimal(value)}" for number, value in values.items()]
        add_named_points(axes, values.index.to_list(), values.to_list(), texts)


def ends(curves: Iterable[Curve]) -> str:
    """The last value of each, in words."""
    return ", ".join(curve.end for curve in curves)


def ends_title(subject: str, curves: Sequence[Curve], form: Callable[[float], str] = decimal) -> str:
    """The title of curves without a finding: what they are, and where they end.

    >>> from shoal.core.formats import percent
    >>> accuracy = Curve("cluster 0", pd.Series([0.5, 0.7]), LineStyle("#000000", "-", "o"))
    >>> ends_title("Accuracy", [accuracy], percent)
    'Accuracy ends at 70.0 % (cluster 0)'
    """
    last = {curve.label: values.iloc[-1] for curve in curves if len(values := curve.values.dropna())}
    return f"{subject} ends at {by_name(last, form)}"


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


def round_panels(figure: MplFigure, titles: Sequence[str], label: str) -> list[Axes]:
    """One panel over rounds for each title, on the same scales; the figure gets the height that they need."""
    columns = 1 if len(titles) <= 4 else 2
    lines = -(-len(titles) // columns)
    figure.set_figheight(max(2.6, 1.2 + 1.2 * lines))
    cells = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten().tolist()
    for axes in cells[len(titles) :]:
        axes.set_visible(False)
    for axes, title in zip(cells, titles, strict=False):
        axes.set_title(title, loc="left")
        over_rounds(axes)
        axes.set_ylabel(label)
        axes.label_outer()
    panels = cells[: len(titles)]
    for axes in panels[-columns:]:
        axes.set_xlabel("round")
        axes.tick_params(labelbottom=True)
    return panels


def fit_rounds(axes: Axes, rounds: pd.Series) -> float:
    """Limit the axis to the ``rounds`` there are; returns its right end."""
    first, last = float(rounds.min()), float(rounds.max())
    end = last + max(0.5, 0.02 * (last - first + 1))
    axes.set_xlim(first - 0.5, end)
    return end


def by_name(values: Mapping[str, float], form: Callable[[float], str] = decimal) -> str:
    """Values with their names; of more than `MOST_NAMED` their span.

    >>> by_name({"a": 0.5, "b": 0.7}), by_name(dict(zip("abcd", (0.5, 0.7, 0.6, 0.6))))
    ('0.500 (a), 0.700 (b)', '0.500 to 0.700')
    """
    if len(values) > MOST_NAMED:
        return span([*values.values()], form)
    return ", ".join(f"{form(value)} ({name})" for name, value in values.items())


def span(values: Sequence[float], form: Callable[[float], str] = decimal) -> str:
    """The least and the largest; one where they read the same."""
    return " to ".join(dict.fromkeys(form(end) for end in (min(values), max(values))))
