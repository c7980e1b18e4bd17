"""A sweep's table as a file: Markdown to read, LaTeX to print, CSV to compute with."""

import csv
import io
import re
from collections.abc import Sequence
from math import isnan

from shoal.reports.sweep.tables import Cell, SweepTable

_MARKDOWN = str.maketrans({each: f"\\{each}" for each in "\\`*_[]<>|#~$&"})

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        # These three print something else in TeX's first font encoding.
        "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
        # After the end of a row these would be read as its arguments.
        "[": "{[}", "]": "{]}", "*": "{*}",
        # Two hyphens would be printed as a dash; `escape` parts them.
        "\N{ZERO WIDTH SPACE}": "{}",
        "\N{EN DASH}": "--", "\N{EM DASH}": "---", "\N{PLUS-MINUS SIGN}": r"$\pm$", "\N{MINUS SIGN}": "$-$",
        "\N{MULTIPLICATION SIGN}": r"$\times$", "\N{LESS-THAN OR EQUAL TO}": r"$\leq$",
        "\N{GREATER-THAN OR EQUAL TO}": r"$\geq$", "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
        "\N{DEGREE SIGN}": r"$^{\circ}$", "\N{NO-BREAK SPACE}": "~", "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$", "\N{GREEK SMALL LETTER BETA}": r"$\beta$",
        "\N{GREEK SMALL LETTER EPSILON}": r"$\epsilon$",
    }
)  # fmt: skip


def markdown(table: SweepTable) -> str:
    """A pipe table with its title and notes; the best cells are bold."""
    over = f"Columns: {table.over}." if table.over else ""
    heads = [_plain(head) for head in (*table.stubs, *table.heads)]
    rule = ["---"] * len(table.stubs) + ["---:"] * len(table.heads)
    lines = [
        [
            *map(_plain, line.heads),
            *(f"**{_plain(cell.text)}**" if cell.best else _plain(cell.text) for cell in line.cells),
        ]
        for line in table.lines
    ]
    below = [_plain(each) for each in (table.caption, over, table.note) if each]
    rows = "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *lines))
    return "\n\n".join([f"**{_plain(table.title)}**", rows, *below]) + "\n"


def _plain(text: str) -> str:
    """``text`` in one line, without meaning to Markdown."""
    return " ".join(text.split()).translate(_MARKDOWN)


def table_csv(table: SweepTable) -> str:
    """A row a cell: the settings, the figure's key, its mean and spread in full, and n. What is undefined is empty.

    The spread's column is called ``sd`` or ``ci``, the half width of the interval.
    """
    cells = [cell for line in table.lines for cell in line.cells]
    axes = list(cells[0].settings)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*axes, "key", "mean", table.spread, "n"])
    for cell in cells:
        values = ["" if isnan(value) else repr(value) for value in (cell.found.mean, cell.found.spread)]
        writer.writerow([*(cell.settings[axis] for axis in axes), cell.key, *values, cell.found.n])
    return buffer.getvalue()


def latex(table: SweepTable) -> str:
    r"""A table environment to ``\input``; the document needs the package booktabs. Its label is ``tab:NAME``."""
    heads = [escape(head) for head in (*table.stubs, *table.heads)]
    above = [(), *(line.heads for line in table.lines)]
    rows = [
        [*map(escape, _news(line.heads, last)), *map(_cell, line.cells)]
        for line, last in zip(table.lines, above, strict=False)
    ]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{escape(_caption(table))}}}",
            rf"  \label{{tab:{table.name}}}",
            rf"  \begin{{tabular}}{{{'l' * len(table.stubs)}{'r' * len(table.heads)}}}",
            r"    \toprule",
            *_over(table),
            _row(heads),
            r"    \midrule",
            *map(_row, rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _news(heads: Sequence[str], above: Sequence[str]) -> list[str]:
    """A line's ``heads``, empty as far as they repeat those of the line above."""
    return ["" if heads[: i + 1] == above[: i + 1] else head for i, head in enumerate(heads)]


def _over(table: SweepTable) -> list[str]:
    """What the heads are settings of, over a rule of its own."""
    if not table.over:
        return []
    first = len(table.stubs) + 1
    wide = rf"\multicolumn{{{len(table.heads)}}}{{c}}{{{escape(table.over)}}}"
    rule = rf"    \cmidrule(lr){{{first}-{len(table.stubs) + len(table.heads)}}}"
    return [_row([*[""] * len(table.stubs), wide]), rule]


def _row(parts: list[str]) -> str:
    return rf"    {' & '.join(parts)} \\"


def _cell(cell: Cell) -> str:
    told = escape(cell.text)
    return rf"\textbf{{{told}}}" if cell.best else told


def _caption(table: SweepTable) -> str:
    """Title, caption and note, each a sentence or more."""
    parts = [part.strip() for part in (table.title, table.caption, table.note)]
    return " ".join(part if part[-1] in ".!?" else f"{part}." for part in parts if part)


def escape(text: str) -> str:
    r"""``text`` in one line, to be printed by LaTeX as it stands.

    >>> escape("50 % of_all ± 1")
    '50 \\% of\\_all $\\pm$ 1'
    """
    return re.sub("-(?=-)", "-\N{ZERO WIDTH SPACE}", " ".join(text.split())).translate(_LATEX)
