"""The tables, figures and page of a sweep, as files."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from shoal.core.atomic_files import remove_unfinished, write_bytes, write_text
from shoal.core.errors import InputError
from shoal.reports.sweep.figures import draw_figure
from shoal.reports.sweep.labels import Labels
from shoal.reports.sweep.page import Missing, sweep_page
from shoal.reports.sweep.round_curves import ReadRounds
from shoal.reports.sweep.seed_statistics import SeedStatistics
from shoal.reports.sweep.spec import Axes, ReportSpec
from shoal.reports.sweep.table_formats import latex, markdown, table_csv
from shoal.reports.sweep.tables import sweep_table


def write_sweep_report(
    out: Path,
    *,
    title: str,
    spec: ReportSpec,
    axes: Axes,
    seeds: Sequence[int],
    results: pd.DataFrame,
    missing: Missing,
    read_rounds: ReadRounds,
    source: str,
) -> Path:
    """Write ``out``/tables, ``out``/figures and ``out``/report.html, and return the path of the page.

    Each file is whole or absent. Files of tables and figures that are no longer in ``spec``, or that no run supports
    yet, are removed.

    Args:
        out: the sweep's directory.
        title: of the page.
        spec: the tables and figures.
        axes: what the sweep varies.
        seeds: of each setting.
        results: one row per finished run: ``run``, one column per axis, ``seed``, and one column per metric.
        missing: the settings and the seed of each run that is not finished, and why.
        read_rounds: reads the rounds.csv of a run.
        source: the text of the sweep's file.

    Raises:
        InputError: no run has a metric of a table or figure. Nothing is written then.
    """
    labels, statistics = Labels(spec.labels), SeedStatistics(results, axes, seeds)
    tables, figures = [], []
    if len(results):
        for name, table in spec.tables.items():
            with _named(f"tables.{name}"):
                tables.append(sweep_table(name, table, statistics, labels))
        for name, figure in spec.figures.items():
            with _named(f"figures.{name}"):
                figures.append(draw_figure(name, figure, statistics, labels, read_rounds))
    page = sweep_page(title, spec, statistics, tables, figures, missing=missing, source=source)
    formats = {".md": markdown, ".csv": table_csv, ".tex": latex}
    texts = {each.name + ending: form(each).encode() for each in tables for ending, form in formats.items()}
    _replace(out / "tables", texts, formats)
    drawn = {f"{each.name}.svg": each.svg for each in figures} | {f"{each.name}.pdf": each.pdf for each in figures}
    _replace(out / "figures", drawn, (".svg", ".pdf"))
    path = out / "report.html"
    write_text(path, page)
    return path


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Begin the sentence of an `InputError` with ``name``."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _replace(folder: Path, files: Mapping[str, bytes], endings: Collection[str]) -> None:
    """Let ``folder`` hold ``files`` and no others with these ``endings``."""
    if files:
        folder.mkdir(exist_ok=True)
    if folder.is_dir():
        remove_unfinished(folder)
        for name, content in files.items():
            write_bytes(folder / name, content)
        for path in sorted(folder.iterdir()):
            if path.suffix in endings and path.name not in files and path.is_file():
                path.unlink()
