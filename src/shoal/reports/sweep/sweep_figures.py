"""A sweep's figures, drawn for the page and for print."""

from dataclasses import dataclass
from functools import partial
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure
from matplotlib.lines import Line2D

from shoal.reports.plotting import CHANCE_LINE, Figure, figure_files, legend
from shoal.reports.sweep.charts import chart_content
from shoal.reports.sweep.figure_data import Content, FigureData
from shoal.reports.sweep.labels import Labels
from shoal.reports.sweep.report_spec import FigureSpec
from shoal.reports.sweep.seed_statistics import SeedStatistics
from shoal.reports.sweep.sweep_curves import ReadRounds, curves_content

HEIGHT = 3.2
"""Inches of a panel with its labels."""


@dataclass(frozen=True)
class SweepFigure(Figure):
    """A figure of a sweep: of a page, and as two files."""

    svg: bytes = b""
    pdf: bytes = b""


def draw_figure(
    name: str, spec: FigureSpec, statistics: SeedStatistics, labels: Labels, read_rounds: ReadRounds
) -> SweepFigure:
    """The figure that ``spec`` describes; an `InputError` where no run can have one of its metrics."""
    data = FigureData(spec, statistics, labels)
    content = curves_content(data, read_rounds) if spec.kind == "courses" else chart_content(data)
    title, size = spec.title or name, (content.columns * content.width, len(content.rows) * HEIGHT)
    alt, draw = f"{title}. {content.description}", partial(paint, content=content, data=data)
    files = figure_files(alt, draw, size, name=f"figure-{name}-drawn")
    return SweepFigure(name, title, content.caption, files.image, svg=files.svg, pdf=files.pdf)


def paint(figure: MplFigure, content: Content, data: FigureData) -> None:
    """Draw panels and legend on an empty figure."""
    spec, handles, scales = data.spec, list(content.handles), dict[str, Axes]()
    if spec.level is not None:
        handles.append(Line2D([], [], **CHANCE_LINE, label=data.labels.setting(spec.level)))
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
