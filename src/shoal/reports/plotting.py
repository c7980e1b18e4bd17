"""Figures as SVG and PDF, images as PNG, for a page or as files. The same input gives the same bytes."""

import io
import warnings
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as MplFigure
from matplotlib.image import imsave
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from shoal.reports.svg import inline, name_points, with_names

WIDTH = 5.2
"""Inches. In this width the text stays legible when a phone shows the figure at two thirds of its size."""

HEIGHT = 3.6
"""Inches of a figure's axes with a legend of one line."""

Dashes = Literal["-", ""] | tuple[float, tuple[float, ...]]
Draw = Callable[[MplFigure], None]
"""Draws on an empty figure of matplotlib."""

_STYLE = mpl.rc_params_from_file(Path(__file__).parents[1] / "figures.mplstyle", use_default_template=False)
"""Also for one's own figures, as ``matplotlib.pyplot.style.use("shoal.figures")``."""

# A date would make every file another one.
_METADATA: Any = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "Creator": "Shoal", "Producer": "Shoal"}}

# Okabe and Ito's colours, which differ for any kind of colour blindness; yellow is too pale on white.
_BLUE, _ORANGE, _GREEN, _PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
_SKY, _VERMILLION, _BLACK = "#56B4E9", "#D55E00", "#000000"
_CLUSTERS = (_BLUE, _ORANGE, _GREEN, _PURPLE, _SKY, _VERMILLION, _BLACK)
_GROUPS = (_VERMILLION, _SKY, _BLACK, _GREEN, _PURPLE, _ORANGE, _BLUE)
_DASHES: tuple[Dashes, ...] = ("-", (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (1.5, 1.5)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

CHANCE_LINE: Any = {"color": "#777777", "linewidth": 1.2, "linestyle": ":"}
"""The line of chance."""

OVER, UNSURE, WITHIN = _VERMILLION, _ORANGE, _BLUE
"""The colours of clients whose limit is exceeded, of those for whom that is not certain, and of the others."""


@dataclass(frozen=True)
class LineStyle:
    """How a cluster or a group is drawn, the same in every figure. No two differ by colour alone."""

    color: str
    dashes: Dashes
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """Colour and dashes, for matplotlib."""
        return {"color": self.color, "linestyle": self.dashes}

    @property
    def mark(self) -> dict[str, Any]:
        """Colour and marker without a line, for matplotlib."""
        return {"color": self.color, "marker": self.marker, "linestyle": ""}


def cluster_style(k: int, colors: Sequence[str] = _CLUSTERS) -> LineStyle:
    """The style of cluster ``k``."""
    return LineStyle(colors[k % len(colors)], _DASHES[k % len(_DASHES)], _MARKERS[k % len(_MARKERS)])


def group_style(g: int) -> LineStyle:
    """The style of group number ``g``."""
    return cluster_style(g, _GROUPS)


def short(name: str, most: int = 22) -> str:
    """``name`` in at most so many letters, for a legend.

    >>> short("hospitals in the north", 10)
    'hospitals…'
    """
    return name if len(name) <= most else f"{name[: most - 1].rstrip()}…"


def log_percent(axis: Axis) -> None:
    """Let a logarithmic axis show shares in percent, at powers of ten."""
    axis.set_major_locator(LogLocator(10))
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    axis.set_minor_formatter(NullFormatter())


def key(label: str, **style: Any) -> Line2D:  # noqa: ANN401 - settings of matplotlib
    """An entry of a legend: a line, a mark, or both."""
    return Line2D([], [], label=label, **style)


def chance_key(label: str = "chance: 0.500") -> Line2D:
    """The entry of `CHANCE_LINE` in a legend."""
    return key(label, **CHANCE_LINE)


def share_axis(axis: Axis, symbol: str = " %") -> None:
    """Let an axis show shares in percent."""
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=symbol))


def draw_diamond(axes: Axes, x: float, y: float, name: str, color: str) -> None:
    """A diamond at the right edge, with its name under the pointer."""
    (diamond,) = axes.plot(
        [x], [y], marker="D", markersize=7, color=color, markeredgecolor="black", clip_on=False, zorder=7
    )
    name_points(diamond, [name])


def legend(figure: MplFigure, handles: Sequence, columns: int = 3) -> None:
    """A legend below the figure, where it covers nothing; the figure grows by 0.22 inches for each further line."""
    lines = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + 0.22 * (lines - 1))
    figure.legend(handles=list(handles), loc="outside lower center", ncols=min(columns, len(handles)))


@dataclass(frozen=True)
class Figure:
    """A figure.

    Args:
        name: unique on its page.
        title, caption: above and below it.
        image: an ``<svg>`` element that holds it.
        svg, pdf: it as files, its text as text and its fonts inside.
        files: links to these, as HTML.
    """

    name: str
    title: str
    caption: str
    image: str
    svg: bytes = b""
    pdf: bytes = b""
    files: str = ""


def draw_figure(name: str, title: str, caption: str, alt: str, draw: Draw, *, height: float = HEIGHT) -> Figure:
    """A figure of a page: ``alt`` is its content in words, for those who do not see it, ``height`` is in inches."""
    (svg,) = _render(draw, (WIDTH, height), "svg")
    return Figure(name, title, caption, inline(svg, name, alt))


def figure_files(
    alt: str, draw: Draw, size: tuple[float, float], *, name: str = "figure", title: str = "", caption: str = ""
) -> Figure:
    """A figure of ``size`` (width, height; inches) as files and for a page, there no wider than in print."""
    svg, pdf = _render(draw, size, "svg", "pdf")
    image = inline(svg, f"figure-{name}-drawn", alt, f"max-width: {size[0]:g}in")
    return Figure(name, title, caption, image, with_names(svg), pdf)


def _render(draw: Draw, size: tuple[float, float], *formats: Literal["svg", "pdf"]) -> list[bytes]:
    with mpl.rc_context(), warnings.catch_warnings():
        # A script that the measuring font lacks is no harm: the browser writes the text.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        figure = MplFigure(figsize=size)
        figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
        draw(figure)
        buffers = [io.BytesIO() for _ in formats]
        for buffer, form in zip(buffers, formats, strict=True):
            figure.savefig(buffer, format=form, metadata=_METADATA[form])
    return [buffer.getvalue() for buffer in buffers]


def png(image: NDArray[np.uint8]) -> str:
    """An image (channels, height, width), in grey or RGB, as a data URI."""
    rgb = np.repeat(image[:1], 3, axis=0) if len(image) < 3 else image[:3]
    buffer = io.BytesIO()
    imsave(buffer, np.ascontiguousarray(rgb.transpose(1, 2, 0)), format="png", metadata={"Software": "Shoal"})
    return f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"


def styled() -> AbstractContextManager[None]:
    """Inside it, figures of `matplotlib.pyplot` have the style of Shoal's; afterwards the settings are the user's."""
    return mpl.rc_context(_STYLE)
