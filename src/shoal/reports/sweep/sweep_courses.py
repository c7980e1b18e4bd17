"""Courses over rounds in a sweep's figure: one line per model, ordered by how many clients chose them at the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from shoal.core.formats import capitalized
from shoal.reports.charts import Curve, ends, over_rounds, span
from shoal.reports.plotting import Figure, cluster_style, figure_files
from shoal.reports.sweep.report_spec import SPREADS, format_value
from shoal.reports.sweep.seed_statistics import SeedMeans, SeedValues, estimate
from shoal.reports.sweep.sweep_charts import HEIGHT, NOTE, Content, FigureData, Panel, chart_content, in_rows, paint

ReadRounds = Callable[[str], pd.DataFrame]
"""Reads the rounds.csv of a run, one row per round and cluster."""


def sweep_figure(name: str, data: FigureData, read_rounds: ReadRounds) -> Figure:
    """The figure that ``data`` describe."""
    content = content_of(data, read_rounds)
    title = f"{data.spec.title}: {content.finding}" if data.spec.title else capitalized(content.finding)
    size = (content.columns * content.width, len(content.rows) * HEIGHT)
    alt, draw = f"{title}. {content.description}", partial(paint, content=content, data=data)
    return figure_files(alt, draw, size, name=name, title=title, caption=content.caption)


def content_of(data: FigureData, read_rounds: ReadRounds) -> Content:
    """The content of a figure."""
    return courses_content(data, read_rounds) if data.spec.kind == "courses" else chart_content(data)


@dataclass(frozen=True, eq=False)
class Curves:
    """The curves of one panel.

    Args:
        key: the column of rounds.csv.
        setting: the name of the setting of `by`.
        rounds: (rounds,) those in which any model has a value.
        values: (seeds, models, rounds), NaN where a seed has none.
        result: (models, rounds) their estimates.
        missing: why there is no value, if there is none.
    """

    key: str
    setting: str
    rounds: SeedValues
    values: SeedValues
    result: SeedMeans
    missing: str

    def of(self, names: Sequence[str]) -> list[Curve]:
        """The mean of each model, called by ``names``."""
        curves = []
        for m, (name, *result) in enumerate(zip(names, self.result.mean, self.result.spread, strict=False)):
            mean, spread = (pd.Series(values, self.rounds) for values in result)
            low, high = mean - spread.fillna(0), mean + spread.fillna(0)
            curves.append(Curve(name, mean, cluster_style(m), low, high))
        return curves


def courses_content(data: FigureData, read_rounds: ReadRounds) -> Content:
    """The content of a figure of courses."""
    spec, curves, settings = data.spec, read_curves(data, read_rounds), len(data.series())
    most = max(curves, key=lambda panel: len(panel.result.n))
    names, panels = model_names(len(most.result.n)), []
    for panel in curves:
        y_label = spec.y_label or data.labels.key(panel.key)
        panels.append(Panel(_title(panel, data), y_label, panel.key, partial(_draw, panel, names)))
    # Each metric begins a row.
    rows = [row for i in range(0, len(panels), settings) for row in in_rows(panels[i : i + settings], 3)]
    order = " Models are ordered by how many clients chose them in the last round of each run." * (len(names) > 1)
    reading = f"Lines: means over {data.seeds}; bands: {SPREADS[spec.spread]} each way.{order}"
    at_end = [f"{data.labels.key(panel.key)}, {panel.setting}: {ends(panel.of(names))}." for panel in curves]
    # A round in which a model has no value is a break in its line, which needs no label.
    n = [count for panel in curves for count in panel.result.n[panel.result.n > 0].tolist() or [0]]
    return Content(
        rows=rows,
        width=3.2,
        handles=[curve.key for curve in most.of(names)],
        caption=data.caption(reading, n, np.concatenate([panel.result.mean.ravel() for panel in curves])),
        finding=_finding(curves, data),
        description=f"Means over seeds at the end. {' '.join(at_end)}",
    )


def read_curves(data: FigureData, read_rounds: ReadRounds) -> list[Curves]:
    """The curves of each metric and setting of `by`, in that order."""
    spec, statistics, keys = data.spec, data.statistics, data.spec.y
    runs = statistics.results["run"].astype(str).tolist()
    used = sorted({row for row in statistics.rows(spec).ravel().tolist() if row >= 0})
    ranked = {row: rank_models(read_rounds(runs[row]), keys) for row in used}
    rounds = sorted({number for ranking in ranked.values() for number in ranking.columns.unique("round")})
    columns = pd.MultiIndex.from_product([keys, rounds])
    values = np.full((len(runs), max(map(len, ranked.values()), default=1), len(keys), len(rounds)), np.nan)
    for row, ranking in ranked.items():
        values[row, : len(ranking)] = ranking.reindex(columns=columns).to_numpy().reshape(len(ranking), len(keys), -1)
    by_seed = statistics.by_seed(values, spec)
    curves = []
    for k, (b, setting) in product(range(len(keys)), enumerate(data.series())):
        models = max(1, int((~np.isnan(by_seed[:, b])).any(axis=(0, 2, 3)).sum()))
        here = by_seed[:, b, :models, k]
        measured = (~np.isnan(here)).any(axis=(0, 1))
        here = here[:, :, measured]
        missing = str(data.missing()[k, b])
        curves.append(Curves(keys[k], setting, np.array(rounds)[measured], here, estimate(here, spec.spread), missing))
    return curves


def rank_models(rounds: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """(models, columns x rounds) a run's rounds.csv, the largest model first.

    Models of one size in the last round are ordered by earlier rounds, then by ``keys``; never by their number.
    """
    names = [*dict.fromkeys(("clients", *keys))]
    wide = rounds.reindex(columns=["cluster", "round", *names]).pivot(index="cluster", columns="round", values=names)
    latest_first = wide.fillna(-np.inf).to_numpy().reshape(len(wide), len(names), -1)[:, :, ::-1].tolist()
    return wide.iloc[sorted(range(len(wide)), key=latest_first.__getitem__, reverse=True)]


def model_names(count: int) -> list[str]:
    """Names of so many models from the largest to the smallest.

    >>> model_names(1), model_names(2), model_names(3)
    (['the model'], ['larger model', 'smaller model'], ['model 1 (largest)', 'model 2', 'model 3 (smallest)'])
    """
    if count <= 2:
        return ["the model"] if count == 1 else ["larger model", "smaller model"]
    return ["model 1 (largest)", *(f"model {i}" for i in range(2, count)), f"model {count} (smallest)"]


def _draw(curves: Curves, names: Sequence[str], axes: Axes) -> None:
    """Means over rounds with their bands; a line breaks where a model has no value."""
    over_rounds(axes)
    if not curves.result.n.any():
        axes.text(0.5, 0.5, curves.missing, transform=axes.transAxes, **NOTE)
        return
    for curve in curves.of(names):
        curve.draw(axes)


def _title(curves: Curves, data: FigureData) -> str:
    """The setting, the metric where the y axis does not name it, and n where seeds are missing."""
    spec, n = data.spec, curves.result.n
    key = data.labels.key(curves.key) if spec.y_label and (len(spec.y) > 1 or not curves.setting) else ""
    lines = [fill(", ".join(filter(None, [key, curves.setting])), 32)]
    if n.any() and n.min() < len(data.statistics.seeds):
        lines.append(f"n = {n.min()}" + f" to {n.max()}" * bool(n.max() > n.min()))
    return "\n".join(filter(None, lines))


def _finding(curves: Sequence[Curves], data: FigureData) -> str:
    """Where the means of the first metric end."""
    key, last = data.spec.y[0], list[float]()
    for panel in curves:
        known = [mean[~np.isnan(mean)] for mean in panel.result.mean if panel.key == key]
        last += [float(mean[-1]) for mean in known if len(mean)]
    name = data.labels.key(key)
    return f"{name} ends at {span(last, lambda value: format_value(value, key))}" if last else f"{name} has no value"
