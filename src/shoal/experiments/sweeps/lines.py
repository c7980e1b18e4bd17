"""Means over the settings of an axis, joined by lines."""

from dataclasses import replace

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes as Panel

from shoal.experiments.frames import Floats
from shoal.experiments.svg import cluster_look
from shoal.experiments.sweeps.gaps import Spot, finish, gap, write_gap
from shoal.experiments.sweeps.looks import Names, line_of
from shoal.experiments.sweeps.marks import Chart
from shoal.experiments.sweeps.scene import mean_and_spread, named


def draw_lines(panel: Panel, drawn: Chart, p: int) -> list[Artist]:
    """The lines of panel number ``p``; returns what stands in the legend."""
    scene, at = drawn.scene, _scale(panel, drawn)
    onto = np.power if panel.get_xscale() == "log" else None
    spots: list[list[Spot]] = [[] for _ in at]
    gaps: list[list[str]] = [[] for _ in at]
    for b, (series, name) in enumerate(zip(drawn.panels[p], drawn.by_names, strict=True)):
        look = cluster_look(b)
        found = [mean_and_spread(mark.values, scene.asked.spread) if mark.n else (np.nan, np.nan) for mark in series]
        mean, spread = np.array(found, dtype=float).T
        # Beside each other by a little, or error bars hide one another.
        aside = at + (b - (len(drawn.by_names) - 1) / 2) * 0.018 * max(float(np.ptp(at)), 0.5)
        x = onto(10.0, aside) if onto else aside
        panel.errorbar(
            x, mean, spread, color=look.color, linestyle=look.dashes, marker=look.marker, markersize=5, capsize=3,
            elinewidth=1.2,
        )  # fmt: skip
        for i, mark in enumerate(series):
            reach = float(np.nan_to_num(spread[i]))
            if mark.n:
                spots[i].append(Spot(float(x[i]), float(mean[i] - reach), float(mean[i] + reach), mark.n))
            else:
                gaps[i].append(f"{name}: {gap(scene, mark)}".removeprefix(": "))
    outer = [spot for here in spots for spot in _outward(here)]
    finish(panel, scene, outer, drawn.step)
    low, high = panel.get_ylim()
    for i, told in enumerate(gaps):
        ends = [end for spot in spots[i] for end in (spot.low, spot.high)]
        top = bool(ends) and high - max(ends) > min(ends) - low
        text = "\n".join(told) if ends else told[0].rpartition(": ")[2] if told else ""
        write_gap(panel, float(10.0 ** at[i] if onto else at[i]), text, top=top)
    if scene.asked.by is None:
        return [line_of(0, "mean")]
    return [line_of(b, named(scene, name)) for b, name in enumerate(drawn.by_names)]


def _outward(spots: list[Spot]) -> list[Spot]:
    """Marks at one setting: n stands below those in the lower half, where the others are out of its way."""
    order = sorted(spots, key=lambda spot: spot.low + spot.high)
    return [replace(spot, below=rank < len(order) // 2) for rank, spot in enumerate(order)]


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
