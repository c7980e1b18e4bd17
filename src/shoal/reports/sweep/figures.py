"""A sweep's figures, drawn for the page and for print."""

from dataclasses import dataclass
from textwrap import fill

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from shoal.reports.plotting import CHANCE, figure_files, legend
from shoal.reports.sweep.charts import chart_content
from shoal.reports.sweep.figure_data import Content, FigureData
from shoal.reports.sweep.labels import Labels
from shoal.reports.sweep.round_curves import ReadRounds, curves_content
from shoal.reports.sweep.seed_statistics import SeedStatistics
from shoal.reports.sweep.spec import FigureSpec


@dataclass(frozen=True)
class SweepFigure:
    """A figure of a sweep: two files, and an ``<img>`` element for a page, on which ``name`` is unique."""

    name: str
    title: str
    caption: str
    svg: bytes
    pdf: bytes
    image: str


def draw_figure(
    name: str, spec: FigureSpec, statistics: SeedStatistics, labels: Labels, read_rounds: ReadRounds
) -> SweepFigure:
    """The figure that ``spec``, which fits the sweep's axes, describes; the same input gives the same bytes.

    Raises:
        InputError: no run has one of the metrics of ``spec``.
    """
    data = FigureData(spec, statistics, labels)
    content = curves_content(data, read_rounds) if spec.kind == "courses" else chart_content(data)
    title, (width, height) = spec.title or name, content.size
    size = (content.columns * width, -(-len(content.panels) // content.columns) * height)
    files = figure_files(f"{title}. {content.description}", lambda figure: paint(figure, content, data), size)
    return SweepFigure(name, title, content.caption, files.svg, files.pdf, files.image)


def paint(figure: Figure, content: Content, data: FigureData) -> None:
    """Draw panels and legend on an empty figure."""
    spec, columns, letters = data.spec, content.columns, int(10 * content.size[0])
    level = {"color": CHANCE, "linewidth": 1.4, "linestyle": ":"}
    scales: dict[str, tuple[Axes, float]] = {}
    for i, panel in enumerate(content.panels):
        if panel is None:
            continue
        (one, room), rows = scales.get(panel.scale, (None, 0.0)), -(-len(content.panels) // columns)
        axes = figure.add_subplot(rows, columns, i + 1, sharex=(figure.axes or [None])[0], sharey=one)
        if spec.level is not None:
            axes.axhline(spec.level, **level, zorder=1.5)
        scales[panel.scale] = (axes, max(room, panel.draw(axes)))
        axes.set_title("\n".join(fill(line, letters) for line in panel.title.splitlines()))
        axes.set_xlabel(fill(axes.get_xlabel(), letters))
        if i % columns == 0 or not spec.y_label:
            axes.set_ylabel(fill(panel.y_label, 22))
    for axes, room in scales.values():
        low, high = axes.get_ylim()
        axes.set_ylim(*(spec.y_range or (low, low + (high - low) / (1 - room))))
    handles = [*content.handles]
    if spec.level is not None:
        handles.append(Line2D([], [], **level, label=data.labels.setting(spec.level)))
    _put_legend(figure, handles)


def _put_legend(figure: Figure, handles: list[Artist]) -> None:
    """A legend below the panels, in as many columns as fit."""
    for handle in handles:
        handle.set_label(fill(str(handle.get_label()), 40))
    letters = max((len(line) for handle in handles for line in str(handle.get_label()).splitlines()), default=0)
    legend(figure, handles, columns=max(1, int(12.5 * figure.get_figwidth() / (letters + 8))))
