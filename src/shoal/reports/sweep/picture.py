"""A drawn figure of a sweep, for its page and as files."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """A figure of a sweep.

    Args:
        name: of its files, and unique in the page.
        title: what it shows.
        caption: how to read it, and the seeds behind it.
        svg: a file that stands alone.
        pdf: a file that stands alone.
        inline: an SVG element to stand in a page, with ``role="img"`` and an ``aria-label``.
    """

    name: str
    title: str
    caption: str
    svg: bytes
    pdf: bytes
    inline: str
