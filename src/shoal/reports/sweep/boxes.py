"""Boxes and bars: what stands side by side at the settings of an axis."""

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes as Panel
from matplotlib.cbook import boxplot_stats
from matplotlib.lines import Line2D
from matplotlib.patheffects import Normal, withStroke

from shoal.reports.frames import Floats
from shoal.reports.sweep.gaps import Spot, finish, gap, write_gap
from shoal.reports.sweep.looks import Names, fill_of, patch_of
from shoal.reports.sweep.marks import GROUP, Chart, Mark

RED = "#C00000"
"""The colour of medians."""

_OUTLINED = [withStroke(linewidth=3.8, foreground="white"), Normal()]
_DOT = {"marker": "o", "color": "black", "markeredgecolor": "white", "markeredgewidth": 0.5, "markersize": 3.4}


def draw_boxes(panel: Panel, drawn: Chart, p: int) -> list[Artist]:
    """The boxes of panel number ``p``; returns what stands in the legend."""
    width = 0.86 * GROUP / len(drawn.by_names)
    spots = []
    diamond = {"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black", "markersize": 4.6}
    thin = {"color": "black", "linewidth": 1.0}
    for b, x, mark in _categories(panel, drawn, p):
        look = fill_of(b)
        panel.bxp(
            boxplot_stats(mark.values), positions=[x], widths=width, patch_artist=True, showmeans=True,
            showfliers=False, manage_ticks=False, whiskerprops=thin, capprops=thin,
            boxprops={"facecolor": look.face, "edgecolor": "black", "hatch": look.hatch, "linewidth": 0.9},
            medianprops={"color": RED, "linewidth": 2.0, "path_effects": _OUTLINED, "zorder": 3,
                         "solid_capstyle": "butt"},
            meanprops=diamond | {"zorder": 5},
        )  # fmt: skip
        _dots(panel, x, mark.values, width)
        spots.append(Spot(x, float(mark.values.min()), float(mark.values.max()), mark.n))
    finish(panel, drawn.scene, spots, drawn.place)
    return [
        *_keys(drawn),
        Line2D([], [], color=RED, linewidth=2.0, label="median"),
        Line2D([], [], linestyle="", **diamond, label="mean"),
        Line2D([], [], linestyle="", **_DOT, label="one seed"),
    ]


def draw_bars(panel: Panel, drawn: Chart, p: int) -> list[Artist]:
    """The bars of panel number ``p``; returns what stands in the legend."""
    width = 0.92 * GROUP / len(drawn.by_names)
    spots = []
    for b, x, mark in _categories(panel, drawn, p):
        look = fill_of(b)
        mean, spread = mark.found.mean, mark.found.spread
        panel.bar(x, mean, width, facecolor=look.face, edgecolor="black", hatch=look.hatch, linewidth=0.8)
        ends = [mean]
        if mark.n > 1:
            panel.errorbar(x, mean, spread, color="black", capsize=3, linewidth=1.3, zorder=3)
            ends += [mean - spread, mean + spread]
        _dots(panel, x, mark.values, width)
        ends += mark.values.tolist()
        spots.append(Spot(x, min(*ends, 0.0), max(*ends, 0.0), mark.n))
    low, high = panel.get_ylim()
    panel.set_ylim(0.0 if all(spot.low >= 0 for spot in spots) else low, high)
    panel.axhline(0.0, color="black", linewidth=0.8)
    finish(panel, drawn.scene, spots, drawn.place)
    return [*_keys(drawn), Line2D([], [], linestyle="", **_DOT, label="one seed")]


def _categories(panel: Panel, drawn: Chart, p: int) -> list[tuple[int, float, Mark]]:
    """(setting of `by`, x, mark) of those marks that stand; gaps get their labels."""
    Names.of(drawn.x_names, drawn.width).put(panel)
    count = len(drawn.by_names)
    standing = []
    for b, series in enumerate(drawn.panels[p]):
        for i, mark in enumerate(series):
            x = i + ((b + 0.5) / count - 0.5) * GROUP
            if mark.n:
                standing.append((b, x, mark))
            else:
                write_gap(panel, x, gap(drawn.scene, mark))
    return standing


def _dots(panel: Panel, x: float, values: Floats, width: float) -> None:
    """Single seeds side by side, in their order."""
    aside = np.linspace(-0.28, 0.28, len(values)) * width if len(values) > 1 else np.zeros(1)
    panel.plot(x + aside, values, linestyle="", zorder=4, **_DOT)


def _keys(drawn: Chart) -> list[Artist]:
    """The settings of `by` in the legend of boxes and bars."""
    if drawn.scene.asked.by is None:
        return []
    return [patch_of(b, drawn.scene.named(name)) for b, name in enumerate(drawn.by_names)]
