"""What a sweep's runs show: its tables, its figures and its page, as files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from shoal.core.atomic_files import remove_unfinished, write_bytes, write_text
from shoal.core.errors import InputError
from shoal.reports.sweep.figures import draw
from shoal.reports.sweep.labels import Words
from shoal.reports.sweep.page import Missing, sweep_page
from shoal.reports.sweep.seed_statistics import Outcomes, figures_in
from shoal.reports.sweep.spec import Axes, Shown
from shoal.reports.sweep.table_formats import latex, markdown, table_csv
from shoal.reports.sweep.tables import sweep_table

Courses = Callable[[str], pd.DataFrame]
"""A run's rows by round and cluster, as in its rounds.csv."""

USUAL = ("accuracy.overall", "violations.total", "seconds.total")
"""What the page shows of each run beside what the tables and figures ask for."""


def show(
    out: Path,
    *,
    title: str,
    shown: Shown,
    axes: Axes,
    seeds: Sequence[int],
    results: pd.DataFrame,
    missing: Missing,
    courses: Courses,
    source: str,
) -> Path:
    """Write ``out``/tables, ``out``/figures and ``out``/report.html, and return the path of the page.

    Each file is whole or absent. Files of tables and figures that the sweep does not ask for, or that no run supports
    yet, are removed.

    Args:
        out: the sweep's directory.
        title: of the page.
        shown: the tables and figures that the sweep's file asks for.
        axes: what it varies.
        seeds: of the sweep.
        results: a row a finished run: ``run``, ``seed``, a column an axis and a column a figure.
        missing: the settings and the seed of each run that is not finished, and why.
        courses: gives the courses of a run over its rounds.
        source: the text of the sweep's file.

    Raises:
        InputError: a table or figure shows what no run has. Nothing is written then.
    """
    words = Words(shown.labels)
    known = figures_in(results, ("run", "seed", *axes))
    tables, pictures = [], []
    if len(results):
        outcomes = Outcomes(results, axes, seeds)
        for name, table in shown.tables.items():
            with _told_of(f"tables.{name}"):
                tables.append(sweep_table(name, table, outcomes, words))
        for name, figure in shown.figures.items():
            with _told_of(f"figures.{name}"):
                pictures.append(draw(name, figure, outcomes, words, courses))
    asked = [key for each in (*shown.tables.values(), *shown.figures.values()) for key in each.y]
    page = sweep_page(
        title, axes=axes, seeds=seeds, results=results, missing=missing, source=source, words=words, tables=tables,
        pictures=pictures, keys=[key for key in dict.fromkeys((*USUAL, *asked)) if key in known],
    )  # fmt: skip
    written = {}
    for table in tables:
        written |= {f"{table.name}.md": markdown(table).encode(), f"{table.name}.csv": table_csv(table).encode()}
        written |= {f"{table.name}.tex": latex(table).encode()}
    _replace(out / "tables", written, (".md", ".csv", ".tex"))
    drawn = {f"{each.name}.svg": each.svg for each in pictures} | {f"{each.name}.pdf": each.pdf for each in pictures}
    _replace(out / "figures", drawn, (".svg", ".pdf"))
    path = out / "report.html"
    write_text(path, page)
    return path


@contextmanager
def _told_of(name: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _replace(folder: Path, files: Mapping[str, bytes], endings: Sequence[str]) -> None:
    """Let ``folder`` hold ``files`` and no others with these ``endings``."""
    if files:
        folder.mkdir(exist_ok=True)
    if not folder.is_dir():
        return
    remove_unfinished(folder)
    for name, content in files.items():
        write_bytes(folder / name, content)
    for path in sorted(folder.iterdir()):
        if path.suffix in endings and path.name not in files and path.is_file():
            path.unlink()
