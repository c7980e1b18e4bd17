"""The figures of a sweep: boxes, bars and lines over the settings of an axis, with one panel per metric."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import fill
from typing import Any, TypeVar

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as MplFigure
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from shoal.core.formats import DASH, capitalize
from shoal.reports import plotting as plot
from shoal.reports.charts import span
from shoal.reports.sweep.report_spec import FigureSpec, Labels, format_value, metric_at, reason
from shoal.reports.sweep.seed_statistics import Best, SeedMeans, SeedStatistics, SeedValues, estimate

T = TypeVar("T")

HEIGHT = 3.2
"""The height of a panel with its labels, in inches."""

MOST_FOUND = 2
"""The largest number of metrics in a title."""

RED = "#C00000"
"""The colour of medians."""

# Light and dark alternate, so that neighbours also differ in grey; 1 is the full colour, 0 is white.
_STRENGTHS = (0.75, 0.4, 0.7, 0.2, 0.95, 0.35, 0.4)
_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "++++", "oo")
_MEDIAN: dict[str, Any] = {"color": RED, "linewidth": 2.0}
_MEAN: dict[str, Any] = {"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black", "markersize": 4.6}
_SEED: dict[str, Any] = {
    "linestyle": "", "marker": "o", "color": "black", "markeredgecolor": "white", "markeredgewidth": 0.5,
    "markersize": 3.4, "zorder": 4,
}  # fmt: skip
_NOTE: dict[str, Any] = {
    "fontsize": 8.5, "ha": "center", "va": "top",
    "bbox": {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class FigureData:
    """A requested figure with its data and labels."""

    spec: FigureSpec
    statistics: SeedStatistics
    labels: Labels

    @property
    def seeds(self) -> str:
        """A phrase with the number of seeds."""
        count = len(self.statistics.seeds)
        return f"{count} seed{'' if count == 1 else 's'}"

    def settings(self, axis: str | None) -> list[str]:
        """Return the names of an axis' settings, or one empty name without an axis."""
        return [""] if axis is None else [self.labels.setting(value) for value in self.statistics.axes[axis]]

    def series(self) -> list[str]:
        """Return the names of the settings of `by`; numeric settings are preceded by the name of the axis."""
        by, names = self.spec.by, self.settings(self.spec.by)
        if by is None or all(isinstance(value, str) for value in self.statistics.axes[by]):
            return names
        return [f"{self.labels.axis(by)}\N{NO-BREAK SPACE}{name}" for name in names]

    def missing(self) -> np.ndarray:
        """The reasons for missing values, (metrics, settings of the figure's axes)."""
        done = (self.statistics.rows(self.spec) >= 0).all(axis=2).any(axis=0)
        return np.array([np.where(done, reason(key), "no run") for key in self.spec.y])

    def caption(self, reading: str, n: Iterable[int]) -> str:
        """Create the caption from the user's caption, a reading guide, and notes on fixed, averaged and missing
        settings.
        """
        spec, n = self.spec, list(n)
        sentences = [spec.caption, reading, *self.labels.selection(spec, self.statistics.axes)]
        if any(0 < count < len(self.statistics.seeds) for count in n):
            sentences.append(
                "Labels n: only n seeds have a value, in the legend's order for several lines; other runs are not "
                "finished or have no value."
            )
        if 0 in n:
            sentences.append("A labelled gap has no value on any seed.")
        return " ".join(filter(None, sentences))


@dataclass(frozen=True, eq=False)
class Panel:
    """A panel of a figure; panels with equal ``scale`` share their vertical axis."""

    title: str
    y_label: str
    scale: str
    draw: Callable[[Axes], None]


@dataclass(frozen=True, eq=False)
class Content:
    """The content of a figure.

    Args:
        finding: the figure's result, for its title.
    """

    rows: Sequence[Sequence[Panel]]
    width: float
    handles: Sequence[Artist]
    caption: str
    description: str
    finding: str

    @property
    def columns(self) -> int:
        """The largest number of panels in a row."""
        return max(map(len, self.rows))


def in_rows(panels: Sequence[T], most: int) -> list[Sequence[T]]:
    """Arrange panels in rows of at most ``most`` panels and nearly equal length.

    >>> in_rows("abcd", 3), in_rows("abcdefg", 3)
    (['ab', 'cd'], ['abc', 'def', 'g'])
    """
    columns = -(-len(panels) // -(-len(panels) // most))
    return [panels[i : i + columns] for i in range(0, len(panels), columns)]


def paint(figure: MplFigure, content: Content, data: FigureData) -> None:
    """Draw the panels and the legend on an empty figure."""
    spec, handles, scales = data.spec, list(content.handles), dict[str, Axes]()
    if spec.level is not None:
        handles.append(plot.chance_key(data.labels.setting(spec.level)))
    grid = figure.add_gridspec(len(content.rows), content.columns)
    for row, panels in enumerate(content.rows):
        for column, panel in enumerate(panels):
            x, y = next(iter(figure.axes), None), scales.get(panel.scale)
            axes = scales[panel.scale] = figure.add_subplot(grid[row, column], sharex=x, sharey=y)
            panel.draw(axes)
            if spec.level is not None:
                axes.axhline(spec.level, **plot.CHANCE_LINE, zorder=1.5)
            axes.set_title(panel.title)
            if column == 0 or not spec.y_label:
                axes.set_ylabel(fill(panel.y_label, 22))
    for handle in handles:
        handle.set_label(fill(str(handle.get_label()), 40))
    longest = max(len(line) for handle in handles for line in str(handle.get_label()).split("\n"))
    plot.legend(figure, handles, columns=max(1, int(12.5 * figure.get_figwidth() / (longest + 8))))


@dataclass(frozen=True, eq=False)
class Chart:
    """The values of a figure over the settings of an axis.

    In code, p numbers the metrics, b the settings of `by`, and i the settings of `x`.

    Args:
        values: the values, (metrics, settings of `by`, settings of `x`, seeds), or NaN if missing.
        result: the means and standard deviations over seeds, (metrics, settings of `by`, settings of `x`).
        notes: notes on missing seeds, or empty strings, (metrics, settings of `by`, settings of `x`).
    """

    data: FigureData
    values: SeedValues
    result: SeedMeans
    notes: np.ndarray

    @classmethod
    def of(cls, data: FigureData) -> "Chart":
        """Compute the values of a figure."""
        by_seed = data.statistics.metrics_by_seed(data.spec)
        shape = (len(data.settings(data.spec.by)), len(data.settings(data.spec.x)))
        values = by_seed.reshape(len(by_seed), *shape, -1).transpose(0, 3, 1, 2)
        result = estimate(values)
        few = np.where(result.n < len(values), np.char.add("n = ", result.n.astype(str)), "")
        notes = np.where(result.n == 0, data.missing().reshape(-1, *shape), few)
        return cls(data, np.moveaxis(values, 0, -1), result, notes)

    @property
    def width(self) -> float:
        """The width of a panel in inches."""
        return 3.2 if self.data.spec.kind == "lines" else min(max(3.2, 0.75 + 0.23 * self.notes[0].size), 9.6)


def sweep_figure(name: str, data: FigureData) -> plot.Figure:
    """Create the requested figure."""
    content = chart_content(data)
    title = f"{data.spec.title}: {content.finding}" if data.spec.title else capitalize(content.finding)
    size = (content.columns * content.width, len(content.rows) * HEIGHT)
    alt, draw = f"{title}. {content.description}", partial(paint, content=content, data=data)
    return plot.figure_files(alt, draw, size, name=name, title=title, caption=content.caption)


def chart_content(data: FigureData) -> Content:
    """Create the content of a figure with boxes, bars or lines."""
    chart, spec, panels = Chart.of(data), data.spec, []
    draw = _draw_lines if spec.kind == "lines" else _draw_categories
    for p, key in enumerate(spec.y):
        title = data.labels.key(key)
        # Without a label of the file, the axis is called what the title begins with, unless that is all of it.
        y_label = spec.y_label or title.partition(",")[0]
        named = "" if y_label == title else y_label
        panels.append(Panel(fill(title, int(10 * chart.width)), named, spec.y_label or key, partial(draw, chart, p)))
    return Content(
        rows=in_rows(panels, int(9.7 / chart.width)),
        width=chart.width,
        handles=_handles(data),
        caption=data.caption(_reading(data), chart.result.n.ravel().tolist()),
        description=_description(chart),
        finding=_finding(chart),
    )


def fill_style(i: int) -> dict[str, Any]:
    """Return the fill of setting ``i``, with a pale colour and a hatch."""
    strength = _STRENGTHS[i % len(_STRENGTHS)]
    face = tuple(1 - strength * (1 - part) for part in to_rgb(plot.cluster_style(i).color))
    return {"facecolor": face, "edgecolor": "black", "hatch": _HATCHES[i % len(_HATCHES)], "linewidth": 0.9}


def _line_style(i: int) -> dict[str, Any]:
    style = plot.cluster_style(i)
    return {**style.line, "marker": style.marker, "markersize": 5}


def _draw_categories(chart: Chart, p: int, axes: Axes) -> None:
    """Draw boxes or bars, with a dot per seed."""
    _, count, settings, seeds = chart.values.shape
    width, dots = 0.84 / count, np.linspace(-0.3, 0.3, seeds + 2)[1:-1, None]
    for b, values in enumerate(chart.values[p]):
        x = np.arange(settings) + (b - (count - 1) / 2) * width
        if chart.data.spec.kind == "boxes":
            axes.boxplot(
                [sample[~np.isnan(sample)] for sample in values], positions=x, widths=0.86 * width, patch_artist=True,
                showmeans=True, showfliers=False, manage_ticks=False, boxprops=fill_style(b), medianprops=_MEDIAN,
                meanprops=_MEAN | {"zorder": 5},
            )  # fmt: skip
        else:
            means = chart.result.mean[p, b]
            bars = axes.bar(x, means, 0.92 * width, yerr=chart.result.spread[p, b], capsize=3, **fill_style(b))
            for bar, name in zip(bars, _names(chart, p, b, means), strict=True):
                plot.name_points(bar, [f"{name} (mean)"])
        for i, line in enumerate(axes.plot(x + dots * width, values.T, **_SEED)):
            by_seed = zip(chart.data.statistics.seeds, values[i], strict=True)
            key, place = chart.data.spec.y[p], _places(chart, b)[i]
            plot.name_points(line, [
                f"{place}, seed {seed}: {format_value(value, key)}" for seed, value in by_seed if not np.isnan(value)
            ])  # fmt: skip
        _write_notes(axes, x, chart.notes[p, b])
    if chart.data.spec.kind == "bars":
        axes.axhline(0.0, color="black", linewidth=0.8)
    _name_settings(axes, chart, np.arange(settings))
    axes.set_xlim(-0.5, settings - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")


def _draw_lines(chart: Chart, p: int, axes: Axes) -> None:
    """Draw lines through means, with gaps for missing means, over numbers or categories."""
    settings, notes = chart.data.statistics.axes[chart.data.spec.x], chart.notes[p]
    words = any(isinstance(place, str | bool) for place in settings)
    x = np.array(range(len(settings)) if words else settings, dtype=float)
    log = not words and bool(x.min() > 0 and x.max() > 20 * x.min())
    axes.set_xscale("log" if log else "linear")
    axes.margins(x=0.1)
    # The axis also includes settings without a mean.
    axes.update_datalim([(place, 0) for place in x], updatey=False)
    for b, (mean, spread) in enumerate(zip(chart.result.mean[p], chart.result.spread[p], strict=True)):
        line = axes.errorbar(x, mean, spread, capsize=3, elinewidth=1.2, **_line_style(b))
        plot.name_points(line.lines[0], [name for name in _names(chart, p, b, mean) if DASH not in name])
        # Shift lines slightly, so that error bars do not overlap.
        beside = ScaledTranslation(0.04 * (b - (len(notes) - 1) / 2), 0, axes.figure.dpi_scale_trans)
        for artist in line.get_children():
            artist.set_transform(axes.transData + beside)
    several = [f"n = {', '.join(map(str, n))}" for n in chart.result.n[p].T]
    _write_notes(axes, x, np.where((notes == notes[0]).all(axis=0), notes[0], several))
    _name_settings(axes, chart, x, " (log scale)" * log)


def _names(chart: Chart, p: int, b: int, means: SeedValues) -> list[str]:
    key, places = chart.data.spec.y[p], _places(chart, b)
    return [f"{place}: {format_value(mean, key)}" for place, mean in zip(places, means, strict=True)]


def _places(chart: Chart, b: int) -> list[str]:
    data = chart.data
    return [", ".join(filter(None, [data.series()[b], name])) for name in data.settings(data.spec.x)]


def _name_settings(axes: Axes, chart: Chart, x: SeedValues, scale: str = "") -> None:
    """Name the settings at ``x`` and their axis; long names are rotated."""
    names = chart.data.settings(chart.data.spec.x)
    room = int(11.5 * (chart.width - 0.75) / len(names))
    names = [fill(name, max(room, 16)) for name in names]
    beside = all(len(line) <= room for name in names for line in name.splitlines())
    style: dict[str, Any] = {} if beside else {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(x, names, **style)
    axes.minorticks_off()
    axes.set_xlabel(fill(chart.data.labels.axis(chart.data.spec.x) + scale, int(10 * chart.width)))


def _write_notes(axes: Axes, x: SeedValues, notes: NDArray[np.str_]) -> None:
    if any(notes):
        axes.margins(y=0.15)
    for place, text in zip(x, notes, strict=True):
        axes.text(place, 0.98, text, transform=axes.get_xaxis_transform(), rotation=90, **_NOTE) if text else None


def _handles(data: FigureData) -> list[Artist]:
    if data.spec.kind == "lines":
        names = ["mean"] if data.spec.by is None else data.series()
        return [plot.key(name, **_line_style(b)) for b, name in enumerate(names)]
    handles: list[Artist] = [Patch(**fill_style(b), label=name) for b, name in enumerate(data.series()) if name]
    if data.spec.kind == "boxes":
        handles += [plot.key("median", **_MEDIAN), plot.key("mean", linestyle="", **_MEAN)]
    return [*handles, plot.key("one seed", **_SEED)]


def _reading(data: FigureData) -> str:
    spread = "error bars: ± one standard deviation"
    return {
        "boxes": f"Boxes: {data.seeds}, from the first to the third quartile; red line: the median; diamond: the mean; "
        "whiskers: up to the furthest seed within 1.5 box heights; dots: single seeds.",
        "bars": f"Bars: means over {data.seeds}; {spread}; dots: single seeds.",
        "lines": f"Lines: means over {data.seeds}; {spread}.",
    }[data.spec.kind]


def _finding(chart: Chart) -> str:
    """Name the best setting of `by` (or `x`) for each of the first metrics, or say that none is shown to be best."""
    data, said = chart.data, []
    axis = data.spec.by or data.spec.x
    for values, key in zip(chart.values[:MOST_FOUND], data.spec.y, strict=False):
        name, better = data.labels.key(key), metric_at(key).better
        # (settings of `by`, settings of `x`, seeds): a mean over `x` only of seeds that are whole.
        by_seed = values[0].T if data.spec.by is None else values.mean(axis=1).T
        best = Best.of(by_seed, data.settings(axis), key, better)
        most = "lowest" if better == "lower" else "highest"
        known = values[~np.isnan(values)]
        if best is None:
            said.append(f"{name}: {format_value(float(known.mean()), key) if len(known) else 'no value'}")
        elif best.same:
            said.append(f"{name}: the same with every {data.labels.axis(axis)}")
        elif best.untold:
            means = span([*best.means.values()], lambda mean, key=key: format_value(mean, key))
            said.append(f"{name}: no {data.labels.axis(axis)} is shown to be {most} ({means})")
        else:
            said.append(f"{name}: {best.setting} is {most}, {format_value(best.mean, key)}")
    return "; ".join(said)


def _description(chart: Chart) -> str:
    data, x_names, sentences = chart.data, chart.data.settings(chart.data.spec.x), []
    for p, key in enumerate(data.spec.y):
        series = []
        for b, name in enumerate(data.settings(data.spec.by)):
            means = zip(chart.result.mean[p, b], chart.notes[p, b], x_names, strict=True)
            texts = [f"{note if np.isnan(mean) else format_value(mean, key)} at {x}" for mean, note, x in means]
            series.append(f"{name} {', '.join(texts)}".strip())
        sentences.append(f"{data.labels.key(key)}: {'; '.join(series)}.")
    return f"Means over seeds by {data.labels.axis(data.spec.x)}. {' '.join(sentences)}"
