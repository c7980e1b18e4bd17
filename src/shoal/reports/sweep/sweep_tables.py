"""A sweep's tables as data frames: each cell is a metric's mean and spread over seeds."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shoal.core.formats import capitalized
from shoal.reports.sweep.labels import SPREADS, Labels
from shoal.reports.sweep.report_spec import TableSpec
from shoal.reports.sweep.seed_statistics import SeedStatistics, estimate
from shoal.reports.sweep.sweep_metrics import format_estimate, format_value, reason


@dataclass(frozen=True, eq=False)
class SweepTable:
    """A table of a sweep.

    Args:
        name, title, caption: of its files, of itself, and in the sweep's file.
        note: what the cells are.
        over: names of the columns' axes, above their heads; empty where the heads are words and need none.
        stubs: (rows, stubs) what each row is about; the columns are the names of the rows' axes.
        texts: (rows, columns) the cells as people read them, under their heads.
        best: (rows, columns) whether a cell is the best of those that differ by the columns' axes only.
        values: one row per cell, in reading order: the settings, ``key``, ``mean``, ``sd`` or ``ci``, and ``n``.
    """

    name: str
    title: str
    caption: str
    note: str
    over: str
    stubs: pd.DataFrame
    texts: pd.DataFrame
    best: NDArray[np.bool_]
    values: pd.DataFrame

    @property
    def repeats(self) -> NDArray[np.bool_]:
        """(rows, stubs) whether a stub and all to its left are those of the row above."""
        stubs = self.stubs.to_numpy()
        same = np.logical_and.accumulate(stubs[1:] == stubs[:-1], axis=1)
        return np.concatenate([np.zeros_like(stubs[:1], dtype=bool), same])

    @property
    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The stubs, which of them repeat, the cells, and which of them are best, of each row."""
        return zip(self.stubs.to_numpy(), self.repeats, self.texts.to_numpy(), self.best, strict=True)


def sweep_table(name: str, spec: TableSpec, statistics: SeedStatistics, labels: Labels) -> SweepTable:
    """The table that ``spec`` describes; an `InputError` where no run can have one of its metrics."""
    # A single metric needs no row or column of its own.
    key_in_rows = spec.y_in == "rows" and len(spec.y) > 1
    values, width = _values(spec, statistics, key_in_rows=key_in_rows)
    rows, columns = values.iloc[::width], values.iloc[:width]

    def words(cells: pd.DataFrame, axes: list[str]) -> list[list[str]]:
        return [list(map(labels.setting, cell)) for cell in cells[axes].itertuples(index=False)]

    stubs, heads = words(rows, spec.rows), [", ".join(each) for each in words(columns, spec.columns)]
    if key_in_rows:
        stubs = [[*stub, labels.key(key)] for stub, key in zip(stubs, rows["key"], strict=True)]
    elif len(spec.y) > 1 or not spec.columns:
        keys = map(labels.key, columns["key"])
        heads = [": ".join(filter(None, pair)) for pair in zip(heads, keys, strict=True)]
    estimates = values[["mean", spec.spread, "n", "key"]].itertuples(index=False)
    texts = [format_estimate(*each, seeds=len(statistics.seeds)) for each in estimates]
    named = all(isinstance(value, str) for axis in spec.columns for value in statistics.axes[axis])
    return SweepTable(
        name=name,
        title=spec.title or capitalized("; ".join(map(labels.key, spec.y))),
        caption=spec.caption,
        note=_note(spec, statistics, labels),
        over="" if named else ", ".join(map(labels.axis, spec.columns)),
        stubs=pd.DataFrame(stubs, columns=[*map(labels.axis, spec.rows), *["metric"] * key_in_rows], dtype=object),
        texts=pd.DataFrame(np.reshape(texts, (-1, width)), columns=[head or "value" for head in heads]),
        best=_best(values, spec).reshape(-1, width),
        values=values,
    )


def _values(spec: TableSpec, statistics: SeedStatistics, *, key_in_rows: bool) -> tuple[pd.DataFrame, int]:
    """`SweepTable.values`, and how many cells a row of the table has."""
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
    texts = [[format_value(*pair) for pair in zip(each, values["key"], strict=True)] for each in (values["mean"], best)]
    return np.equal(*map(np.array, texts)) & best.notna().to_numpy() & values["mean"].notna().to_numpy()


def _note(spec: TableSpec, statistics: SeedStatistics, labels: Labels) -> str:
    metric = f"{labels.key(spec.y[0])}: " if len(spec.y) == 1 and spec.title and spec.columns else ""
    seeds = len(statistics.seeds)
    many = f"mean ± {SPREADS[spec.spread]} over {seeds} seeds, or over n where that is given."
    sentences = [metric + ("one seed." if seeds == 1 else many), *labels.selection(spec, statistics.axes)]
    if spec.best and spec.columns:
        axes = " and ".join(map(labels.axis, spec.columns))
        sentences.append(f"Bold: the {spec.best} of those that differ by {axes} only.")
    for key, lacking in zip(spec.y, statistics.undefined(spec).sum(axis=0).tolist(), strict=True):
        if lacking:
            runs = "all runs" if lacking == (statistics.rows(spec) >= 0).sum() else f"{lacking} of its runs"
            sentences.append(f"{capitalized(labels.key(key))}: {reason(key)} in {runs}.")
    return capitalized(" ".join(sentences))
