"""The answer and the tables of a sweep."""

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import nan
from typing import Any

import numpy as np
import pandas as pd

from shoal.audit.finding import BY, MOST_NAMES, VERDICTS, Estimate, Verdict
from shoal.core.formats import capitalize, join_words
from shoal.reports.charts import MOST_NAMED
from shoal.reports.exposure import Headline
from shoal.reports.sweep.report_spec import (
    FigureSpec,
    Labels,
    ReportSpec,
    TableSpec,
    Value,
    format_estimate,
    format_value,
    groups_in,
    metric_at,
    reason,
)
from shoal.reports.sweep.seed_statistics import (
    Best,
    Difference,
    SeedStatistics,
    SeedValues,
    called,
    estimate,
    metrics_in,
)
from shoal.reports.table import Cell, ReportTable, TableRow, heads, row

MOST_METRICS = 8
"""The largest number of metrics in the table of settings; default metrics precede those of the sweep's file."""

MOST_PANELS = 3
"""The largest number of metrics in the default figure."""

MOST_CONDITIONS = 8
"""The largest number of combinations of further axes with rows of their own; of more, the table has averages."""

OF_A_VIEW = re.compile(r"(.*\.)?(mia|tpr_at_fpr|exposure|exceeded|violations)")
"""Keys of metrics that depend on a view."""

COSTS = ("epsilon", "seconds.total")
"""Metrics without tested differences: epsilon is exact, and wall time depends on the machine."""


@dataclass(frozen=True, eq=False)
class Settings:
    """The settings of one axis, compared with each other; a sweep without a varied axis has one setting.

    Args:
        exposure: the key of the attack accuracy on the most exposed group, or an empty string if no run was attacked.
        axis: the axis with these settings, or ``None`` if no axis varies.
    """

    statistics: SeedStatistics
    labels: Labels
    keys: Sequence[str]
    exposure: str
    axis: str | None

    @staticmethod
    def of(statistics: SeedStatistics, spec: ReportSpec, labels: Labels) -> "Settings":
        """Return the settings of the first axis that varies."""
        groups, results = _groups(statistics), statistics.results
        accuracy = results.reindex(columns=[f"accuracy.{group}" for group in groups]).mean().dropna()
        exposure = results.reindex(columns=[f"mia.{group}" for group in groups]).mean().dropna()
        worst = [str(accuracy.idxmin())] if len(accuracy) > 1 else []
        fewest = [f"{metric}.{group}" for group in _minority(results, groups) for metric in ("accuracy", "mia")]
        exposed = [str(exposure.idxmax())] if len(exposure) else []
        shown = [key for shown in (*spec.tables.values(), *spec.figures.values()) for key in shown.y]
        measured = set(metrics_in(results, ("run", "seed", *statistics.axes)))
        clients = results.filter(regex=r"^clusters\.\d+\.clients$").sum(axis=1)
        # As on the page of a run: nobody reads limits that were drawn at random for all clients.
        limited = "thresholds_drawn" not in results or bool((results["thresholds_drawn"] < clients).any())
        limits = ["exceeded.total" if "exceeded.total" in measured else "violations.total"] if limited else []
        keys = dict.fromkeys(["accuracy.overall", *fewest, *worst, *exposed, *limits, *COSTS, *shown])
        keys = [key for key in keys if key in measured][:MOST_METRICS]
        return Settings(statistics, labels, keys, "".join(exposed), next(iter(axes_that_vary(statistics)), None))

    @property
    def by_axis(self) -> "list[Settings]":
        """The settings of every axis that varies."""
        return [replace(self, axis=axis) for axis in axes_that_vary(self.statistics)] or [self]

    @property
    def further(self) -> list[str]:
        """The axes that vary, except the axis of these settings."""
        return [axis for axis in axes_that_vary(self.statistics) if axis != self.axis]

    @property
    def names(self) -> list[str]:
        """The names of the settings."""
        return [*map(self.labels.setting, self.statistics.axes[self.axis])] if self.axis else ["every run"]

    def by_seed(self, keys: Sequence[str], where: Mapping[str, Value] | None = None) -> SeedValues:
        """Return the values of metrics, (seeds, settings, metrics), for fixed settings of the other varying axes.

        Args:
            where: the settings of the other varying axes, or ``None`` to average over the other varying axes.
        """
        rows = [] if self.axis is None else [self.axis]
        average = self.further if where is None else []
        return self.statistics.metrics_by_seed(
            TableSpec(y=[*keys], rows=rows, where=dict(where or {}), average=average)
        )


def axes_that_vary(statistics: SeedStatistics) -> list[str]:
    """Return the axes with more than one setting."""
    return [name for name, values in statistics.axes.items() if len(values) > 1]


def default_figure(settings: Settings) -> dict[str, FigureSpec]:
    """Return the default figure of a sweep: accuracy and exposure over the first axis that varies."""
    if settings.axis is None:
        return {}
    y = [key for key in settings.keys if key.startswith(("accuracy.", "mia."))][:MOST_PANELS]
    figure = FigureSpec(y=y, kind="bars", x=settings.axis, average=settings.further)
    return {"settings": figure} if y else {}


def sweep_headlines(settings: Settings) -> list[Headline]:
    """Create the headlines: the best and the least exposed setting per axis, and the runs with exposed groups."""
    return [answer for of_axis in settings.by_axis for answer in _headlines(of_axis, first=settings.axis)]


def _headlines(settings: Settings, first: str | None) -> Iterator[Headline]:
    """Create one axis' headlines, which compare the best setting with the next best."""
    axis = settings.labels.axis(settings.axis or "")
    for key, question in (
        ("accuracy.overall", "has the highest accuracy"),
        (settings.exposure, "has the lowest exposure"),
    ):
        best = settings.axis and key in settings.keys and Best.of(
            settings.by_seed([key])[:, :, 0], settings.names, key, metric_at(key).better
        )  # fmt: skip
        if best:
            yield Headline(f"Which {axis} {question}? ({settings.labels.key(key)})", _said(best, key))
    attacker = "to whom" if settings.axis == first else f"by {axis}"
    yield Headline(f"Who is exposed, {attacker}?", _exposed(settings))


def _minority(results: pd.DataFrame, groups: Sequence[str]) -> list[str]:
    """Return the group with the fewest members, in a list, or an empty list if groups have equally many."""
    members = results.reindex(columns=[f"members.{group}" for group in groups]).mean().dropna()
    return [str(members.idxmin()).removeprefix("members.")] if members.nunique() > 1 else []


def _said(best: Best, key: str) -> str:
    """Describe the best setting's lead over the next setting that does not differ significantly, or over the next."""
    value = format_value(best.mean, key)
    if best.same:
        return f"None: all have {value} on every seed."
    against, *untold = best.untold or [*best.others][:1]
    lead = best.others[against]
    low = metric_at(key).better == "lower"
    gap = f"{format_value(abs(lead.mean), key)} {'below' if low else 'above'} {against}"
    leads = f"{best.setting} has the {'lowest' if low else 'highest'} mean, {value}, {gap}"
    seeds = f"{lead.n} seed{'s' * (lead.n != 1)}" + ", for all differences at once" * (lead.tests > 1)
    if not lead.interval:
        return f"Not decided by one seed: {leads}."
    interval = f"95 % interval {lead.interval}; {seeds}"
    if lead.shown:
        return f"{leads}, the next. The difference is shown ({interval})."
    either = f" Also within the margin of error: {join_words(untold, MOST_NAMES)}." if untold else ""
    return f"Not decided by {lead.n} seeds: {leads}, but the interval covers 0 ({interval}).{either}"


def _exposed(settings: Settings) -> str:
    """Count the runs per setting, group and verdict, by each run's own interval."""
    results = settings.statistics.results
    groups = [group for group in _groups(settings.statistics) if f"mia.{group}" in results]
    if not groups:
        return "Unknown: no run was attacked."
    views = [BY[view] for view in results["view"].unique()] if "view" in results else []
    attacker = f" to {' or '.join(views)}" if views else ""
    values = settings.statistics.axes[settings.axis] if settings.axis else []
    parts = {"": results} if not values else {f"with {called(name)} ": results[results[settings.axis] == value]
             for name, value in zip(settings.names, values, strict=False)}  # fmt: skip
    said = []
    for group in groups:
        counts = []
        for name, runs in parts.items() if len(parts) <= MOST_NAMED else [("", results)]:
            found = Counter(_verdict(run, group, len(groups)) for run in runs.to_dict("records"))
            counts += [
                f"{name}{verdict} in {found[verdict]} of {len(runs)} runs" for verdict in VERDICTS if found[verdict]
            ]
        said.append(f"{capitalize(group)}{attacker}: {', '.join(counts)}.")
    return " ".join(said)


def _groups(statistics: SeedStatistics) -> list[str]:
    return sorted(groups_in(map(str, statistics.results)))


def _verdict(run: Mapping[Hashable, Any], group: str, groups: int) -> Verdict:
    values = (run.get(f"{key}.{group}") for key in ("mia", "mia_low", "mia_high"))
    return Estimate(*(nan if value is None else float(value) for value in values)).among(groups).verdict


def settings_table(settings: Settings) -> ReportTable:
    """Create a table with one row per setting, with means and differences from the first setting."""
    labels, rows = settings.labels, []
    conditions = [*product(*(settings.statistics.axes[axis] for axis in settings.further))]
    if not settings.further:
        rows = [*_rows(settings, settings.by_seed(settings.keys))]
    else:
        over = f"averaged over {' and '.join(map(labels.axis, settings.further))}"
        rows = [row(over, style="of"), *_rows(settings, settings.by_seed(settings.keys))]
        for values in conditions if len(conditions) <= MOST_CONDITIONS else ():
            where = dict(zip(settings.further, values, strict=True))
            heading = ", ".join(f"{labels.axis(axis)} {labels.setting(value)}" for axis, value in where.items())
            rows.append(row(heading, style="of"))
            rows += _rows(settings, settings.by_seed(settings.keys, where=where))
    head = labels.axis(settings.axis) if settings.axis else "runs"
    title = f"Every setting of {head}" if settings.further else "Every setting"
    return ReportTable(heads([head], map(labels.key, settings.keys)), tuple(rows), title, note=_settings_note(settings))


def _rows(settings: Settings, by_seed: SeedValues) -> Iterator[TableRow]:
    result, seeds = estimate(by_seed), len(settings.statistics.seeds)
    for i, name in enumerate(settings.names):
        cells = [Cell(name)]
        for m, key in enumerate(settings.keys):
            mean, n = float(result.mean[i, m]), int(result.n[i, m])
            if key in COSTS:
                cells.append(Cell(format_value(mean, key)))
                continue
            text, *spread = format_estimate(mean, float(result.spread[i, m]), n, key, seeds).split(" ", 1)
            difference = Difference.of(by_seed[:, i, m] - by_seed[:, 0, m], key)
            small = [*spread, difference.text] if i else spread
            cells.append(Cell(text, "; ".join(filter(None, small)), strong=bool(i) and difference.shown))
        yield TableRow(tuple(cells))


def _settings_note(settings: Settings) -> str:
    """Explain the table."""
    sentences = ["Means over seeds ± one standard deviation."]
    if settings.axis:
        sentences.append(
            f"Below: the difference from {called(settings.names[0])}, paired by seed, with its 95 % interval; bold "
            "if the interval excludes 0. Intervals are not simultaneous: of twenty true zeros, one is expected in bold."
        )
    sentences += [about_views(settings.statistics)]
    return " ".join(filter(None, sentences))


def about_views(statistics: SeedStatistics) -> str:
    """Describe the view of the exposures in a sentence, or return an empty string if the results name no view."""
    views = [*statistics.results["view"].unique()] if "view" in statistics.results else []
    attacker = join_words([BY[view] for view in views])
    if len(views) > 1:
        return f"Exposure and limits are about {attacker}; across attackers, differences do not compare settings."
    return f"Exposure and limits are about {attacker}." if views else ""


def sweep_table(name: str, spec: TableSpec, statistics: SeedStatistics, labels: Labels) -> ReportTable:
    """Create the requested table.

    A row's leading cells are pale if they repeat the row above. The table's ``values`` have one row per cell: the
    settings, ``key``, ``mean``, ``sd`` and ``n``.
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
    estimates = values[["mean", "sd", "n", "key"]].itertuples(index=False)
    texts = [format_estimate(*result, seeds=len(statistics.seeds)) for result in estimates]
    cells = np.array([*map(Cell, texts)])
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
        title=spec.title or capitalize("; ".join(map(labels.key, spec.y))),
        caption=spec.caption,
        note=_note(spec, statistics, labels),
        name=name,
        over="" if named else ", ".join(map(labels.axis, spec.columns)),
        stubs=len(stub_heads),
        values=values,
    )


def _values(spec: TableSpec, statistics: SeedStatistics, *, key_in_rows: bool) -> tuple[pd.DataFrame, int]:
    """Compute `ReportTable.values`, and the number of cells per row."""
    axes, by = statistics.axes, spec.displayed
    result = estimate(statistics.metrics_by_seed(spec))
    values = pd.DataFrame([*product(*(axes[axis] for axis in by), spec.y)], columns=[*by, "key"], dtype=object)
    values = values.assign(**spec.where)[[*by, *spec.where, "key"]]
    values = values.assign(**{"mean": result.mean.ravel(), "sd": result.spread.ravel(), "n": result.n.ravel()})
    columns, keys = int(np.prod([len(axes[axis]) for axis in spec.columns])), len(spec.y)
    if not key_in_rows:
        return values, columns * keys
    return values.iloc[np.arange(len(values)).reshape(-1, columns, keys).transpose(0, 2, 1).ravel()], columns


def _note(spec: TableSpec, statistics: SeedStatistics, labels: Labels) -> str:
    metric = f"{labels.key(spec.y[0])}: " if len(spec.y) == 1 and spec.title and spec.columns else ""
    seeds = len(statistics.seeds)
    many = f"mean ± one standard deviation over {seeds} seeds, or over n if given."
    sentences = [metric + ("one seed." if seeds == 1 else many), *labels.selection(spec, statistics.axes)]
    if any(OF_A_VIEW.match(key) for key in spec.y) and about_views(statistics):
        sentences.append(about_views(statistics))
    for key, lacking in zip(spec.y, statistics.undefined(spec).sum(axis=0).tolist(), strict=True):
        if lacking:
            runs = "all runs" if lacking == (statistics.rows(spec) >= 0).sum() else f"{lacking} of its runs"
            sentences.append(f"{capitalize(labels.key(key))}: {reason(key)} in {runs}.")
    return capitalize(" ".join(sentences))
