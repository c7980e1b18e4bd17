"""Means over the settings of an axis, joined by lines."""

from dataclasses import replace

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes as Panel

from shoal.reports.frames import Floats
from shoal.reports.plotting import cluster_style as cluster_look
from shoal.reports.plotting import short
from shoal.reports.sweep.gaps import Spot, finish, gap, write_gap
from shoal.reports.sweep.looks import Names, line_of
from shoal.reports.sweep.marks import Chart


def draw_lines(panel: Panel, drawn: Chart, p: int) -> list[Artist]:
    """The lines of panel number ``p``; returns what stands in the legend."""
    scene, at = drawn.scene, _scale(panel, drawn)
    log, count = panel.get_xscale() == "log", len(drawn.by_names)
    spots: list[list[Spot]] = [[] for _ in at]
    for b, series in enumerate(drawn.panels[p]):
        look = cluster_look(b)
        mean, spread = np.array([(mark.found.mean, mark.found.spread) for mark in series]).T
        # Beside each other by a little, or error bars hide one another.
        x = _put(at + (b - (count - 1) / 2) * 0.018 * max(float(np.ptp(at)), 0.5), log)
        panel.errorbar(
            x, mean, spread, color=look.color, linestyle=look.dashes, marker=look.marker, markersize=5, capsize=3,
            elinewidth=1.2,
        )  # fmt: skip
        for i, mark in enumerate(series):
            reach = float(np.nan_to_num(spread[i]))
            spots[i].append(Spot(float(x[i]), float(mean[i] - reach), float(mean[i] + reach), mark.n))
    standing = [[spot for spot in here if spot.n] for here in spots]
    finish(panel, scene, [spot for here in standing for spot in _outward(here)], drawn.step)
    low, high = panel.get_ylim()
    for i, here in enumerate(standing):
        lost = [b for b, spot in enumerate(spots[i]) if spot.n == 0]
        top = bool(here) and high - max(spot.high for spot in here) > min(spot.low for spot in here) - low
        told = [gap(scene, drawn.panels[p][b][i]) for b in lost]
        if here:
            told = [f"{short(drawn.by_names[b], 12)}\n{why}" for b, why in zip(lost, told, strict=True)]
        if told:
            place = float(_put(at[i : i + 1], log)[0])
            write_gap(panel, place, "\n".join(dict.fromkeys(told)).strip(), top=top)
    if scene.asked.by is None:
        return [line_of(0, "mean")]
    return [line_of(b, scene.named(name)) for b, name in enumerate(drawn.by_names)]


def _put(at: Floats, log: bool) -> Floats:
    """Places on a scale as numbers of the axis."""
    return np.power(10.0, at) if log else at


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
    panel.set_xlim(*_put(np.array([placed.min() - edge, placed.max() + edge]), log).tolist())
    return placed
