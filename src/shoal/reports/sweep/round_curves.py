"""Courses over rounds, drawn: a panel a column of rounds.csv and a setting, a line a model."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from shoal.reports.frames import Floats
from shoal.reports.plotting import cluster_style as cluster_look
from shoal.reports.sweep.figure_data import Scene
from shoal.reports.sweep.gaps import seeds_of, sentences
from shoal.reports.sweep.labels import SPREADS
from shoal.reports.sweep.looks import (
    ACROSS,
    HEIGHT,
    PANEL,
    SMALL,
    Plate,
    draw_level,
    line_of,
    put_legend,
    wrapped,
)
from shoal.reports.sweep.number_format import number
from shoal.reports.sweep.ranked import Courses, courses_of, models_named
from shoal.reports.sweep.seed_statistics import mean_and_spread


def courses_plate(scene: Scene, courses: Callable[[str], pd.DataFrame]) -> Plate:
    """Courses, ready to be drawn.

    Raises:
        InputError: no run has one of the columns.
    """
    panels, asked = courses_of(scene, courses), scene.asked
    settings = len(scene.settings(asked.by))
    lines = -(-settings // ACROSS)
    columns = -(-settings // lines)
    names = models_named(max(panel.values.shape[1] for panel in panels))
    subtitles = [_fewer(panel, len(scene.seeds), names) for panel in panels]

    def paint(figure: Figure) -> None:
        level, first = [], {}
        for i, (panel, below) in enumerate(zip(panels, subtitles, strict=True)):
            line, at = divmod(i % settings, columns)
            row = i // settings * lines + line
            together = figure.axes[0] if figure.axes else None
            axes = figure.add_subplot(
                len(asked.y) * lines, columns, row * columns + at + 1, sharex=together, sharey=first.get(panel.key)
            )
            first.setdefault(panel.key, axes)
            level = draw_level(axes, scene)
            _draw(axes, panel, scene)
            axes.set_title(wrapped(_title(panel, scene), PANEL - 0.3) + (f"\n{below}" if below else ""))
            label = asked.y_label or scene.words.key(panel.key)
            if at == 0 and label != _title(panel, scene):
                axes.set_ylabel(wrapped(label, HEIGHT - 0.5))
        put_legend(figure, [*(line_of(m, name) for m, name in enumerate(names)), *level])

    height = HEIGHT + 0.18 * max(text.count("\n") + 1 if text else 0 for text in subtitles)
    notes = _notes(scene, panels, names)
    return Plate((columns * PANEL, len(asked.y) * lines * height), paint, notes, _alt(panels, scene, names))


def _title(panel: Courses, scene: Scene) -> str:
    setting = "" if panel.by is None else scene.named(scene.words.setting(panel.by))
    if setting and (len(scene.asked.y) == 1 or not scene.asked.y_label):
        return setting
    return ", ".join(part for part in (scene.words.key(panel.key), setting) if part)


def _fewer(panel: Courses, seeds: int, names: Sequence[str]) -> str:
    """Which lines rest on fewer than all seeds, in a line or two for the panel's title."""
    n = panel.n
    if not n.any():
        return ""
    told = []
    for name, counts in zip(names, n, strict=False):
        if counts.min() < seeds:
            low, high = counts.min(), counts.max()
            told.append((name, f"n = {low}" if low == high else f"n = {low} to {high}"))
    same = {text for _, text in told}
    if len(told) == len(n) and len(same) == 1:
        return same.pop()
    return "\n".join(f"{name.partition(' (')[0]}: {text}" for name, text in told)


def _draw(axes: Panel, panel: Courses, scene: Scene) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    mean, spread = mean_and_spread(panel.values, scene.asked.spread)
    for m, (line, reach) in enumerate(zip(mean, np.nan_to_num(spread), strict=True)):
        look = cluster_look(m)
        axes.fill_between(panel.rounds, line - reach, line + reach, color=look.color, alpha=0.2, linewidth=0)
        axes.plot(
            panel.rounds, line, color=look.color, linestyle=look.dashes, marker=look.marker, markersize=4.5,
            markevery=_marked(line, m),
        )  # fmt: skip
    if not panel.n.any():
        axes.text(
            0.5, 0.5, "no run" if not _runs(scene, panel) else "no value",
            transform=axes.transAxes, ha="center", fontsize=SMALL + 1, color="#555555",
        )  # fmt: skip
    if scene.asked.y_range:
        axes.set_ylim(*scene.asked.y_range)


def _runs(scene: Scene, panel: Courses) -> int:
    return sum(row is not None for rows in scene.outcomes.rows(scene.place(None, panel.by)) for row in rows)


def _marked(line: Floats, m: int) -> list[bool]:
    """Which points get a marker: about ten of a long line, and those without neighbours, that no line would show."""
    known = np.concatenate([[False], ~np.isnan(line), [False]])
    alone = known[1:-1] & ~known[:-2] & ~known[2:]
    step = max(1, len(line) // 10)
    return [bool(one) or i % step == m * step // 3 % step for i, one in enumerate(alone)]


def _notes(scene: Scene, panels: Sequence[Courses], names: Sequence[str]) -> list[str]:
    order = ""
    if len(names) > 1:
        order = " Models are ordered by how many clients chose them in the last round of each run."
    first = f"Lines: means over {seeds_of(scene)}; bands: {SPREADS[scene.asked.spread]} each way.{order}"
    # A round in which a model has no value is a break in its line, which needs no label.
    counts = [int(count) for panel in panels for count in (panel.n[panel.n > 0] if panel.n.any() else [0])]
    means = [mean_and_spread(panel.values, "sd")[0].ravel() for panel in panels]
    shown = np.concatenate(means)
    return [first, *sentences(scene, counts, shown[~np.isnan(shown)])]


def _alt(panels: Sequence[Courses], scene: Scene, names: Sequence[str]) -> str:
    told = []
    for panel in panels:
        title = ", ".join(dict.fromkeys([scene.words.key(panel.key), _title(panel, scene)]))
        if not panel.n.any():
            told.append(f"{title}: no value.")
            continue
        mean, _ = mean_and_spread(panel.values, "sd")
        ends = []
        for name, line in zip(names, mean, strict=False):
            known = np.flatnonzero(~np.isnan(line))
            if len(known):
                ends.append(f"{name} {number(line[known[-1]], panel.key)} in round {panel.rounds[known[-1]]:.0f}")
        told.append(f"{title}: {', '.join(ends)}.")
    return f"Means over seeds at the end of the courses. {' '.join(told)}"
