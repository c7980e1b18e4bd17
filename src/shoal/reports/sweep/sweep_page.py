"""The report of a sweep: a page, with tables and figures as files."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pandas as pd
from markupsafe import Markup

from shoal.core.atomic_files import remove_unfinished, write_bytes, write_text
from shoal.core.formats import DASH, capitalize
from shoal.reports.page import Section, render, section_of
from shoal.reports.plotting import Figure
from shoal.reports.sweep.report_spec import (
    Axes,
    Labels,
    ReportSpec,
    Value,
    format_value,
    groups_in,
    metric_at,
    require_shown,
)
from shoal.reports.sweep.seed_statistics import SeedStatistics, metrics_in
from shoal.reports.sweep.sweep_charts import FigureData, sweep_figure
from shoal.reports.sweep.sweep_tables import (
    Settings,
    default_figure,
    settings_table,
    sweep_headlines,
    sweep_table,
)
from shoal.reports.table import Cell, ReportTable, TableRow, heads, markdown, row, table_csv

Missing = Sequence[tuple[Mapping[str, Value], str]]
"""The settings and seed of each unfinished run, with the reason."""


def write_sweep_report(
    out: Path,
    *,
    title: str,
    spec: ReportSpec,
    axes: Axes,
    seeds: Sequence[int],
    results: pd.DataFrame,
    missing: Missing,
    source: str,
) -> Path:
    """Write tables, figures and report.html of a sweep into its directory, and return the path of the page.

    Files are written atomically. Files of tables and figures that the sweep no longer requests are removed.

    Raises:
        InputError: no run can have a requested metric. The error leaves all files unchanged.
    """
    labels, statistics = Labels(spec.labels), SeedStatistics(results, axes, seeds)
    tables, figures = [], []
    if len(results):
        columns = set(map(str, results)) - {"run", "seed", *axes}
        require_shown(spec, groups_in(columns), columns)
        spec = replace(spec, figures=spec.figures or default_figure(Settings.of(statistics, spec, labels)))
        tables = [sweep_table(name, wanted, statistics, labels) for name, wanted in spec.tables.items()]
        data = {name: FigureData(wanted, statistics, labels) for name, wanted in spec.figures.items()}
        figures = [sweep_figure(name, figure) for name, figure in data.items()]
    page = sweep_page(title, spec, statistics, tables, figures, missing=missing, source=source)
    formats = {".md": markdown, ".csv": table_csv}
    texts = {table.name + ending: form(table).encode() for table in tables for ending, form in formats.items()}
    _replace(out / "tables", texts, formats)
    drawn = {f"{figure.name}.{form}": getattr(figure, form) for figure in figures for form in ("svg", "pdf")}
    _replace(out / "figures", drawn, (".svg", ".pdf"))
    path = out / "report.html"
    write_text(path, page)
    return path


def _replace(folder: Path, files: Mapping[str, bytes], endings: Collection[str]) -> None:
    """Write ``files`` into ``folder``, and remove other files with these ``endings``."""
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
    tables: Sequence[ReportTable],
    figures: Sequence[Figure],
    *,
    missing: Missing,
    source: str,
) -> str:
    """Render the page as HTML, with links to results.csv and the folders ``tables/``, ``figures/`` and ``runs/``."""
    labels, results = Labels(spec.labels), statistics.results
    lead = [("", _summary(statistics, len(missing), labels))]
    if results.empty:
        lead.append(("", "No run is finished, so there are no tables and figures yet."))
    settings = None if results.empty else Settings.of(statistics, spec, labels)
    shown = [replace(figure, files=_links("figures", figure.name, ("svg", "pdf"))) for figure in figures]
    sections = (
        *(section_of(f"settings-{i}", settings_table(s)) for i, s in enumerate(settings.by_axis if settings else ())),
        _missing(missing, statistics.axes, labels) if missing else None,
        *(
            Section(
                f"table-{table.name}",
                table.title,
                table=table,
                note=_links("tables", table.name, ("md", "csv")),
            )
            for table in tables
        ),
        Section("figures", "Figures", figures=shown) if figures else None,
        None if results.empty else _runs(spec, statistics, labels),
        Section("file", "Sweep", folded="The sweep's file", code=source),
    )
    found = () if settings is None else sweep_headlines(settings)
    return render("page.html.j2", title or "Sweep", lead, (), sections, style="sweep", answers=found)


def _links(folder: str, name: str, endings: Sequence[str]) -> str:
    link = Markup('<a href="{}/{}.{}">{}.{}</a>')
    return Markup(" ").join(link.format(folder, quote(name), ending, name, ending) for ending in endings)


def _missing(missing: Missing, axes: Axes, labels: Labels) -> Section:
    rows = [
        row(*(labels.setting(settings[axis]) if axis in settings else DASH for axis in (*axes, "seed")), reason)
        for settings, reason in missing
    ]
    paragraph = "Tables and figures omit these runs; values over fewer seeds give the number of seeds, n."
    table = ReportTable(heads([*map(labels.axis, axes), "seed", "why"]), tuple(rows), stubs=0)
    return Section("missing", "Missing runs", [paragraph], table=table)


def _runs(spec: ReportSpec, statistics: SeedStatistics, labels: Labels) -> Section:
    """Create the section of finished runs, with the metrics of the tables and figures."""
    results, named = statistics.results, [*statistics.axes, "seed"]
    wanted = [
        "accuracy.overall",
        "exceeded.total",
        "violations.total",
        "seconds.total",
        *(key for shown in (*spec.tables.values(), *spec.figures.values()) for key in shown.y),
    ]
    measured = metrics_in(results, ("run", *named))
    keys = [key for key in dict.fromkeys(wanted) if key in measured]
    columns = [results[name].map(labels.setting) for name in named] + [_values(results[key], key) for key in keys]
    rows = (
        TableRow((Cell(str(run), link=f"runs/{quote(str(run))}/report.html"), *map(Cell, cells)))
        for run, *cells in zip(results["run"], *columns, strict=True)
    )
    words = ["run", *map(labels.axis, statistics.axes), "seed"]
    number = f"{len(results)} {'run' if len(results) == 1 else 'runs'}, each with its own page"
    all_metrics = Markup('<a href="results.csv">results.csv</a> has every metric of every run.')
    table = ReportTable(heads(words, map(labels.key, keys)), tuple(rows))
    return Section("runs", "All finished runs", [all_metrics], number, table=table)


def _summary(statistics: SeedStatistics, missing: int, labels: Labels) -> str:
    axes, seeds, finished = statistics.axes, statistics.seeds, len(statistics.results)
    varied = [f"{labels.axis(axis)} ({', '.join(map(labels.setting, axes[axis]))})" for axis in axes]
    runs = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds ({', '.join(map(str, seeds))})"
    if missing:
        done = f"{finished} of {finished + missing} runs {'is' if finished == 1 else 'are'} finished"
    else:
        done = "The one run is finished" if finished == 1 else f"All {finished} runs are finished"
    return f"{capitalize(', with '.join(filter(None, [' by '.join(varied), runs])))}. {done}."


def _values(values: pd.Series, key: str) -> list[str]:
    """Format a metric of each run; counts are integers, since they are not means."""
    whole = metric_at(key).format in ("count", "seconds") and bool((values.dropna() % 1 == 0).all())
    return [format_value(value, key, decimals=0 if whole else None) for value in values]
