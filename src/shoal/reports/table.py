"""The table of all pages and files: built once, written as HTML by `page`, as Markdown, or as a frame."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pandas as pd

from shoal.core.formats import DASH, capitalize, csv_text
from shoal.metrics.metric_table import Metric

_MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>|#~$&"})


@dataclass(frozen=True)
class Cell:
    """A cell.

    Args:
        text: the cell's text.
        small: text below it, such as an interval or a meaning.
        sort: the number to sort its column by, as scripts write numbers; empty: undefined.
        strong, faded: whether it is bold, or soft since it repeats the cell above.
        link: the address of the page or file that it names.
    """

    text: str
    small: str = ""
    sort: str = ""
    strong: bool = False
    faded: bool = False
    link: str = ""


@dataclass(frozen=True)
class Column:
    """The head of a column, with smaller text below it, and whether it holds numbers."""

    head: str
    small: str = ""
    number: bool = True


@dataclass(frozen=True)
class TableRow:
    """Cells, of which the last may be missing; ``style`` is a class of style.css: strong, over, or of (a heading)."""

    cells: tuple[Cell, ...]
    style: str = ""


@dataclass(frozen=True, eq=False)
class ReportTable:
    """Rows under column heads.

    Args:
        columns, rows: the columns and rows, in the order shown.
        title, caption, note: the texts above the table, and the note below it.
        name: the name of the table's files.
        over: a heading above the heads of numbers, such as the name of their axis; empty: none.
        stubs: number of first columns that head their row.
        sorted_by: the index of the column that the rows are sorted by; others by a click. None: they stay as they are.
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
        """The texts of the cells under their heads."""
        heads = [column.head for column in self.columns]
        return pd.DataFrame([[written(cell) for cell in row.cells] for row in self.rows], columns=heads, dtype=object)


def without_dashes(table: ReportTable) -> ReportTable:
    """A table without the rows and columns in which nothing was measured; it is no longer sorted."""
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
    """A row of cells, some of which are only text."""
    return TableRow(tuple(Cell(cell) if isinstance(cell, str) else cell for cell in cells), style)


def heads(words: Iterable[str], numbers: Iterable[str] = ()) -> tuple[Column, ...]:
    """Columns of words, then columns of numbers."""
    return (*(Column(word, number=False) for word in words), *map(Column, numbers))


def metric_table(title: str, columns: Iterable[str], rows: Iterable[TableRow], note: str = "") -> ReportTable:
    """A table with a metric in each row; the first cell is its name, with its meaning below."""
    return ReportTable(heads(["metric"], columns), tuple(rows), title, note=note)


def metric_row(metric: Metric, *texts: str, remark: str = "", family: str = "") -> TableRow:
    """A metric's row: its name, without that of its ``family``, and its meaning with a ``remark``; then ``texts``."""
    return row(Cell(capitalize(metric.name.removeprefix(family)), metric.meaning + remark), *texts)


def markdown(table: ReportTable) -> str:
    """A pipe table with its title and notes; strong cells are bold."""
    grid = table.frame(lambda cell: f"**{_plain(cell.text)}**" if cell.strong else _plain(cell.text))
    grid.columns = [_plain(head) for head in grid.columns]
    align = ["right" if column.number else "left" for column in table.columns]
    # The cells are texts already; tabulate must not read numbers in them.
    pipes = grid.to_markdown(index=False, colalign=align, disable_numparse=True)
    over = f"Columns: {table.over}." if table.over else ""
    notes = [_plain(note) for note in (table.caption, over, table.note) if note]
    return "\n\n".join([f"**{_plain(table.title)}**", pipes, *notes]) + "\n"


def table_csv(table: ReportTable) -> str:
    """The values, a row per cell; what is undefined is empty."""
    return csv_text(pd.DataFrame(table.values))


def _plain(text: str) -> str:
    """``text`` in one line, without meaning to Markdown."""
    return " ".join(text.split()).translate(_MARKDOWN)
