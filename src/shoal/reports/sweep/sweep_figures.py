"""A sweep's figures: what one is asked to show, what it then consists of, and how it is drawn for page and print."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import fill
from typing import Any, TypeVar

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure

from shoal.core.formats import capitalized
from shoal.reports.plotting import CHANCE_LINE, Figure, chance_key, figure_files, legend
from shoal.reports.sweep.report_spec import FigureSpec
from shoal.reports.sweep.seed_statistics import SeedStatistics, SeedValues
from shoal.reports.sweep.sweep_metrics import Labels, reason

T = TypeVar("T")

HEIGHT = 3.2
"""Inches of a panel with its labels."""

NOTE: dict[str, Any] = {
    "fontsize": 8.5, "ha": "center", "va": "top",
    "bbox": {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
}  # fmt: skip
"""The style of small text in a panel, legible over lines."""


@dataclass(frozen=True, eq=False)
class FigureData:
    """A requested figure with its data and labels."""

    spec: FigureSpec
    statistics: SeedStatistics
    labels: Labels

    @property
    def seeds(self) -> str:
        """How many there are, in words."""
        count = len(self.statistics.seeds)
        return f"{count} seed{'' if count == 1 else 's'}"

    def settings(self, axis: str | None) -> list[str]:
        """The names of an axis' settings; one empty name where the figure has no such axis."""
        return [""] if axis is None else [self.labels.setting(value) for value in self.statistics.axes[axis]]

    def series(self) -> list[str]:
        """The settings of `by`, with the name of the axis where they are numbers, which say little alone."""
        by, names = self.spec.by, self.settings(self.spec.by)
        if by is None or all(isinstance(value, str) for value in self.statistics.axes[by]):
            return names
        return [f"{self.labels.axis(by)}\N{NO-BREAK SPACE}{name}" for name in names]

    def missing(self) -> np.ndarray:
        """(metrics, settings of the figure's axes) why a place without values has none."""
        done = (self.statistics.rows(self.spec) >= 0).all(axis=2).any(axis=0)
        return np.array([np.where(done, reason(key), "no run") for key in self.spec.y])

    def caption(self, reading: str, n: Iterable[int], values: SeedValues) -> str:
        """The file's own caption, how to read the figure, and what is held, averaged over, missing or cut off.

        ``n`` are the seeds behind the figure's places, ``values`` the numbers that it shows.
        """
        spec, n = self.spec, list(n)
        sentences = [spec.caption, reading, *self.labels.selection(spec, self.statistics.axes)]
        if any(0 < count < len(self.statistics.seeds) for count in n):
            sentences.append(
                "Where n is given, only n seeds have a value (of several lines, in the legend's order); other runs are "
                "not finished or have none."
            )
        if 0 in n:
            sentences.append("A labelled gap is a place without a value of any seed.")
        if spec.y_range:
            measured, (low, high) = values[~np.isnan(values)], spec.y_range
            outside = int(((measured < low) | (measured > high)).sum())
            sentences += [f"Outside the axis and not drawn: {outside} of {len(measured)} values."] * (outside > 0)
        return " ".join(filter(None, sentences))


@dataclass(frozen=True, eq=False)
class Panel:
    """One panel of a figure; those of one ``scale`` share their y axis.

    ``headroom`` is the share of the y axis' range that the panel needs at the top of it, for notes.
    """

    title: str
    y_label: str
    scale: str
    draw: Callable[[Axes], None]
    headroom: float = 0.0


@dataclass(frozen=True, eq=False)
class Content:
    """What a figure consists of: panels of a ``width`` in inches, a legend, how to read it, its numbers in words.

    ``finding`` is what it shows, for its title.
    """

    rows: Sequence[Sequence[Panel]]
    width: float
    handles: Sequence[Artist]
    caption: str
    description: str
    finding: str

    @property
    def columns(self) -> int:
        """The most panels side by side."""
        return max(map(len, self.rows))


def in_rows(panels: Sequence[T], most: int) -> list[Sequence[T]]:
    """Panels in rows of at most ``most``, with as few empty places as so many rows allow.

    >>> in_rows("abcd", 3), in_rows("abcdefg", 3)
    (['ab', 'cd'], ['abc', 'def', 'g'])
    """
    columns = -(-len(panels) // -(-len(panels) // most))
    return [panels[i : i + columns] for i in range(0, len(panels), columns)]


def draw_sweep_figure(name: str, data: FigureData, content: Content) -> Figure:
    """The figure with this content."""
    title = f"{data.spec.title}: {content.finding}" if data.spec.title else capitalized(content.finding)
    size = (content.columns * content.width, len(content.rows) * HEIGHT)
    alt, draw = f"{title}. {content.description}", partial(paint, content=content, data=data)
    return figure_files(alt, draw, size, name=name, title=title, caption=content.caption)


def paint(figure: MplFigure, content: Content, data: FigureData) -> None:
    """Draw panels and legend on an empty figure."""
    spec, handles, scales = data.spec, list(content.handles), dict[str, Axes]()
    if spec.level is not None:
        handles.append(chance_key(data.labels.setting(spec.level)))
    grid = figure.add_gridspec(len(content.rows), content.columns)
    for row, panels in enumerate(content.rows):
        for column, panel in enumerate(panels):
            x, y = next(iter(figure.axes), None), scales.get(panel.scale)
            axes = scales[panel.scale] = figure.add_subplot(grid[row, column], sharex=x, sharey=y)
            panel.draw(axes)
            if spec.level is not None:
                axes.axhline(spec.level, **CHANCE_LINE, zorder=1.5)
            axes.set_title(panel.title)
            if column == 0 or not spec.y_label:
                axes.set_ylabel(fill(panel.y_label, 22))
    for scale, axes in scales.items():
        low, high = axes.get_ylim()
        room = max(panel.headroom for row in content.rows for panel in row if panel.scale == scale)
        axes.set_ylim(*(spec.y_range or (low, high + room * (high - low))))
    for handle in handles:
        handle.set_label(fill(str(handle.get_label()), 40))
    longest = max(len(line) for handle in handles for line in str(handle.get_label()).split("\n"))
    legend(figure, handles, columns=max(1, int(12.5 * figure.get_figwidth() / (longest + 8))))
