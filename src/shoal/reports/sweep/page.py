"""The page of a sweep: what was run, what is missing, tables, figures, and links to the runs' own reports."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shoal.reports.formats import DASH
from shoal.reports.html import render
from shoal.reports.sweep.figures import SweepFigure
from shoal.reports.sweep.labels import Labels, capitalised, decimals_of, format_value
from shoal.reports.sweep.seed_statistics import SeedStatistics, metrics_in
from shoal.reports.sweep.spec import ReportSpec, Value
from shoal.reports.sweep.tables import SweepTable

Missing = Sequence[tuple[Mapping[str, Value], str]]
"""Runs that are not finished: their settings and seed, and why."""

USUAL = ("accuracy.overall", "violations.total", "seconds.total")
"""Metrics of each run on the page, beside those of the tables and figures."""


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
    """The page, in HTML. Its links lead to files beside it: ``tables/``, ``figures/``, ``runs/``, results.csv.

    Tables and figures are in the order of the page; ``source`` is the text of the sweep's file.
    """
    results, labels, named = statistics.results, Labels(spec.labels), [*statistics.axes, "seed"]
    wanted = [*USUAL, *(key for each in (*spec.tables.values(), *spec.figures.values()) for key in each.y)]
    known = metrics_in(results, ("run", *named))
    keys = [key for key in dict.fromkeys(wanted) if key in known]
    columns = [results[name].map(labels.setting) for name in named if len(results)]
    columns += [_values(results[key], key) for key in keys]
    page = {
        "title": title or "Sweep",
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
    """What was run, in one line."""
    axes, seeds, finished = statistics.axes, statistics.seeds, len(statistics.results)
    varied = [f"{labels.axis(axis)} ({', '.join(map(labels.setting, axes[axis]))})" for axis in axes]
    runs = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds ({', '.join(map(str, seeds))})"
    if missing:
        done = f"{finished} of {finished + missing} runs {'is' if finished == 1 else 'are'} finished"
    else:
        done = "The one run is finished" if finished == 1 else f"All {finished} runs are finished"
    return f"{capitalised(', with '.join(filter(None, [' by '.join(varied), runs])))}. {done}."


def _values(values: pd.Series, key: str) -> list[str]:
    """A metric of each run; counts are whole numbers here, as they are no means."""
    whole = decimals_of(key) == 1 and bool((values.dropna() % 1 == 0).all())
    return [format_value(value, key, decimals=0 if whole else None) for value in values]
