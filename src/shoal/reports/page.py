"""Pages that hold everything they show, in one style: a lead, key metrics, and sections, by one template."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from shoal.audit.finding import Finding, sentence
from shoal.reports.plotting import Figure
from shoal.reports.table import ReportTable


@dataclass(frozen=True)
class Picture:
    """An image as a data URI, what it is in words, and texts beside it: strong, plain and small."""

    source: str
    alt: str = ""
    strong: str = ""
    text: str = ""
    small: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A section of a page, in the order in which its parts stand.

    Args:
        id: on the page.
        title: its heading.
        paragraphs: of plain text, or of `markupsafe.Markup`.
        folded: what is said of the rest, which is shown on a click; empty: all is shown.
        pictures: a gallery, with a heading for each.
        table: with its note.
        figures: drawn ones.
        items: of a list.
        code: in a fixed font.
        note: in small print, at the end.
    """

    id: str
    title: str
    paragraphs: Sequence[str] = ()
    folded: str = ""
    pictures: Sequence[tuple[str, str, Sequence[Picture]]] = ()
    table: ReportTable | None = None
    figures: Sequence[Figure] = ()
    items: Sequence[str] = ()
    code: str = ""
    note: str = ""


def findings_section(found: Sequence[Finding]) -> Section | None:
    """A sentence per finding, folded; None without findings."""
    folded = "In full, with attacks and intervals"
    return Section("findings", "Every group and view", folded=folded, items=[*map(sentence, found)]) if found else None


_ENVIRONMENT = Environment(
    loader=PackageLoader("shoal.reports", "templates"), autoescape=True, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
)  # fmt: skip
"""Of all pages: it compiles a template once."""


def section_of(id: str, table: ReportTable | None, **parts: Any) -> Section | None:  # noqa: A002, ANN401
    """The section of a table, under its title; None without a table."""
    return None if table is None else Section(id, table.title, table=table, **parts)


def render(
    template: str,
    title: str,
    lead: Sequence[tuple[str, str]],
    key_metrics: Sequence[tuple[str, str, str]],
    sections: Sequence[Section | None],
    **values: object,
) -> str:
    """A page; text in it is escaped.

    Args:
        template: a file that extends `page.html.j2`.
        title: of the page.
        lead: paragraphs before everything else, each with its class of style.css.
        key_metrics: name, value and remark of each.
        sections: in order; None is left out.
        values: what the template needs beside these; ``answers``, on the first screen.
    """
    shown = [section for section in sections if section is not None]
    page = {"title": title, "lead": lead, "key_metrics": key_metrics, "sections": shown}
    return _ENVIRONMENT.get_template(template).render({"answers": (), **page, **values})
