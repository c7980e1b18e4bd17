"""How a figure's settings are told apart, in colour and without, and how its panels and legend stand on the sheet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes as Panel
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from shoal.reports.frames import Floats
from shoal.reports.plotting import CHANCE as COIN
from shoal.reports.plotting import LEGEND_LINE, short
from shoal.reports.plotting import cluster_style as cluster_look
from shoal.reports.sweep.figure_data import Scene

PANEL = 3.2
"""Inches of a panel's width in print, its labels included."""

HEIGHT = 2.6
"""Inches of a panel's height."""

ACROSS = 3
"""Most panels in a row."""

MARGIN = 0.75
"""Inches of a panel's width that its labels take."""

LETTER = 0.085
"""Inches that a letter takes on average."""

SMALL = 8.5
"""Points of the smallest text."""

# Light and dark by turns, so that neighbours differ in grey too; 1 is the full colour, 0 is white.
_STRENGTHS = (0.75, 0.4, 0.7, 0.2, 0.95, 0.35, 0.4)
_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "++++", "oo")


@dataclass(frozen=True)
class Fill:
    """How a box or a bar is filled."""

    face: tuple[float, float, float]
    hatch: str


@dataclass(frozen=True)
class Plate:
    """A figure before it is drawn.

    Args:
        size: width and height in inches.
        paint: draws it on an empty figure of that size.
        notes: sentences on how to read it.
        alt: its main numbers in words.
    """

    size: tuple[float, float]
    paint: Callable[[Figure], None]
    notes: Sequence[str]
    alt: str


def fill_of(i: int) -> Fill:
    """The fill of setting number ``i``: its colour paler, so that what stands on it is seen, and a hatch."""
    strength = _STRENGTHS[i % len(_STRENGTHS)]
    red, green, blue = (1 - strength * (1 - part) for part in to_rgb(cluster_look(i).color))
    return Fill((red, green, blue), _HATCHES[i % len(_HATCHES)])


def patch_of(i: int, label: str) -> Patch:
    """What setting number ``i`` looks like in the legend of boxes and bars."""
    look = fill_of(i)
    return Patch(facecolor=look.face, edgecolor="black", linewidth=0.8, hatch=look.hatch, label=label)


def line_of(i: int, label: str) -> Line2D:
    """What setting or model number ``i`` looks like in the legend of lines."""
    look = cluster_look(i)
    return Line2D([], [], color=look.color, linestyle=look.dashes, marker=look.marker, markersize=5, label=label)


def draw_level(panel: Panel, scene: Scene) -> list[Line2D]:
    """The dotted line for comparison, and what stands for it in the legend."""
    level = scene.asked.level
    if level is None:
        return []
    look = {"color": COIN, "linewidth": 1.4, "linestyle": ":"}
    panel.axhline(level, **look, zorder=1.5)
    return [Line2D([], [], **look, label=scene.words.setting(level))]


def grid_of(panels: int, width: float = PANEL) -> tuple[int, int]:
    """(rows, columns) for so many panels of a width in inches.

    >>> grid_of(2), grid_of(3), grid_of(4), grid_of(5), grid_of(3, width=5.0)
    ((1, 2), (1, 3), (2, 2), (2, 3), (3, 1))
    """
    most = max(1, min(ACROSS, int(ACROSS * PANEL / width + 1e-9)))
    rows = -(-panels // most)
    return rows, -(-panels // rows)


def shortened(names: Sequence[str], most: int) -> list[str]:
    """``names`` in at most so many letters, unless that makes two of them the same.

    >>> shortened(["hospitals", "clinics"], 7), shortened(["group north", "group south"], 7)
    (['hospit…', 'clinics'], ['group north', 'group south'])
    """
    cut = [short(name, most) for name in names]
    return cut if len(set(cut)) == len(set(names)) else list(names)


def wrapped(text: str, inches: float) -> str:
    """``text`` in lines of at most so many inches, as far as its words allow."""
    return fill(text, max(8, int(inches / LETTER)), break_long_words=False, break_on_hyphens=False)


def put_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """A legend below the panels, in as many columns as fit; the figure grows by its lines."""
    for handle, name in zip(handles, shortened([str(handle.get_label()) for handle in handles], 44), strict=True):
        handle.set_label(name)
    widest = max(len(str(handle.get_label())) for handle in handles) * LETTER + 0.6
    columns = max(1, min(len(handles), int(figure.get_figwidth() / widest)))
    lines = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * lines)
    figure.legend(handles=list(handles), loc="outside lower center", ncols=columns)


@dataclass(frozen=True)
class Names:
    """Names of categories below an axis, in lines where words allow it, aslant where one is wider than its place.

    Args:
        shown: as they are written.
        aslant: whether they are.
        height: inches that they take beyond a line.
    """

    shown: Sequence[str]
    aslant: bool
    height: float

    @staticmethod
    def of(names: Sequence[str], width: float) -> "Names":
        """In a panel that is ``width`` inches wide."""
        place = (width - MARGIN) / len(names)
        lines = [wrapped(name, place) for name in names]
        if all(len(line) * LETTER <= place for name in lines for line in name.splitlines()):
            return Names(lines, False, 0.16 * max(name.count("\n") for name in lines))
        cut = shortened(names, 20)
        return Names(cut, True, 0.7 * LETTER * max(map(len, cut)))

    def put(self, panel: Panel) -> None:
        """At 0, 1, ..."""
        if self.aslant:
            panel.set_xticks(range(len(self.shown)), self.shown, rotation=45, ha="right", rotation_mode="anchor")
        else:
            panel.set_xticks(range(len(self.shown)), self.shown)
        panel.set_xlim(-0.5, len(self.shown) - 0.5)
        panel.grid(visible=False, axis="x")
        panel.tick_params(axis="x", length=0)

    @staticmethod
    def thin(names: Sequence[str], at: Floats, width: float) -> list[str]:
        """``names`` of places on a scale, empty where one would run into those to its left."""
        inch = (width - MARGIN) / max(float(np.ptp(at)), 1e-12)
        kept, end = [""] * len(names), -np.inf
        for i in np.argsort(at):
            half = len(names[i]) * LETTER / 2
            if at[i] * inch - half > end:
                kept[i], end = names[i], at[i] * inch + half + LETTER
        return kept
