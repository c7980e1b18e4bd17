"""Boxes, bars and lines over the settings of an axis, a panel for each figure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes as Panel
from matplotlib.cbook import boxplot_stats
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import Normal, withStroke

from shoal.experiments.frames import Floats
from shoal.experiments.svg import cluster_look
from shoal.experiments.sweeps.gaps import Spot, finish, gap, number, seeds_of, sentences, write_gap
from shoal.experiments.sweeps.looks import (
    ACROSS,
    HEIGHT,
    MARGIN,
    PANEL,
    Names,
    Plate,
    draw_level,
    fill_of,
    grid_of,
    line_of,
    patch_of,
    put_legend,
    wrapped,
)  # fmt: skip
from shoal.experiments.sweeps.scene import Mark, Scene, mark_at, mean_and_spread

SPREADS = {"sd": "one standard deviation", "ci": "the 95 % confidence interval of the mean (Student's t)"}
"""What error bars and bands are."""

_RED = "#C00000"
_OUTLINED = [withStroke(linewidth=3.8, foreground="white"), Normal()]
_DOT = {"marker": "o", "color": "black", "markeredgecolor": "white", "markeredgewidth": 0.5, "markersize": 3.2}
_GROUP = 0.84
"""How much of a category's place its boxes or bars take."""

_SLOT = 0.19
"""Inches that a box or a bar takes at least."""


@dataclass(frozen=True)
class Chart:
    """Marks over an axis.

    Args:
        scene: what is asked for.
        panels: (keys, settings of `by`, settings of `x`) the marks.
        width: of a panel, in inches.
    """

    scene: Scene
    panels: Sequence[Sequence[Sequence[Mark]]]
    width: float

    @property
    def x_names(self) -> list[str]:
        """The settings of `x` in words."""
        asked = self.scene.asked
        return [self.scene.words.setting(each) for each in self.scene.settings(asked.x) if each is not None]

    @property
    def by_names(self) -> list[str]:
        """The settings of `by` in words; one empty name without `by`."""
        settings = self.scene.settings(self.scene.asked.by)
        return ["" if each is None else self.scene.words.setting(each) for each in settings]

    @property
    def place(self) -> float:
        """Inches between neighbouring boxes or bars."""
        return (self.width - MARGIN) * _GROUP / len(self.x_names) / len(self.by_names)

    @property
    def marks(self) -> list[Mark]:
        """All of them."""
        return [mark for panel in self.panels for series in panel for mark in series]


def chart(scene: Scene) -> Chart:
    """The marks that ``scene`` asks for."""
    xs, bys = scene.settings(scene.asked.x), scene.settings(scene.asked.by)
    panels = [[[mark_at(scene, key, x, by) for x in xs] for by in bys] for key in scene.asked.y]
    slots = 0 if scene.asked.kind == "lines" else len(xs) * len(bys) * _SLOT / _GROUP
    return Chart(scene, panels, min(max(PANEL, MARGIN + slots), ACROSS * PANEL))


def chart_plate(scene: Scene) -> Plate:
    """Boxes, bars or lines, ready to be drawn."""
    drawn, asked = chart(scene), scene.asked
    rows, columns = grid_of(len(asked.y), drawn.width)
    names = Names.of(drawn.x_names, drawn.width)

    def paint(figure: Figure) -> None:
        handles: list[Artist] = []
        for p, key in enumerate(asked.y):
            panel = figure.add_subplot(rows, columns, p + 1)
            panel.set_title(wrapped(scene.words.key(key), drawn.width - 0.3))
            if p % columns == 0 or not asked.y_label:
                label = asked.y_label or scene.words.key(key).partition(",")[0]
                panel.set_ylabel(wrapped(label, HEIGHT - 0.5))
            level = draw_level(panel, asked.level)
            match asked.kind:
                case "boxes":
                    handles = _boxes(panel, drawn, p)
                case "bars":
                    handles = _bars(panel, drawn, p)
                case _:
                    handles = _lines(panel, drawn, p)
            label = scene.words.axis(asked.x or "")
            if panel.get_xscale() == "log":
                label += " (log scale)"
            panel.set_xlabel(wrapped(label, drawn.width - 0.5))
            handles = [*handles, *level]
        put_legend(figure, handles)

    return Plate((columns * drawn.width, rows * (HEIGHT + names.height)), paint, _notes(drawn), _alt(drawn))


def _notes(drawn: Chart) -> list[str]:
    scene = drawn.scene
    seeds, spread = seeds_of(scene), SPREADS[scene.asked.spread]
    match scene.asked.kind:
        case "boxes":
            first = (
                f"Boxes: {seeds}, from the first to the third quartile; red line: the median; diamond: the mean; "
                "whiskers: to the furthest seed within 1.5 box heights; dots: single seeds."
            )
        case "bars":
            first = f"Bars: means over {seeds}; error bars: {spread}; dots: single seeds."
        case _:
            first = f"Lines: means over {seeds}; error bars: {spread}."
    values = [mark.values if scene.asked.kind != "lines" else np.array([mark.mean]) for mark in drawn.marks if mark.n]
    shown = np.concatenate([*values, np.zeros(0)])
    return [first, *sentences(scene, [mark.n for mark in drawn.marks], shown)]


def _alt(drawn: Chart) -> str:
    scene = drawn.scene
    told = []
    for key, panel in zip(scene.asked.y, drawn.panels, strict=True):
        parts = []
        for name, series in zip(drawn.by_names, panel, strict=True):
            means = [
                f"{number(mark.mean) if mark.n else gap(scene, mark)} at {x}"
                for x, mark in zip(drawn.x_names, series, strict=True)
            ]
            parts.append(f"{name} {', '.join(means)}".strip())
        told.append(f"{scene.words.key(key)}: {'; '.join(parts)}.")
    return f"Means over seeds by {scene.words.axis(scene.asked.x or '')}. {' '.join(told)}"


def _categories(panel: Panel, drawn: Chart, p: int) -> list[tuple[int, float, Mark]]:
    """(setting of `by`, x, mark) of those marks that stand; gaps get their labels."""
    Names.of(drawn.x_names, drawn.width).put(panel)
    count = len(drawn.by_names)
    standing = []
    for b, series in enumerate(drawn.panels[p]):
        for i, mark in enumerate(series):
            x = i + ((b + 0.5) / count - 0.5) * _GROUP
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
    return [patch_of(b, named(drawn.scene, name)) for b, name in enumerate(drawn.by_names)]


def named(scene: Scene, setting: str) -> str:
    """A setting of `by` with its axis, where it is a number and says little alone."""
    by = scene.asked.by
    plain = by is not None and all(isinstance(each, str) for each in scene.axes[by])
    return setting if plain or by is None else f"{scene.words.axis(by)} {setting}"


def _boxes(panel: Panel, drawn: Chart, p: int) -> list[Artist]:
    width = 0.86 * _GROUP / len(drawn.by_names)
    spots = []
    diamond = {"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black", "markersize": 5.0}
    thin = {"color": "black", "linewidth": 1.0}
    for b, x, mark in _categories(panel, drawn, p):
        look = fill_of(b)
        panel.bxp(
            boxplot_stats(mark.values), positions=[x], widths=width, patch_artist=True, showmeans=True,
            showfliers=False, manage_ticks=False, whiskerprops=thin, capprops=thin,
            boxprops={"facecolor": look.face, "edgecolor": "black", "hatch": look.hatch, "linewidth": 0.9},
            medianprops={"color": _RED, "linewidth": 2.0, "path_effects": _OUTLINED, "zorder": 3,
                         "solid_capstyle": "butt"},
            meanprops=diamond | {"zorder": 5},
        )  # fmt: skip
        _dots(panel, x, mark.values, width)
        spots.append(Spot(x, float(mark.values.min()), float(mark.values.max()), mark.n))
    finish(panel, drawn.scene, spots, drawn.place)
    return [
        *_keys(drawn),
        Line2D([], [], color=_RED, linewidth=2.0, label="median"),
        Line2D([], [], linestyle="", **diamond, label="mean"),
        Line2D([], [], linestyle="", **_DOT, label="one seed"),
    ]


def _bars(panel: Panel, drawn: Chart, p: int) -> list[Artist]:
    width = 0.92 * _GROUP / len(drawn.by_names)
    spots = []
    for b, x, mark in _categories(panel, drawn, p):
        look = fill_of(b)
        mean, spread = (float(each) for each in mean_and_spread(mark.values, drawn.scene.asked.spread))
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


def _lines(panel: Panel, drawn: Chart, p: int) -> list[Artist]:
    scene, spots = drawn.scene, []
    at = _scale(panel, drawn)
    missing: dict[float, list[str]] = {}
    for b, series in enumerate(drawn.panels[p]):
        look = cluster_look(b)
        found = [mean_and_spread(mark.values, scene.asked.spread) if mark.n else (np.nan, np.nan) for mark in series]
        mean, spread = np.array(found, dtype=float).T
        # Beside each other by a little, or error bars hide one another.
        x = at + (b - (len(drawn.by_names) - 1) / 2) * 0.018 * max(np.ptp(at), 0.5)
        shown = 10**x if panel.get_xscale() == "log" else x
        panel.errorbar(
            shown, mean, spread, color=look.color, linestyle=look.dashes, marker=look.marker, markersize=5,
            capsize=3, elinewidth=1.2,
        )  # fmt: skip
        for i, mark in enumerate(series):
            reach = 0.0 if np.isnan(spread[i]) else spread[i]
            if mark.n:
                spots.append(Spot(float(shown[i]), float(mean[i] - reach), float(mean[i] + reach), mark.n))
            else:
                place = float(10 ** at[i] if panel.get_xscale() == "log" else at[i])
                missing.setdefault(place, []).append(f"{drawn.by_names[b]}: {gap(scene, mark)}".removeprefix(": "))
    for place, whose in missing.items():
        same = len(whose) == len(drawn.by_names) and len({each.rpartition(": ")[2] for each in whose}) == 1
        write_gap(panel, place, whose[0].rpartition(": ")[2] if same else "\n".join(whose))
    finish(panel, scene, spots, 0.0)
    if scene.asked.by is None:
        return [line_of(0, "mean")]
    return [line_of(b, named(scene, name)) for b, name in enumerate(drawn.by_names)]


def _scale(panel: Panel, drawn: Chart) -> Floats:
    """Where the settings of `x` stand, in logarithms on a log scale; sets the axis' scale and ticks."""
    settings = drawn.scene.settings(drawn.scene.asked.x)
    numbers = [float(each) for each in settings if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) < len(settings):
        Names.of(drawn.x_names, drawn.width).put(panel)
        return np.arange(len(settings), dtype=float)
    at = np.array(numbers)
    if at.min() > 0 and at.max() > 20 * at.min():
        panel.set_xscale("log")
        panel.minorticks_off()
    log = panel.get_xscale() == "log"
    placed = np.log10(at) if log else at
    panel.set_xticks(at, Names.thin(drawn.x_names, placed, drawn.width))
    edge = 0.07 * max(float(np.ptp(placed)), 0.5)
    ends = placed.min() - edge, placed.max() + edge
    panel.set_xlim(*(10.0**end if log else end for end in ends))
    return placed
