"""A sweep's table as a file: Markdown to read, LaTeX to print, CSV to compute with."""

import re
from collections.abc import Callable

import pandas as pd

from shoal.reports.sweep.sweep_tables import SweepTable

_MARKDOWN = str.maketrans({each: f"\\{each}" for each in "\\`*_[]<>|#~$&"})

_GREEK = "alpha beta gamma delta epsilon eta theta lambda mu pi rho sigma tau phi omega"
_LATEX = str.maketrans(
    {letter: rf"$\{name}$" for letter, name in zip("αβγδεηθλμπρστφω", _GREEK.split(), strict=True)}
    | {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        # In TeX's first font encoding these print other characters.
        "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
        # After the end of a row TeX would read these as its arguments.
        "[": "{[}", "]": "{]}", "*": "{*}",
        # Two hyphens would become a dash; `escape` puts this between them.
        "\N{ZERO WIDTH SPACE}": "{}",
        "\N{EN DASH}": "--", "—": "---", "±": r"$\pm$", "\N{MINUS SIGN}": "$-$", "\N{MULTIPLICATION SIGN}": r"$\times$",
        "≤": r"$\leq$", "≥": r"$\geq$", "…": r"\ldots{}", "°": r"$^{\circ}$",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    }
)  # fmt: skip


def markdown(table: SweepTable) -> str:
    """A pipe table with its title and notes; the best cells are bold."""
    grid = _grid(table, table.stubs, _plain, "**{}**")
    align = ["left"] * table.stubs.shape[1] + ["right"] * table.texts.shape[1]
    # The cells are texts already; tabulate must not read numbers in them.
    pipes = grid.to_markdown(index=False, colalign=align, disable_numparse=True)
    over = f"Columns: {table.over}." if table.over else ""
    notes = [_plain(each) for each in (table.caption, over, table.note) if each]
    return "\n\n".join([f"**{_plain(table.title)}**", pipes, *notes]) + "\n"


def latex(table: SweepTable) -> str:
    r"""A table environment to ``\input``; the document needs the package booktabs. Its label is ``tab:NAME``."""
    grid = _grid(table, table.stubs.where(~table.repeats, ""), escape, r"\textbf{{{}}}")
    stubs, heads = table.stubs.shape[1], table.texts.shape[1]
    if table.over:
        grid.columns = pd.MultiIndex.from_arrays([[""] * stubs + [escape(table.over)] * heads, grid.columns])
    parts = [part.strip() for part in (table.title, table.caption, table.note)]
    caption = " ".join(part if part[-1] in ".!?" else f"{part}." for part in parts if part)
    return grid.style.hide(axis="index").to_latex(
        column_format="l" * stubs + "r" * heads, position_float="centering", hrules=True, multicol_align="c",
        label=f"tab:{table.name}", caption=escape(caption),
    )  # fmt: skip


def table_csv(table: SweepTable) -> str:
    """One row per cell: the settings, the metric's key, its mean and spread in full, and n; undefined is empty."""
    return table.values.to_csv(index=False, lineterminator="\n")


def escape(text: str) -> str:
    r"""``text`` in one line, to be printed by LaTeX as it stands.

    >>> escape("50 % of_all ± 1")
    '50 \\% of\\_all $\\pm$ 1'
    """
    return re.sub("-(?=-)", "-\N{ZERO WIDTH SPACE}", " ".join(text.split())).translate(_LATEX)


def _plain(text: str) -> str:
    """``text`` in one line, without meaning to Markdown."""
    return " ".join(text.split()).translate(_MARKDOWN)


def _grid(table: SweepTable, stubs: pd.DataFrame, escaped: Callable[[str], str], bold: str) -> pd.DataFrame:
    """Stubs and cells in one frame, with their heads, ``escaped``; the best cells are formatted by ``bold``."""
    texts = table.texts.map(escaped)
    grid = pd.concat([stubs.map(escaped), texts.where(~table.best, texts.map(bold.format))], axis="columns")
    return grid.set_axis([escaped(str(head)) for head in grid.columns], axis="columns")
