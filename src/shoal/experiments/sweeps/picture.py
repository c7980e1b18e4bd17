"""A drawn figure in all its forms."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """A figure of a sweep.

    Args:
        name: the file's name without its ending, unique in the sweep.
        title: what it shows.
        caption: how to read it.
        svg: a file of its own.
        pdf: a file of its own.
        inline: an SVG element to stand in a page, with role="img" and aria-label.
    """

    name: str
    title: str
    caption: str
    svg: bytes
    pdf: bytes
    inline: str
