"""A sweep's report: tables and figures as files, and a page of them, of what was run and of what is missing."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pandas as pd

from shoal.core.atomic_files import remove_unfinished, write_bytes, write_text
from shoal.core.formats import DASH, capitalized
from shoal.reports.html import render
from shoal.reports.sweep.answer import answer, reading
from shoal.reports.sweep.labels import Labels
from shoal.reports.sweep.report_spec import Axes, ReportSpec, Value, said_of
from shoal.reports.sweep.seed_statistics import SeedStatistics, metrics_in
from shoal.reports.sweep.sweep_curves import ReadRounds
from shoal.reports.sweep.sweep_figures import SweepFigure, draw_figure
from shoal.reports.sweep.sweep_metrics import format_value, metric_at
from shoal.reports.sweep.sweep_tables import SweepTable, sweep_table
from shoal.reports.sweep.table_formats import latex, markdown, table_csv

Missing = Sequence[tuple[Mapping[str, Value], str]]
"""Runs that are not finished: their settings and seed, and why."""

USUAL = ("accuracy.overall", "exceeded.total", "violations.total", "seconds.total")
"""Metrics of each run on the page, beside those of the tables and figures."""


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
    """Write tables, figures and report.html of a sweep into its directory; returns the path of the page.

    ``results`` are those of `SeedStatistics`, and ``source`` is the text of the sweep's file. Each file is whole or
    absent. Files of tables and figures that are no longer in ``spec``, or that no run supports yet, are removed.

    Raises:
        InputError: no run can have a metric of a table or figure. Nothing is written then.
    """
    labels, statistics = Labels(spec.labels), SeedStatistics(results, axes, seeds)
    tables, figures = [], []
    if len(results):
        for name, table in spec.tables.items():
            with said_of(f"tables.{name}"):
                tables.append(sweep_table(name, table, statistics, labels))
        for name, figure in spec.figures.items():
            with said_of(f"figures.{name}"):
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


def sweep_page(
    title: str,
    spec: ReportSpec,
    statistics: SeedStatistics,
    tables: Sequence[SweepTable],
    figures: Sequence[SweepFigure],
    *,
    missing: Missing,
    source: str,
) -> str:
    """The page, in HTML. Its links lead to files beside it: ``tables/``, ``figures/``, ``runs/``, results.csv."""
    results, labels, named = statistics.results, Labels(spec.labels), [*statistics.axes, "seed"]
    wanted = [*USUAL, *(key for each in (*spec.tables.values(), *spec.figures.values()) for key in each.y)]
    known = metrics_in(results, ("run", *named))
    keys = [key for key in dict.fromkeys(wanted) if key in known]
    columns = [results[name].map(labels.setting) for name in named if len(results)]
    columns += [_values(results[key], key) for key in keys]
    page = {
        "title": title or "Sweep",
        "answer": [capitalized(each) for each in answer(statistics, spec, labels)],
        "reading": reading(statistics, labels),
        "summary": _summary(statistics, len(missing), labels),
        "missing": [
            ([labels.setting(settings[axis]) if axis in settings else DASH for axis in named], reason)
            for settings, reason in missing
        ],
        "axes": [labels.axis(axis) for axis in statistics.axes],
        "tables": tables,
        "figures": figures,
        "keys": [labels.key(key) for key in keys],
        "runs": [(str(run), cells) for run, *cells in zip(results.get("run", ()), *columns, strict=True)],
        "source": source,
    }
    return render("sweep.html.j2", page)


def _summary(statistics: SeedStatistics, missing: int, labels: Labels) -> str:
    axes, seeds, finished = statistics.axes, statistics.seeds, len(statistics.results)
    varied = [f"{labels.axis(axis)} ({', '.join(map(labels.setting, axes[axis]))})" for axis in axes]
    runs = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds ({', '.join(map(str, seeds))})"
    if missing:
        done = f"{finished} of {finished + missing} runs {'is' if finished == 1 else 'are'} finished"
    else:
        done = "The one run is finished" if finished == 1 else f"All {finished} runs are finished"
    return f"{capitalized(', with '.join(filter(None, [' by '.join(varied), runs])))}. {done}."


def _values(values: pd.Series, key: str) -> list[str]:
    """A metric of each run; counts are whole numbers here, as they are no means."""
    whole = metric_at(key).format in ("count", "seconds") and bool((values.dropna() % 1 == 0).all())
    return [format_value(value, key, decimals=0 if whole else None) for value in values]
