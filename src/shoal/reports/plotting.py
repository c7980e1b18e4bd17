"""Figures as SVG and PDF, and images as PNG, reproducible byte for byte."""

import io
import warnings
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as MplFigure
from matplotlib.image import imsave
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

WIDTH = 5.2
"""The width in inches; text stays legible on a phone that shows figures at two thirds of their size."""

HEIGHT = 3.6
"""The height of a figure in inches, with a legend of one line."""

Dashes = Literal["-", ""] | tuple[float, tuple[float, ...]]
Draw = Callable[[MplFigure], None]
"""A function that draws on an empty Matplotlib figure."""

_STYLE = mpl.rc_params_from_file(Path(__file__).parents[1] / "figures.mplstyle", use_default_template=False)
"""The style of figures, also available as ``matplotlib.pyplot.style.use("shoal.figures")``."""

# Files with dates would not be reproducible.
_METADATA: Any = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "Creator": "Shoal", "Producer": "Shoal"}}

# Okabe and Ito's colours, which differ for any kind of colour blindness; yellow is too pale on white.
_BLUE, _ORANGE, _GREEN, _PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
_SKY, _VERMILLION, _BLACK = "#56B4E9", "#D55E00", "#000000"
_CLUSTERS = (_BLUE, _ORANGE, _GREEN, _PURPLE, _SKY, _VERMILLION, _BLACK)
_GROUPS = (_VERMILLION, _SKY, _BLACK, _GREEN, _PURPLE, _ORANGE, _BLUE)
_DASHES: tuple[Dashes, ...] = ("-", (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (1.5, 1.5)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

MARK_LINE: Any = {"color": "#777777", "linestyle": "--", "linewidth": 0.8}
"""The line of an event between two rounds."""

CHANCE_LINE: Any = {"color": "#777777", "linewidth": 1.2, "linestyle": ":"}
"""The line of the chance level."""

OVER, UNSURE, WITHIN = _VERMILLION, _ORANGE, _BLUE
"""The colours of clients above, perhaps above, and within their limits."""


@dataclass(frozen=True)
class LineStyle:
    """The line style of a cluster or a group, with colour, dashes and marker."""

    color: str
    dashes: Dashes
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """The colour and dashes as matplotlib settings of a line."""
        return {"color": self.color, "linestyle": self.dashes}

    @property
    def mark(self) -> dict[str, Any]:
        """The colour and marker as matplotlib settings of points."""
        return {"color": self.color, "marker": self.marker, "linestyle": ""}


def cluster_style(k: int, colors: Sequence[str] = _CLUSTERS) -> LineStyle:
    """Return the style of cluster ``k``."""
    return LineStyle(colors[k % len(colors)], _DASHES[k % len(_DASHES)], _MARKERS[k % len(_MARKERS)])


def group_style(g: int) -> LineStyle:
    """Return the style of group ``g``."""
    return cluster_style(g, _GROUPS)


def short(name: str, most: int = 22) -> str:
    """Shorten ``name`` to at most ``most`` characters.

    >>> short("hospitals in the north", 10)
    'hospitals…'
    """
    return name if len(name) <= most else f"{name[: most - 1].rstrip()}…"


def log_shares(axis: Axis) -> None:
    """Label a logarithmic axis at powers of ten with fractions."""
    axis.set_major_locator(LogLocator(10))
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}"))
    axis.set_minor_formatter(NullFormatter())


def key(label: str, **style: Any) -> Line2D:  # noqa: ANN401 - settings of matplotlib
    """Create a legend entry."""
    return Line2D([], [], label=label, **style)


def chance_key(label: str = "chance: 0.500") -> Line2D:
    """Create the legend entry of `CHANCE_LINE`."""
    return key(label, **CHANCE_LINE)


def draw_diamond(axes: Axes, x: float, y: float, name: str, color: str) -> None:
    """Draw a diamond at the right edge of ``axes``, with its name as a tooltip."""
    (diamond,) = axes.plot(
        [x], [y], marker="D", markersize=7, color=color, markeredgecolor="black", clip_on=False, zorder=7
    )
    name_points(diamond, [name])


def legend(figure: MplFigure, handles: Sequence, columns: int = 3) -> None:
    """Draw a legend below the figure, and increase the figure's height for the legend's lines."""
    lines = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + 0.22 * (lines - 1))
    figure.legend(handles=list(handles), loc="outside lower center", ncols=min(columns, len(handles)))


@dataclass(frozen=True)
class Figure:
    """A figure of a page."""

    name: str
    title: str
    caption: str
    image: str
    svg: bytes = b""
    pdf: bytes = b""
    files: str = ""


def draw_figure(name: str, title: str, caption: str, alt: str, draw: Draw, *, height: float = HEIGHT) -> Figure:
    """Create a figure of a page."""
    (svg,) = _render(draw, (WIDTH, height), "svg")
    return Figure(name, title, caption, _inline(svg, name, alt))


def figure_files(
    alt: str, draw: Draw, size: tuple[float, float], *, name: str = "figure", title: str = "", caption: str = ""
) -> Figure:
    """Create a figure of ``size`` (width, height in inches), for a page and for files."""
    svg, pdf = _render(draw, size, "svg", "pdf")
    image = _inline(svg, f"figure-{name}-drawn", alt, f"max-width: {size[0]:g}in")
    return Figure(name, title, caption, image, _with_names(svg), pdf)


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
    """Encode a grey or RGB image (channels, height, width) as a data URI."""
    rgb = np.repeat(image[:1], 3, axis=0) if len(image) < 3 else image[:3]
    buffer = io.BytesIO()
    imsave(buffer, np.ascontiguousarray(rgb.transpose(1, 2, 0)), format="png", metadata={"Software": "Shoal"})
    return f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"


def use_figure_style() -> AbstractContextManager[None]:
    """Return a context manager that applies Shoal's style to `matplotlib.pyplot`, and restores the user's settings at
    its end.
    """
    return mpl.rc_context(_STYLE)


MOST = 1000
"""The largest number of points with tooltips in one artist; more points have none, which keeps pages small."""

_GID, _NEXT = "hover:", "\N{LINE SEPARATOR}"
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"


def name_points(artist: Artist, texts: Sequence[str]) -> None:
    """Add tooltips to a Matplotlib artist: one text per point, or a single text for the whole artist."""
    if 0 < len(texts) <= MOST:
        artist.set_gid(_GID + _NEXT.join(" ".join(text.split()) for text in texts))


def add_named_points(axes: Axes, x: Sequence[float], y: Sequence[float], texts: Sequence[str]) -> None:
    """Add invisible points with tooltips to ``axes``."""
    if len(texts):
        (points,) = axes.plot(x, y, linestyle="", marker="o", markersize=9, color="#777777", alpha=0.0, zorder=6)
        points.set_in_layout(False)
        name_points(points, texts)


def _with_names(svg: bytes) -> bytes:
    """Add points' tooltips, as titles, to a Matplotlib SVG file."""
    ElementTree.register_namespace("", _SVG[1:-1])
    ElementTree.register_namespace("xlink", _LINK[1:-5])
    return ElementTree.tostring(_named(svg), encoding="utf-8", xml_declaration=True) + b"\n"


def _inline(svg: bytes, name: str, alt: str, style: str = "") -> str:
    """Convert an SVG file to an element of a page; ``name`` is unique on the page, and ``alt`` describes the figure.

    On a dark page, style.css inverts the colours.
    """
    root = _named(svg)
    for parent in root.iter():
        for child in [element for element in parent if element.tag in (f"{_SVG}metadata", f"{_SVG}style")]:
            parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        for key, value in {**element.attrib}.items():
            element.set(key, f"{name}-{value}" if key == "id" else value.replace("url(#", f"url(#{name}-"))
        if _LINK in element.attrib:
            element.set("href", f"#{name}-{element.attrib.pop(_LINK)[1:]}")
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": alt} | (
        {"style": style} if style else {}
    )
    return ElementTree.tostring(root, encoding="unicode")


def _named(svg: bytes) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)  # noqa: S314 - matplotlib wrote it
    for group in list(root.iter(f"{_SVG}g")):
        if group.get("id", "").startswith(_GID):
            texts = group.attrib.pop("id").removeprefix(_GID).split(_NEXT)
            group.set("class", "named")
            points = list(group.iter(f"{_SVG}use")) if len(texts) > 1 else [group]
            # Points outside the figure are not drawn, and then it is unknown which ones are left.
            for element, text in zip(points, texts, strict=True) if len(points) == len(texts) else ():
                title = ElementTree.Element(f"{_SVG}title")
                title.text = text
                element.insert(0, title)
    return root
