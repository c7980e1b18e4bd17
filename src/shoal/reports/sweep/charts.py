"""Boxes, bars and lines over the settings of an axis, a panel for each figure."""

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from shoal.reports.sweep.boxes import draw_bars, draw_boxes
from shoal.reports.sweep.figure_data import Scene
from shoal.reports.sweep.gaps import gap, seeds_of, sentences
from shoal.reports.sweep.labels import SPREADS
from shoal.reports.sweep.lines import draw_lines
from shoal.reports.sweep.looks import HEIGHT, Names, Plate, draw_level, grid_of, put_legend, wrapped
from shoal.reports.sweep.marks import Chart, chart
from shoal.reports.sweep.number_format import number


def chart_plate(scene: Scene) -> Plate:
    """Boxes, bars or lines, ready to be drawn."""
    drawn, asked = chart(scene), scene.asked
    rows, columns = grid_of(len(asked.y), drawn.width)
    names = Names.of(drawn.x_names, drawn.width)

    def paint(figure: Figure) -> None:
        handles: list[Artist] = []
        known = _reach(drawn)
        for p, key in enumerate(asked.y):
            panel = figure.add_subplot(rows, columns, p + 1)
            title = scene.words.key(key)
            panel.set_title(wrapped(title, drawn.width - 0.3))
            # The title is the axis' name where the file gives no other and the title says no more.
            label = asked.y_label or title.partition(",")[0]
            if label != title and (p % columns == 0 or not asked.y_label):
                panel.set_ylabel(wrapped(label, HEIGHT - 0.5))
            level = draw_level(panel, scene)
            if asked.y_label and known:
                panel.update_datalim([(0.0, min(known)), (0.0, max(known))], updatex=False)
            match asked.kind:
                case "boxes":
                    handles = draw_boxes(panel, drawn, p)
                case "bars":
                    handles = draw_bars(panel, drawn, p)
                case _:
                    handles = draw_lines(panel, drawn, p)
            label = scene.words.axis(asked.x or "")
            if panel.get_xscale() == "log":
                label += " (log scale)"
            panel.set_xlabel(wrapped(label, drawn.width - 0.5))
            handles = [*handles, *level]
        if asked.y_label and not asked.y_range:
            # Panels under one label are read against each other.
            limits = [panel.get_ylim() for panel in figure.axes]
            for panel in figure.axes:
                panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        put_legend(figure, handles)

    return Plate((columns * drawn.width, rows * (HEIGHT + names.height)), paint, _notes(drawn), _alt(drawn))


def _reach(drawn: Chart) -> list[float]:
    """What the panels show: single seeds, and the ends of error bars."""
    lines, bare = drawn.scene.asked.kind == "lines", drawn.scene.asked.kind == "boxes"
    shown = []
    for mark in drawn.marks:
        spread = 0.0 if bare or mark.n < 2 else mark.found.spread
        shown += [] if lines else mark.values.tolist()
        shown += [mark.found.mean - spread, mark.found.mean + spread] if mark.n else []
    return shown


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
            first = f"Bars: means over {seeds}; error bars: {spread} each way; dots: single seeds."
        case _:
            first = f"Lines: means over {seeds}; error bars: {spread} each way."
    values = [
        mark.values if scene.asked.kind != "lines" else np.array([mark.found.mean]) for mark in drawn.marks if mark.n
    ]
    shown = np.concatenate([*values, np.zeros(0)])
    return [first, *sentences(scene, [mark.n for mark in drawn.marks], shown)]


def _alt(drawn: Chart) -> str:
    scene = drawn.scene
    told = []
    for key, panel in zip(scene.asked.y, drawn.panels, strict=True):
        parts = []
        for name, series in zip(drawn.by_names, panel, strict=True):
            means = [
                f"{number(mark.found.mean, key) if mark.n else gap(scene, mark)} at {x}"
                for x, mark in zip(drawn.x_names, series, strict=True)
            ]
            parts.append(f"{name} {', '.join(means)}".strip())
        told.append(f"{scene.words.key(key)}: {'; '.join(parts)}.")
    return f"Means over seeds by {scene.words.axis(scene.asked.x or '')}. {' '.join(told)}"
