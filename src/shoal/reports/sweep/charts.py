"""Boxes, bars and lines over the settings of an axis, one panel per metric."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from shoal.reports.frames import Floats
from shoal.reports.plotting import cluster_style
from shoal.reports.sweep.figure_data import NOTE, Content, FigureData, Panel, columns_of, line_handles, line_style
from shoal.reports.sweep.labels import SPREADS
from shoal.reports.sweep.number_format import format_value
from shoal.reports.sweep.seed_statistics import Estimate, estimate

RED = "#C00000"
"""The colour of medians."""

# Light and dark by turns, so that neighbours differ in grey too; 1 is the full colour, 0 is white.
_STRENGTHS = (0.75, 0.4, 0.7, 0.2, 0.95, 0.35, 0.4)
_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "++++", "oo")
_MEDIAN: dict[str, Any] = {"color": RED, "linewidth": 2.0}
_MEAN: dict[str, Any] = {"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black", "markersize": 4.6}
_SEED: dict[str, Any] = {
    "linestyle": "", "marker": "o", "color": "black", "markeredgecolor": "white", "markeredgewidth": 0.5,
    "markersize": 3.4, "zorder": 4,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Chart:
    """The values of a figure over the settings of an axis.

    In this file p, b and i number the metrics (one panel each), the settings of `by`, and those of `x`.

    Args:
        data: the figure.
        values: (metrics, settings of `by`, settings of `x`, seeds), NaN where there is none.
        result: (metrics, settings of `by`, settings of `x`) their estimates.
        notes: (metrics, settings of `by`, settings of `x`) on missing seeds; empty where all have a value.
    """

    data: FigureData
    values: Floats
    result: Estimate
    notes: np.ndarray

    @classmethod
    def of(cls, data: FigureData) -> "Chart":
        """The values of a figure; an `InputError` where no run has one of its metrics."""
        by_seed = data.statistics.metrics_by_seed(data.spec.y, data.spec.displayed, data.spec.where)
        shape = (len(data.settings(data.spec.by)), len(data.settings(data.spec.x)))
        values = by_seed.reshape(len(by_seed), *shape, -1).transpose(0, 3, 1, 2)
        result = estimate(values, data.spec.spread)
        few = np.where(result.n < len(values), np.char.add("n = ", result.n.astype(str)), "")
        notes = np.where(result.n == 0, data.missing().reshape(shape), few)
        return cls(data, np.moveaxis(values, 0, -1), result, notes)

    @property
    def width(self) -> float:
        """The width of a panel in inches."""
        return 3.2 if self.data.spec.kind == "lines" else min(max(3.2, 0.75 + 0.23 * self.notes[0].size), 9.6)

    def ticks(self) -> tuple[list[str], dict[str, Any]]:
        """The names of the settings of `x` and their style: in lines where their words have room, otherwise rotated."""
        names, letters = self.data.settings(self.data.spec.x), int(11.5 * (self.width - 0.75) / self.notes.shape[2])
        lines = [fill(name, max(letters, 1), break_long_words=False, break_on_hyphens=False) for name in names]
        rotated = any(name.count("\n") > 2 or max(map(len, name.splitlines()), default=0) > letters for name in lines)
        if not rotated:
            return lines, {}
        return [fill(name, 30) for name in names], {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}


def chart_content(data: FigureData) -> Content:
    """The content of a figure of boxes, bars or lines.

    Raises:
        InputError: no run has one of its metrics.
    """
    chart, spec, panels = Chart.of(data), data.spec, []
    for p, key in enumerate(spec.y):
        title = data.labels.key(key)
        # Where the file has no name for the axis, the title is its name, unless it says no more.
        y_label = spec.y_label or title.partition(",")[0]
        draw = partial(_draw_lines if spec.kind == "lines" else _draw_categories, chart=chart, p=p)
        panels.append(Panel(title, "" if y_label == title else y_label, spec.y_label or key, draw))
    values = chart.result.mean if spec.kind == "lines" else chart.values
    return Content(
        panels=panels,
        columns=columns_of(len(panels), int(9.7 / chart.width)),
        size=(chart.width, 3.9 if chart.ticks()[1] else 3.0),
        handles=_handles(data),
        caption=data.caption(_reading(data), chart.result.n.ravel().tolist(), values),
        description=_description(chart),
    )


def fill_style(i: int) -> dict[str, Any]:
    """The fill of setting number ``i``, distinguished by a paler colour and a hatch."""
    strength = _STRENGTHS[i % len(_STRENGTHS)]
    face = tuple(1 - strength * (1 - part) for part in to_rgb(cluster_style(i).color))
    return {"facecolor": face, "edgecolor": "black", "hatch": _HATCHES[i % len(_HATCHES)], "linewidth": 0.9}


def _draw_categories(axes: Axes, chart: Chart, p: int) -> float:
    """The boxes or bars of panel number ``p``, with a dot per seed; see `Panel.draw`."""
    boxes, count = chart.data.spec.kind == "boxes", chart.notes.shape[1]
    width, notes = 0.84 / count, {}
    _name_categories(axes, chart)
    for (b, i), mean in np.ndenumerate(chart.result.mean[p]):
        x, values = i + (b - (count - 1) / 2) * width, chart.values[p, b, i]
        values = values[~np.isnan(values)]
        notes[x] = str(chart.notes[p, b, i])
        if len(values) and boxes:
            axes.boxplot(
                values, positions=[x], widths=0.86 * width, patch_artist=True, showmeans=True, showfliers=False,
                manage_ticks=False, boxprops=fill_style(b), medianprops=_MEDIAN, meanprops=_MEAN | {"zorder": 5},
            )  # fmt: skip
        elif len(values):
            # Without a spread, of one seed, there is no error bar.
            spread = chart.result.spread[p, b, i]
            axes.bar(x, mean, 0.92 * width, yerr=spread, capsize=3, **fill_style(b))
        axes.plot(x + np.linspace(-0.3, 0.3, len(values) + 2)[1:-1] * width, values, **_SEED)
    if not boxes:
        axes.axhline(0.0, color="black", linewidth=0.8)
    return _write_notes(axes, notes)


def _draw_lines(axes: Axes, chart: Chart, p: int) -> float:
    """The means of panel number ``p`` joined by lines, which break where there is no mean; see `Panel.draw`."""
    at, log = _draw_x_axis(axes, chart)
    width, count = float(np.ptp(at)) or 1.0, chart.notes.shape[1]
    edges = np.array([at.min() - 0.08 * width, at.max() + 0.08 * width])
    axes.set_xlim(*(np.exp(edges) if log else edges).tolist())
    for b in range(count):
        # A little beside each other, or error bars would hide one another.
        x = at + 0.015 * width * (b - (count - 1) / 2)
        axes.errorbar(
            np.exp(x) if log else x, chart.result.mean[p, b], chart.result.spread[p, b], capsize=3, elinewidth=1.2,
            **line_style(b),
        )  # fmt: skip
    notes = {}
    for i, x in enumerate(np.exp(at) if log else at):
        here = set(chart.notes[p, :, i].tolist())
        notes[x] = here.pop() if len(here) == 1 else f"n = {', '.join(map(str, chart.result.n[p, :, i]))}"
    return _write_notes(axes, notes)


def _draw_x_axis(axes: Axes, chart: Chart) -> tuple[Floats, bool]:
    """The x axis of lines: a scale for numbers, otherwise categories.

    Returns the places of the settings, in natural logarithms on a logarithmic scale, and whether it is one.
    """
    data, axis = chart.data, chart.data.spec.x or ""
    settings = data.statistics.axes[axis]
    if any(isinstance(each, str | bool) for each in settings):
        _name_categories(axes, chart)
        return np.arange(len(settings), dtype=float), False
    at = np.array(settings, dtype=float)
    log = bool(at.min() > 0 and at.max() > 20 * at.min())
    axes.set_xscale("log" if log else "linear")
    names, style = chart.ticks()
    axes.set_xticks(at, names, **style)
    axes.minorticks_off()
    axes.set_xlabel(data.labels.axis(axis) + " (log scale)" * log)
    return np.log(at) if log else at, log


def _name_categories(axes: Axes, chart: Chart) -> None:
    """Name the categories at 0, 1, ..., and their axis."""
    names, style = chart.ticks()
    axes.set_xticks(range(len(names)), names, **style)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel(chart.data.labels.axis(chart.data.spec.x or ""))


def _write_notes(axes: Axes, notes: Mapping[float, str]) -> float:
    """Notes on missing seeds at the top of the panel, by place; returns the share of its height that they take."""
    letters = max(map(len, notes.values()))
    upright = letters * len(notes) > 28
    for x, text in notes.items():
        if text:
            axes.text(x, 0.98, text, transform=axes.get_xaxis_transform(), rotation=90 if upright else 0, **NOTE)
    return min(0.04 * letters, 0.5) if upright else 0.1 * (letters > 0)


def _handles(data: FigureData) -> list[Artist]:
    """The legend."""
    if data.spec.kind == "lines":
        return line_handles(["mean"] if data.spec.by is None else data.series())
    handles: list[Artist] = [Patch(**fill_style(b), label=name) for b, name in enumerate(data.series()) if name]
    if data.spec.kind == "boxes":
        handles += [Line2D([], [], **_MEDIAN, label="median"), Line2D([], [], linestyle="", **_MEAN, label="mean")]
    return [*handles, Line2D([], [], **_SEED, label="one seed")]


def _reading(data: FigureData) -> str:
    """How to read the figure."""
    spread = f"error bars: {SPREADS[data.spec.spread]} each way"
    return {
        "boxes": f"Boxes: {data.seeds}, from the first to the third quartile; red line: the median; diamond: the mean; "
        "whiskers: to the furthest seed within 1.5 box heights; dots: single seeds.",
        "bars": f"Bars: means over {data.seeds}; {spread}; dots: single seeds.",
        "lines": f"Lines: means over {data.seeds}; {spread}.",
    }[data.spec.kind]


def _description(chart: Chart) -> str:
    """The means in words."""
    data, x_names, sentences = chart.data, chart.data.settings(chart.data.spec.x), []
    for p, key in enumerate(data.spec.y):
        series = []
        for b, name in enumerate(data.settings(data.spec.by)):
            means = zip(chart.result.mean[p, b], chart.notes[p, b], x_names, strict=True)
            texts = [f"{note if np.isnan(mean) else format_value(mean, key)} at {x}" for mean, note, x in means]
            series.append(f"{name} {', '.join(texts)}".strip())
        sentences.append(f"{data.labels.key(key)}: {'; '.join(series)}.")
    return f"Means over seeds by {data.labels.axis(data.spec.x or '')}. {' '.join(sentences)}"
