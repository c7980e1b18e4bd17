"""Pictures inside a page and beside it: figures as SVG and PDF, images as PNG. The same input gives the same bytes."""

import io
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imsave
from numpy.typing import NDArray

WIDTH = 5.2
"""Inches. In this width the text stays legible when a phone shows the figure at two thirds of its size."""

HEIGHT = 3.6
"""Inches of a figure's axes with a legend of one line."""

LEGEND_LINE = 0.22
"""Inches that another line of the legend takes."""

Dashes = Literal["-", ""] | tuple[float, tuple[float, ...]]

_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.labelsize": 10.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10.5,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "font.size": 10.0,
    "grid.color": "#dddddd",
    "hatch.linewidth": 0.7,
    "legend.fontsize": 10.0,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "text.parse_math": False,
}

# A date would make every file another one.
_METADATA: Any = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "Creator": "Shoal", "Producer": "Shoal"}}

# Okabe and Ito's colours, told apart with any kind of colour blindness; yellow is too pale on white.
_BLUE, _ORANGE, _GREEN, _PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
_SKY, _VERMILLION, _BLACK = "#56B4E9", "#D55E00", "#000000"
_CLUSTERS = (_BLUE, _ORANGE, _GREEN, _PURPLE, _SKY, _VERMILLION, _BLACK)
_GROUPS = (_VERMILLION, _SKY, _BLACK, _GREEN, _PURPLE, _ORANGE, _BLUE)
_DASHES: tuple[Dashes, ...] = ("-", (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (1.5, 1.5)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

COIN = "#777777"
"""The colour of the line of an attacker who guesses."""

OVER, WITHIN = _VERMILLION, _BLUE
"""The colours of clients whose limit is exceeded, and of the others."""


@dataclass(frozen=True)
class Look:
    """How a cluster or a group is drawn, the same in every figure. Colour never tells things apart alone."""

    color: str
    dashes: Dashes
    marker: str


def cluster_look(k: int) -> Look:
    """The look of cluster ``k``."""
    return _look(_CLUSTERS, k)


def group_look(g: int) -> Look:
    """The look of group number ``g``."""
    return _look(_GROUPS, g)


def _look(colors: Sequence[str], i: int) -> Look:
    return Look(colors[i % len(colors)], _DASHES[i % len(_DASHES)], _MARKERS[i % len(_MARKERS)])


def short(name: str, most: int = 22) -> str:
    """``name`` in at most so many letters, for a legend.

    >>> short("hospitals in the north", 10)
    'hospitals…'
    """
    return name if len(name) <= most else f"{name[: most - 1].rstrip()}…"


def svg(name: str, label: str, paint: Callable[[Figure], None], *, height: float = HEIGHT) -> str:
    """What ``paint`` draws, as an SVG element to stand in a page.

    Args:
        name: unique in the page; ids inside the figure begin with it.
        label: the figure in words, for those who do not see it.
        paint: draws on an empty figure.
        height: in inches.
    """
    with _styled(name):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure)
        return _inline(_saved(figure, "svg"), name, label)


@dataclass(frozen=True)
class Forms:
    """One figure in all its forms.

    Args:
        svg: a file of its own, its text as text.
        pdf: a file of its own, its fonts inside.
        inline: an SVG element to stand in a page, no wider there than in print.
    """

    svg: bytes
    pdf: bytes
    inline: str


def forms(name: str, label: str, paint: Callable[[Figure], None], size: tuple[float, float]) -> Forms:
    """What ``paint`` draws on an empty figure of ``size`` (width, height; inches), as files and for a page.

    ``name`` and ``label`` are those of `svg`.
    """
    with _styled(name):
        figure = Figure(figsize=size)
        figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
        paint(figure)
        document = _saved(figure, "svg")
        inline = _inline(document, name, label, style=f"max-width: {size[0]:g}in")
        return Forms(document, _saved(figure, "pdf"), inline)


@contextmanager
def _styled(name: str) -> Iterator[None]:
    with mpl.rc_context(), warnings.catch_warnings():
        # A script that the measuring font lacks is no harm: the browser writes the text.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE | {"svg.hashsalt": name})
        yield


def _saved(figure: Figure, form: Literal["svg", "pdf"]) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, metadata=_METADATA[form])
    return buffer.getvalue()


def legend(figure: Figure, handles: Sequence, columns: int = 3) -> None:
    """A legend below the figure, where it covers nothing; the figure grows by its lines."""
    lines = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * (lines - 1))
    figure.legend(handles=list(handles), loc="outside lower center", ncols=min(columns, len(handles)))


def _inline(document: bytes, name: str, label: str, *, style: str = "") -> str:
    """The figure without what only a file needs: name spaces, metadata, a style for the whole page, a fixed size."""
    root = ElementTree.fromstring(document)  # noqa: S314 (matplotlib wrote it)
    _strip(root, f"{name}-")
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib |= {"role": "img", "aria-label": label} | ({"style": style} if style else {})
    root.tail = None
    return ElementTree.tostring(root, encoding="unicode")


def _strip(element: ElementTree.Element, prefix: str) -> None:
    element.tag = _local(element.tag)
    for key, value in list(element.attrib.items()):
        del element.attrib[key]
        changed = value.replace("url(#", f"url(#{prefix}")
        if _local(key) == "id":
            changed = prefix + value
        elif _local(key) == "href":
            changed = value.replace("#", f"#{prefix}", 1)
        element.set(_local(key), changed)
    for child in list(element):
        if _local(child.tag) in ("metadata", "style"):
            element.remove(child)
        else:
            _strip(child, prefix)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def png(image: NDArray[np.uint8]) -> str:
    """An image (channels, height, width), in grey or RGB, as an address that holds it."""
    rgb = np.repeat(image[:1], 3, axis=0) if len(image) < 3 else image[:3]
    buffer = io.BytesIO()
    imsave(buffer, np.ascontiguousarray(rgb.transpose(1, 2, 0)), format="png", metadata={"Software": "Shoal"})
    return f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"
