"""Tables of pages and files, written as HTML, Markdown or CSV."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pandas as pd

from shoal.core.formats import DASH, capitalize, csv_text
from shoal.metrics.metric_table import Metric

_MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>|#~$&"})


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Args:
        small: small text below ``text``, such as an interval.
        sort: the sort key, a number as text, or an empty string if the number is undefined.
        faded: whether the text is pale, because it repeats the cell above.
    """

    text: str
    small: str = ""
    sort: str = ""
    strong: bool = False
    faded: bool = False
    link: str = ""


@dataclass(frozen=True)
class Column:
    """The head of a column."""

    head: str
    small: str = ""
    number: bool = True


@dataclass(frozen=True)
class TableRow:
    """A row of a table.

    Args:
        cells: the row's cells; trailing cells may be missing.
        style: the row's class in style.css: "strong", "over", or "of" for a heading.
    """

    cells: tuple[Cell, ...]
    style: str = ""


@dataclass(frozen=True, eq=False)
class ReportTable:
    """A table of a page, also written as files.

    Args:
        over: the heading above the columns of numbers, or an empty string without such a heading.
        stubs: the number of leading columns that label the row.
        sorted_by: the index of the sort column, or ``None`` if the table cannot be sorted.
        values: the numbers behind the cells, for a CSV file.
    """

    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    title: str = ""
    caption: str = ""
    note: str = ""
    name: str = ""
    over: str = ""
    stubs: int = 1
    sorted_by: int | None = None
    values: pd.DataFrame | None = None

    def frame(self, written: Callable[[Cell], str] = lambda cell: cell.text) -> pd.DataFrame:
        """Return the texts of the cells as a data frame."""
        heads = [column.head for column in self.columns]
        return pd.DataFrame([[written(cell) for cell in row.cells] for row in self.rows], columns=heads, dtype=object)


def without_dashes(table: ReportTable) -> ReportTable:
    """Return the table without empty rows and columns; the result cannot be sorted."""
    full = [row for row in table.rows if row.style != "of"]
    kept = [
        c < table.stubs or any(c < len(row.cells) and row.cells[c].text not in (DASH, "") for row in full)
        for c in range(len(table.columns))
    ]
    rows = [
        replace(row, cells=tuple(cell for cell, keep in zip(row.cells, kept, strict=False) if keep))
        for row in table.rows
        if row.style == "of" or any(cell.text != DASH for cell in row.cells[table.stubs :])
    ]
    columns = tuple(column for column, keep in zip(table.columns, kept, strict=True) if keep)
    return replace(table, columns=columns, rows=tuple(rows))


def row(*cells: str | Cell, style: str = "") -> TableRow:
    """Create a row from cells or texts."""
    return TableRow(tuple(Cell(cell) if isinstance(cell, str) else cell for cell in cells), style)


def heads(words: Iterable[str], numbers: Iterable[str] = ()) -> tuple[Column, ...]:
    """Create the heads of text columns and, after them, of number columns."""
    return (*(Column(word, number=False) for word in words), *map(Column, numbers))


def metric_table(title: str, columns: Iterable[str], rows: Iterable[TableRow], note: str = "") -> ReportTable:
    """Create a table with one metric per row; the first cell holds the metric's name and meaning."""
    return ReportTable(heads(["metric"], columns), tuple(rows), title, note=note)


def metric_row(metric: Metric, *texts: str, remark: str = "", family: str = "") -> TableRow:
    """Create the row of a metric."""
    return row(Cell(capitalize(metric.name.removeprefix(family)), metric.meaning + remark), *texts)


def markdown(table: ReportTable) -> str:
    """Write a table as Markdown, with its title and notes."""
    grid = table.frame(lambda cell: f"**{_plain(cell.text)}**" if cell.strong else _plain(cell.text))
    grid.columns = [_plain(head) for head in grid.columns]
    align = ["right" if column.number else "left" for column in table.columns]
    # The cells are texts already; tabulate must not read numbers in them.
    pipes = grid.to_markdown(index=False, colalign=align, disable_numparse=True)
    over = f"Columns: {table.over}." if table.over else ""
    notes = [_plain(note) for note in (table.caption, over, table.note) if note]
    return "\n\n".join([f"**{_plain(table.title)}**", pipes, *notes]) + "\n"


def table_csv(table: ReportTable) -> str:
    """Write the numbers behind a table as CSV, with one row per cell; undefined values are empty."""
    return csv_text(pd.DataFrame(table.values))


def _plain(text: str) -> str:
    """Put ``text`` in one line, and escape Markdown."""
    return " ".join(text.split()).translate(_MARKDOWN)
