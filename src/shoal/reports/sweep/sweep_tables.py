"""A sweep's tables: each cell is a metric's mean and spread over seeds."""

import re
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shoal.core.formats import capitalized
from shoal.reports.sweep.answer import about_views
from shoal.reports.sweep.report_spec import TableSpec
from shoal.reports.sweep.seed_statistics import SeedStatistics, estimate
from shoal.reports.sweep.sweep_metrics import SPREADS, Labels, format_estimate, format_value, reason
from shoal.reports.table import Cell, ReportTable, TableRow, heads

OF_A_VIEW = re.compile(r"(.*\.)?(mia|tpr_at_fpr|exposure|exceeded|violations)")
"""Keys of metrics that are of a view."""


def sweep_table(name: str, spec: TableSpec, statistics: SeedStatistics, labels: Labels) -> ReportTable:
    """The table that ``spec`` describes.

    Its stubs say what a row is about, and are faded where they and all to their left repeat the row above; the strong
    cells are the best of those that differ by the columns' axes only. Its ``values`` have a row per cell, in reading
    order: the settings, ``key``, ``mean``, ``sd`` or ``ci``, and ``n``.
    """
    # A single metric needs no row or column of its own.
    key_in_rows = spec.y_in == "rows" and len(spec.y) > 1
    values, width = _values(spec, statistics, key_in_rows=key_in_rows)
    rows, columns = values.iloc[::width], values.iloc[:width]

    def words(cells: pd.DataFrame, axes: list[str]) -> list[list[str]]:
        return [list(map(labels.setting, cell)) for cell in cells[axes].itertuples(index=False)]

    stubs, names = words(rows, spec.rows), [", ".join(settings) for settings in words(columns, spec.columns)]
    if key_in_rows:
        stubs = [[*stub, labels.key(key)] for stub, key in zip(stubs, rows["key"], strict=True)]
    elif len(spec.y) > 1 or not spec.columns:
        keys = map(labels.key, columns["key"])
        names = [": ".join(filter(None, pair)) for pair in zip(names, keys, strict=True)]
    estimates = values[["mean", spec.spread, "n", "key"]].itertuples(index=False)
    texts = [format_estimate(*result, seeds=len(statistics.seeds)) for result in estimates]
    cells = np.array([Cell(text, strong=best) for text, best in zip(texts, _best(values, spec), strict=True)])
    above = [None, *stubs[:-1]]
    stub_cells = [
        [Cell(stub[i], faded=over is not None and stub[: i + 1] == over[: i + 1]) for i in range(len(stub))]
        for over, stub in zip(above, stubs, strict=True)
    ]
    named = all(isinstance(value, str) for axis in spec.columns for value in statistics.axes[axis])
    stub_heads = [*map(labels.axis, spec.rows), *["metric"] * key_in_rows]
    return ReportTable(
        columns=heads(stub_heads, (name or "value" for name in names)),
        rows=tuple(TableRow((*stub, *row)) for stub, row in zip(stub_cells, cells.reshape(-1, width), strict=True)),
        title=spec.title or capitalized("; ".join(map(labels.key, spec.y))),
        caption=spec.caption,
        note=_note(spec, statistics, labels),
        name=name,
        over="" if named else ", ".join(map(labels.axis, spec.columns)),
        stubs=len(stub_heads),
        values=values,
    )


def _values(spec: TableSpec, statistics: SeedStatistics, *, key_in_rows: bool) -> tuple[pd.DataFrame, int]:
    """`ReportTable.values`, and how many cells a row of the table has."""
    axes, by = statistics.axes, spec.displayed
    result = estimate(statistics.metrics_by_seed(spec), spec.spread)
    values = pd.DataFrame([*product(*(axes[axis] for axis in by), spec.y)], columns=[*by, "key"], dtype=object)
    values = values.assign(**spec.where)[[*by, *spec.where, "key"]]
    values = values.assign(**{"mean": result.mean.ravel(), spec.spread: result.spread.ravel(), "n": result.n.ravel()})
    columns, keys = int(np.prod([len(axes[axis]) for axis in spec.columns])), len(spec.y)
    if not key_in_rows:
        return values, columns * keys
    return values.iloc[np.arange(len(values)).reshape(-1, columns, keys).transpose(0, 2, 1).ravel()], columns


def _best(values: pd.DataFrame, spec: TableSpec) -> NDArray[np.bool_]:
    """(cells,) whether a cell is the best of several of its row and metric; those that read the same are all best."""
    if spec.best is None:
        return np.zeros(len(values), dtype=bool)
    means = values.groupby([*spec.rows, "key"], sort=False)["mean"]
    best = means.transform("max" if spec.best == "highest" else "min").where(means.transform("count") > 1)
    texts = [
        [format_value(*pair) for pair in zip(means, values["key"], strict=True)] for means in (values["mean"], best)
    ]
    return np.equal(*map(np.array, texts)) & best.notna().to_numpy() & values["mean"].notna().to_numpy()


def _note(spec: TableSpec, statistics: SeedStatistics, labels: Labels) -> str:
    metric = f"{labels.key(spec.y[0])}: " if len(spec.y) == 1 and spec.title and spec.columns else ""
    seeds = len(statistics.seeds)
    many = f"mean ± {SPREADS[spec.spread]} over {seeds} seeds, or over n where that is given."
    sentences = [metric + ("one seed." if seeds == 1 else many), *labels.selection(spec, statistics.axes)]
    if any(OF_A_VIEW.match(key) for key in spec.y) and about_views(statistics):
        sentences.append(about_views(statistics))
    if spec.best and spec.columns:
        axes = " and ".join(map(labels.axis, spec.columns))
        sentences.append(f"Bold: the {spec.best} of those that differ by {axes} only.")
    for key, lacking in zip(spec.y, statistics.undefined(spec).sum(axis=0).tolist(), strict=True):
        if lacking:
            runs = "all runs" if lacking == (statistics.rows(spec) >= 0).sum() else f"{lacking} of its runs"
            sentences.append(f"{capitalized(labels.key(key))}: {reason(key)} in {runs}.")
    return capitalized(" ".join(sentences))
