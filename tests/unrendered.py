"""Figures that are not drawn, or drawn but not rendered, which takes most of a page's time: for tests of its words."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from matplotlib.figure import Figure

from shoal.reports import plotting

EMPTY = {"svg": b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>', "pdf": b"%PDF"}
RENDER = plotting._render


def _undrawn(draw: Any, size: tuple[float, float], *formats: str) -> Sequence[bytes]:
    return [EMPTY[each] for each in formats]


def _drawn(draw: Any, size: tuple[float, float], *formats: str) -> Sequence[bytes]:
    with plotting.use_figure_style():
        draw(Figure(size, layout="constrained"))
    return [EMPTY[each] for each in formats]


def _without_pdf(draw: Any, size: tuple[float, float], *formats: str) -> Sequence[bytes]:
    (svg,) = RENDER(draw, size, "svg")
    return [svg if each == "svg" else EMPTY[each] for each in formats]


@contextmanager
def undrawn_figures() -> Iterator[None]:
    """Inside it figures are empty, and nothing is drawn. What it makes belongs in no cache that other tests read."""
    with patch.object(plotting, "_render", _undrawn):
        yield


@contextmanager
def unrendered_figures() -> Iterator[None]:
    """Inside it figures are drawn, and empty all the same. It belongs in no cache either."""
    with patch.object(plotting, "_render", _drawn):
        yield


@contextmanager
def figures_without_pdf() -> Iterator[None]:
    """Inside it a figure's PDF is empty, which has the fonts' outlines and takes longer than its SVG."""
    with patch.object(plotting, "_render", _without_pdf):
        yield


@contextmanager
def rendered_figures() -> Iterator[None]:
    """Inside it figures are as users have them."""
    with patch.object(plotting, "_render", RENDER):
        yield
