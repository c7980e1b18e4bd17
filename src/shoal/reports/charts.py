"""Curves over rounds for several pages, and phrases for named values."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from shoal.core.formats import capitalize, decimal
from shoal.metrics.intervals import Ints
from shoal.reports.plotting import (
    CHANCE_LINE,
    MARK_LINE,
    Figure,
    LineStyle,
    add_named_points,
    cluster_style,
    draw_diamond,
    draw_figure,
    key,
    legend,
)

NAMED = 60
"""The largest number of values of a curve with tooltips."""


MOST_NAMED = 3
"""The largest number of named values in a title; of more values, the title has number and range."""


def evenly(count: int, most: int = NAMED) -> Ints:
    """Return at most ``most`` evenly spaced indices of ``count`` values, including the last index.

    >>> evenly(3).tolist(), evenly(9, most=3).tolist()
    ([0, 1, 2], [0, 4, 8])
    """
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve over rounds, with optional intervals.

    Args:
        values: the values by round, or NaN for a missing value.
        low, high: the ends of the values' intervals, by round, or ``None`` if intervals are unknown.
    """

    label: str
    values: pd.Series
    style: LineStyle
    low: pd.Series | None = None
    high: pd.Series | None = None

    @property
    def end(self) -> str:
        """The last value as text."""
        values = self.values.dropna()
        return f"{self.label} {decimal(values.iloc[-1]) if len(values) else 'unknown'}"

    @property
    def key(self) -> Line2D:
        """The curve's legend entry."""
        return key(self.label, **self.style.line)

    def draw(self, axes: Axes, until: float | None = None) -> None:
        """Draw the curve and the band of its intervals.

        Values between missing values are dots. With ``until``, the curve is a step function that ends in that round.
        """
        band = [self.values if end is None else end for end in (self.low, self.high)]
        values, low, high = (_held(series, until) for series in (self.values, *band))
        valid = values.notna()
        alone = valid & ~valid.shift(1, fill_value=False) & ~valid.shift(-1, fill_value=False) & (until is None)
        kind: Any = "default" if until is None else "steps-post"
        axes.plot(
            values.index, values, **self.style.line, label=self.label, marker="o", markersize=4,
            markevery=alone.tolist(), drawstyle=kind,
        )  # fmt: skip
        if self.low is not None:
            step: Any = None if until is None else "post"
            axes.fill_between(values.index, low, high, step=step, color=self.style.color, alpha=0.15, linewidth=0)
        named = self.values.dropna()
        named = named.iloc[evenly(len(named))]
        texts = [f"{self.label}, round {number:.0f}: {decimal(value)}" for number, value in named.items()]
        add_named_points(axes, named.index.to_list(), named.to_list(), texts)


def _held(values: pd.Series, until: float | None) -> pd.Series:
    return values if until is None else pd.concat([values, pd.Series({until: values.iloc[-1]})])


def curves_by_cluster(rounds: pd.DataFrame, column: str, *ends: str) -> list[Curve]:
    """Create one curve per cluster from a table with one row per round and cluster.

    Args:
        ends: the columns with the lower and the upper ends of the values' intervals, if there are intervals.
    """
    columns = [rounds.pivot_table(index="round", columns="cluster", values=name, dropna=False)
               for name in (column, *ends)]  # fmt: skip
    return [
        Curve(f"cluster {k}", columns[0][k], cluster_style(int(k)), *(table[k] for table in columns[1:]))
        for k in columns[0].columns
    ]


def ends(curves: Iterable[Curve]) -> str:
    """Describe the curves' last values in a phrase."""
    return ", ".join(curve.end for curve in curves)


@dataclass(frozen=True, eq=False)
class RoundPanel:
    """A panel with curves over rounds.

    Args:
        least: the range of values that the vertical axis must include.
        measured: one final value per curve, drawn as a diamond on the right, or NaN for no diamond.
    """

    curves: Sequence[Curve]
    label: str
    title: str = ""
    steps: bool = False
    least: tuple[float, float] | None = None
    level: float | None = None
    line: Mapping[str, Any] = field(default_factory=lambda: CHANCE_LINE)
    measured: Sequence[float] = ()

    def draw(self, axes: Axes, rounds: pd.Series) -> None:
        """Draw the panel on ``axes``."""
        end = fit_rounds(axes, rounds)
        for curve in self.curves:
            curve.draw(axes, end if self.steps else None)
        for curve, value in zip(self.curves, self.measured, strict=False):
            if not isnan(value):
                draw_diamond(
                    axes, end, value, f"{curve.label}, measured at the end: {decimal(value)}", curve.style.color
                )
        if self.level is not None:
            axes.axhline(self.level, **self.line)
        if self.least is not None:
            low, high = axes.get_ylim()
            axes.set_ylim(min(low, self.least[0]), max(high, self.least[1]))
        axes.set_title(self.title, loc="left")
        axes.set_ylabel(self.label)


def rounds_chart(
    name: str,
    title: str,
    caption: str,
    panels: Sequence[RoundPanel],
    rounds: pd.Series,
    keys: Sequence[Line2D] = (),
    marks: Mapping[int, str] | None = None,
) -> Figure:
    """Create a figure of stacked panels with a common axis of rounds.

    Args:
        marks: the labels of dashed vertical lines, by the round that follows the line.
    """
    events = "; ".join(f"{text} before round {place}" for place, text in (marks or {}).items())
    caption += f" Dashed: {events}." if events else ""

    def draw(figure: MplFigure) -> None:
        if len(panels) > 1:
            figure.set_figheight(1.3 + 1.35 * len(panels))
        cells = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, panel in zip(cells, panels, strict=True):
            panel.draw(axes, rounds)
            for place in marks or {}:
                axes.axvline(place - 0.5, **MARK_LINE)
        over_rounds(cells[-1])
        figure.align_ylabels(cells)
        legend(figure, [*(curve.key for curve in panels[0].curves), *keys], columns=2 if keys else 3)

    alt = [
        f"{panel.title or capitalize(panel.label)} over rounds. At the end: {ends(panel.curves)}." for panel in panels
    ]
    return draw_figure(name, title, caption, " ".join(alt), draw)


def over_rounds(axes: Axes) -> None:
    """Label a horizontal axis with integer rounds."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def round_axes(figure: MplFigure, label: str) -> Axes:
    """Add axes over rounds to a figure."""
    axes = figure.subplots()
    over_rounds(axes)
    axes.set_ylabel(label)
    return axes


def round_panels(figure: MplFigure, titles: Sequence[str], label: str) -> list[Axes]:
    """Add one panel per title to a figure, with a common axis of rounds and a common vertical scale."""
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
    """Limit the horizontal axis to ``rounds``, and return the right end of the axis."""
    first, last = float(rounds.min()), float(rounds.max())
    end = last + max(0.5, 0.02 * (last - first + 1))
    axes.set_xlim(first - 0.5, end)
    return end


def by_name(values: Mapping[str, float], form: Callable[[float], str] = decimal) -> str:
    """List values with their names, or return the range of more than `MOST_NAMED` values.

    >>> by_name({"a": 0.5, "b": 0.7}), by_name(dict(zip("abcd", (0.5, 0.7, 0.6, 0.6))))
    ('0.500 (a), 0.700 (b)', '0.500 to 0.700')
    """
    if len(values) > MOST_NAMED:
        return span([*values.values()], form)
    return ", ".join(f"{form(value)} ({name})" for name, value in values.items())


def span(values: Sequence[float], form: Callable[[float], str] = decimal) -> str:
    """Return the range of the values as text, or a single number if both ends are formatted alike."""
    return " to ".join(dict.fromkeys(form(end) for end in (min(values), max(values))))
