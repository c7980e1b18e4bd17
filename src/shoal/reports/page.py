"""Self-contained HTML pages with introductory paragraphs, key metrics and sections."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from shoal.audit.finding import BY, CERTAIN, Finding, most_exposed
from shoal.core.formats import decimal
from shoal.reports.plotting import Figure
from shoal.reports.table import Cell, Column, ReportTable, heads, row, without_dashes


@dataclass(frozen=True)
class Picture:
    """An image with texts beside it.

    Args:
        alt: a description of the image.
        strong, text, small: bold, plain and small texts beside the image.
    """

    source: str
    alt: str = ""
    strong: str = ""
    text: str = ""
    small: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Args:
        paragraphs: the paragraphs, as plain text or `markupsafe.Markup`.
        folded: the remark beside the title of a folded section, or an empty string if the section is not folded.
        pictures: the galleries of images, as triples of heading, text and images.
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


MOST_FINDINGS = 30
"""The largest number of rows in the table of findings."""


def findings_section(found: Sequence[Finding], figure: Figure | None = None) -> Section | None:
    """Create the section of findings, the most exposed group first, or return ``None`` without findings."""
    rows = [
        row(
            Cell(f"{'all records' if one.group == 'all' else one.group} to {BY.get(one.view, one.view)}", one.verdict),
            Cell(one.accuracy.text, one.accuracy.interval),
            Cell(one.head, _at_few_mistakes(one)),
            style="over" if one.verdict in CERTAIN else "",
        )
        for one in most_exposed(found)[:MOST_FINDINGS]
    ]
    columns = (*heads(["whose records"]), Column("attack accuracy", "chance: 0.5"), *heads(["by"]))
    table = ReportTable(
        columns, tuple(rows), note="Below each accuracy: its 95 % interval; all intervals hold at once."
    )
    figures = [] if figure is None else [figure]
    return Section("findings", "Who can recognise records", table=table, figures=figures) if rows else None


def _at_few_mistakes(finding: Finding) -> str:
    """Describe an attack's true positive rate with few mistakes, if measured."""
    exact = "" if not finding.exact else f"certain of {decimal(finding.exact)} of its predicted members"
    tpr = finding.tpr[0.01]
    return exact or (f"TPR at 1 % FPR: {tpr.figure}" if tpr.known else "")


_ENVIRONMENT = Environment(
    loader=PackageLoader("shoal.reports", "templates"), autoescape=True, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
)  # fmt: skip
"""Shared by all pages, so that each template is compiled once."""


def section_of(id: str, table: ReportTable | None, **parts: Any) -> Section | None:  # noqa: A002, ANN401
    """Create a section with a table, without empty rows and columns, or return ``None`` if the table is missing."""
    return None if table is None else Section(id, table.title, table=without_dashes(table), **parts)


def render(
    template: str,
    title: str,
    lead: Sequence[tuple[str, str]],
    key_metrics: Sequence[tuple[str, str, str]],
    sections: Sequence[Section | None],
    **values: object,
) -> str:
    """Render a page as HTML; plain text is escaped.

    Args:
        template: the name of a template file that extends `page.html.j2`.
        lead: the introductory paragraphs, as pairs of a class in style.css and a text.
        key_metrics: the page's key metrics, as triples of name, value and remark.
        sections: the sections in the order of the page; ``None`` is skipped.
        values: the template's further variables, such as ``answers``.
    """
    shown = [section for section in sections if section is not None]
    page = {"title": title, "lead": lead, "key_metrics": key_metrics, "sections": shown}
    return _ENVIRONMENT.get_template(template).render({"answers": (), **page, **values})
