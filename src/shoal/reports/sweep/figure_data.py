"""A requested figure with its data and labels, and the content that is drawn from it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from shoal.reports.sweep.labels import Labels
from shoal.reports.sweep.seed_statistics import Floats, SeedStatistics
from shoal.reports.sweep.spec import FigureSpec

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
        """The number of seeds, in words."""
        count = len(self.statistics.seeds)
        return f"{count} seed{'' if count == 1 else 's'}"

    def settings(self, axis: str | None) -> list[str]:
        """The names of an axis' settings; one empty name where the figure has no such axis."""
        return [""] if axis is None else [self.labels.setting(each) for each in self.statistics.axes[axis]]

    def series(self) -> list[str]:
        """The settings of `by`, with the name of the axis where they are numbers, which say little alone."""
        by, names = self.spec.by, self.settings(self.spec.by)
        if by is None or all(isinstance(each, str) for each in self.statistics.axes[by]):
            return names
        return [f"{self.labels.axis(by)}\N{NO-BREAK SPACE}{name}" for name in names]

    def missing(self) -> np.ndarray:
        """(settings of the figure's axes) why a place without values has none."""
        rows = self.statistics.rows(self.spec.displayed, self.spec.where)
        return np.where((rows >= 0).all(axis=2).any(axis=0), "no value", "no run")

    def caption(self, reading: str, n: Iterable[int], values: Floats) -> str:
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
            known, (low, high) = values[~np.isnan(values)], spec.y_range
            outside = int(((known < low) | (known > high)).sum())
            sentences += [f"Outside the axis and not drawn: {outside} of {len(known)} values."] * (outside > 0)
        return " ".join(filter(None, sentences))


@dataclass(frozen=True, eq=False)
class Panel:
    """One panel of a figure; those of one ``scale`` share their y axis."""

    title: str
    y_label: str
    scale: str
    draw: Callable[[Axes], None]


@dataclass(frozen=True, eq=False)
class Content:
    """What a figure consists of.

    Args:
        panels: in reading order; None is an empty place.
        columns: panels side by side.
        width: of a panel, in inches.
        handles: the legend.
        caption: how to read the figure.
        description: its main numbers in words.
        headroom: the share of the y axis' range that is added at its top, for notes.
    """

    panels: Sequence[Panel | None]
    columns: int
    width: float
    handles: Sequence[Artist]
    caption: str
    description: str
    headroom: float = 0.0


def columns_of(panels: int, most: int) -> int:
    """The columns of a grid of ``panels``, at most ``most``, with as few empty places as its rows allow.

    >>> [columns_of(panels, 3) for panels in range(1, 8)]
    [1, 2, 3, 2, 3, 3, 3]
    """
    return -(-panels // -(-panels // most))
