"""The section on a property attack in a run's page."""

from collections.abc import Sequence
from math import nan, sqrt

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure
from matplotlib.lines import Line2D

from shoal.audit.finding import Estimate
from shoal.core.formats import DASH, count
from shoal.metrics import METRICS, auc_interval
from shoal.metrics.summary import Metrics, Summary
from shoal.property.update_table import auc, control_auc
from shoal.reports import plotting as plot
from shoal.reports.charts import Curve, by_name, ends, fit_rounds, round_axes, round_panels
from shoal.reports.page import Section
from shoal.reports.run.run_verdict import property_sentences
from shoal.reports.table import Cell, ReportTable, TableRow, metric_row, metric_table, row, without_dashes

CHECKPOINTS = 100
"""The largest number of rounds at which an AUC is computed; a figure is about 400 pixels wide."""

WITHOUT, WITH = plot.LineStyle(plot.WITHIN, "", "o"), plot.LineStyle(plot.OVER, "", "^")
"""The marks of updates without and with the property, which differ in shape and colour."""

MAX_POINTS = 1200
"""The largest number of points in a panel."""

SAMPLE = f"A panel shows at most {MAX_POINTS:,} updates, sampled at equal rates with and without the property."

MEAN = "#222222"
"""The colour of rolling means."""


def property_sections(
    scenario: Sequence[str], summary: Summary, updates: pd.DataFrame, clusters: int
) -> tuple[Section, ...]:
    """Create the sections on a property attack: the AUC over rounds, and folded details."""
    curve = auc_over_rounds(updates) if len(updates) else None
    further = (cosines(updates), maps(updates, clusters)) if len(updates) else ()
    table, sentences = _table(summary, updates, clusters), property_sentences(summary)
    return (
        Section(
            "property",
            table.title,
            [f"{sentence}." for sentence in sentences[-1:]],
            figures=[] if curve is None else [curve],
        ),
        Section(
            "property-details",
            "The property attack",
            [*scenario, _reading(clusters)],
            "victim, attacker and all figures",
            table=without_dashes(table),
            figures=[figure for figure in further if figure is not None],
        ),
    )


def _reading(clusters: int) -> str:
    text = (
        "The AUC is the fraction of pairs in which an update with the property has a higher score than an update "
        "without it; 0.5 is chance."
    )
    several = (
        " If the victim trains only some models, recognising these models raises the AUC over all models, but not the "
        "AUC over one model or over rounds."
    )
    return text + several * (clusters > 1)


def _table(summary: Summary, updates: pd.DataFrame, clusters: int) -> ReportTable:
    """Create the table with a column for all models and, if there are several models, a column per model."""
    overall, several = summary.overall, clusters > 1
    models = [summary.by_cluster.get(k, {}) for k in range(clusters)] if several else []
    columns = ("all models", *(f"cluster {k}" for k in range(clusters))) if several else ("value",)
    frames = [updates, *(updates[updates["cluster"] == k] for k in range(len(models)))]
    sizes = [(len(frame), int((frame["present"] > 0).sum())) for frame in frames]

    def named(key: str, cells: Sequence[str] | None = None, remark: str = "") -> TableRow:
        """Return a row of a table of metrics."""
        texts = [METRICS[key].text(overall.get(key)), *("" for _ in models)] if cells is None else cells
        return metric_row(METRICS[key], *texts, remark=remark, family="property ")

    control, auc = METRICS["property.auc_control"].text, METRICS["property_auc"].text
    random = "Standard deviation of the AUC of random scores; it is large for few updates."
    spreads = [
        _spread(overall, "cosine.mean", "cosine.sd"),
        *(_spread(model, "cosine", "cosine_sd") for model in models),
    ]
    rows = (
        named("property.auc_counterfactual", remark=f" Of {count(overall.get('property.pairs', 0))} pairs."),
        named("property.updates", [count(total) for total, _ in sizes]),
        named("property.positives", [count(held) for _, held in sizes]),
        named("property.auc", [auc(overall.get("property.auc")),
                               *(auc(of_model.get("property_auc")) for of_model in models)]),
        named("property.auc_control", [control(overall.get("property.auc_control")),
                                       *(control(control_auc(frame)) for frame in frames[1:])]),
        row(Cell("Standard deviation at chance", random), *(control(_sd_at_chance(*size)) for size in sizes)),
        named("property.auc_within"),
        named("property.auc_rounds"),
        named("property.auc_swapped"),
        named("cosine.mean", spreads, " Mean ± standard deviation."),
        named("main.auc"),
        named("main.auc_even"),
    )  # fmt: skip
    return metric_table("Property inference", columns, rows)


def _sd_at_chance(total: int, held: int) -> float:
    """Return the standard deviation of random scores' AUC (Mann and Whitney 1947); NaN if a class is missing.

    >>> round(_sd_at_chance(180, 12), 4)
    0.0865
    """
    without = total - held
    return sqrt((total + 1) / (12 * held * without)) if held and without else nan


def _spread(metrics: Metrics, mean: str, deviation: str) -> str:
    return " ± ".join(METRICS[key].text(metrics.get(key)) for key in (mean, deviation))


def auc_over_rounds(updates: pd.DataFrame) -> plot.Figure | None:
    """Draw the attack's cumulative AUC by round, for all models and per model, or return ``None`` without an AUC."""
    pooled = Curve("all models", running_auc(updates), plot.LineStyle("#000000", "-", ""))
    if pooled.values.empty:
        return None
    inside = updates_by_cluster(updates)
    aucs = {k: running_auc(frame) for k, frame in inside.items() if len(inside) > 1}
    of_clusters = [Curve(f"cluster {k}", auc, plot.cluster_style(k)) for k, auc in aucs.items()]
    control = Curve("shuffled labels", control_auc_over_rounds(updates), plot.LineStyle("#999999", (0, (5, 2)), ""))
    curves = [curve for curve in (pooled, *of_clusters, control) if len(curve.values)]

    def draw(figure: MplFigure) -> None:
        axes = round_axes(figure, "AUC up to the round")
        axes.axhline(0.5, **plot.CHANCE_LINE)
        for curve in curves:
            curve.draw(axes)
        axes.set_ylim(-0.02, 1.02)
        fit_rounds(axes, updates["round"])
        plot.legend(figure, [*(curve.key for curve in curves), plot.chance_key()])

    caption = (
        "AUC of the attack on all updates up to a round. A line starts when updates with and without the property "
        "exist. The grey line is a control: attackers trained on shuffled labels."
    )
    never = [curve.label for curve in of_clusters if curve.values.empty]
    if never:
        caption += f" Without an AUC: all updates of {', '.join(never)} are of one kind."
    alt = f"AUC of the property attack over rounds. At the end: {ends(curves)}."
    scored = updates.dropna(subset=["score"])["present"] > 0
    last = float(pooled.values.iloc[-1])
    ends_at = Estimate(last, *auc_interval(last, int(scored.sum()), int((~scored).sum())))
    title = f"The AUC over all updates is {ends_at.figure}; 0.5 is chance"
    return plot.draw_figure("property-auc", title, caption, alt, draw)


def cosines(updates: pd.DataFrame) -> plot.Figure | None:
    """Draw the cosines of each model's consecutive updates, or return ``None`` without consecutive updates."""
    panels = {k: rows for k, rows in updates_by_cluster(updates).items() if rows["cosine"].notna().any()}
    if not panels:
        return None
    spreads = {f"cluster {k}": mean_and_sd(rows) for k, rows in panels.items()}
    half = half_window(updates["round"].max())

    def draw(figure: MplFigure) -> None:
        titles = [f"{name}: {spread}" for name, spread in spreads.items()]
        for axes, own in zip(round_panels(figure, titles, "cosine"), panels.values(), strict=True):
            draw_points(axes, own, "round", "cosine")
            means = rolling_mean(own.groupby("round")["cosine"].mean(), half)
            axes.axhline(0, **plot.CHANCE_LINE)
            axes.plot(means.index, means, color=MEAN, linewidth=1.5)
            axes.set_ylim(-1.08, 1.08)
            fit_rounds(axes, updates["round"])
        mean = Line2D([], [], color=MEAN, linewidth=1.5, label=f"mean over {2 * half + 1} rounds")
        plot.legend(figure, [*kind_keys(), mean], columns=2)

    caption = (
        "Each point is the cosine between a model's aggregated update and the previous update (1: the same direction; "
        "-1: the opposite direction). According to Kim et al. (2023), updates that keep their direction leak more. "
        f"The line is the mean over {2 * half + 1} rounds. Panel titles give mean ± standard deviation. {SAMPLE}"
    )
    ends = "; ".join(f"{name} {spread}" for name, spread in spreads.items())
    alt = f"Cosines of consecutive updates over rounds: {ends}."
    means = {name: float(rows["cosine"].mean()) for name, rows in zip(spreads, panels.values(), strict=True)}
    title = f"Consecutive updates have mean cosine {by_name(means)}"
    return plot.draw_figure("property-cosine", title, caption, alt, draw)


def maps(updates: pd.DataFrame, models: int) -> plot.Figure | None:
    """Draw t-SNE maps of the first rounds' updates and of all updates, or return ``None`` without coordinates."""
    panels = tsne_maps(updates)
    if not panels:
        return None

    def draw(figure: MplFigure) -> None:
        cells = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, points) in zip(cells, panels.items(), strict=True):
            draw_map(axes, points)
            axes.set_title(title)
        plot.legend(figure, kind_keys())

    caption = (
        "Each point is an aggregated update; t-SNE places updates with similar features next to each other. Axes and "
        "distances have no meaning. If triangles lie apart from circles, the property is easy to infer; updates of "
        f"different models also lie apart. {SAMPLE}"
    )
    if list(panels) == ["all rounds"]:
        caption += " The first fifth of the rounds has too few updates for a map."
    framework = "FL, one model" if models == 1 else f"CFL, {models} models"
    counts = ", ".join(f"{title}: {len(points)}" for title, points in panels.items())
    alt = f"Maps of updates by t-SNE ({framework}); {counts}."
    held = {title: int((points["present"] > 0).sum()) for title, points in panels.items()}
    shown = ", ".join(f"{held[title]} of {len(points)} in {title}" for title, points in panels.items())
    title = f"Updates with the property: {shown} ({framework})"
    return plot.draw_figure("property-maps", title, caption, alt, draw, height=3.2)


def mean_and_sd(updates: pd.DataFrame, digits: int = 3) -> str:
    """Return the mean and standard deviation of the cosines as a phrase."""
    values = updates["cosine"].agg(["mean", "std"])
    return " ± ".join(DASH if pd.isna(value) else f"{value:.{digits}f}" for value in values)


def draw_map(axes: Axes, points: pd.DataFrame) -> None:
    """Draw updates at their coordinates ``x`` and ``y``; updates with the property are drawn on top."""
    draw_points(axes, points, "x", "y")
    axes.set(xticks=[], yticks=[], xlabel="t-SNE axis 1", ylabel="t-SNE axis 2")
    axes.margins(0.06)


def draw_points(axes: Axes, updates: pd.DataFrame, x: str, y: str) -> None:
    """Draw updates as points, sampling updates with and without the property at equal rates."""
    for kind, style in ((0, WITHOUT), (1, WITH)):
        points = updates[updates["present"] == kind].sample(frac=min(1.0, MAX_POINTS / len(updates)), random_state=0)
        axes.plot(
            points[x], points[y], linestyle="", marker=style.marker, color=style.color,
            markersize=3.0 + 1.5 * kind, alpha=0.5 + 0.35 * kind, markeredgewidth=0,
        )  # fmt: skip


def kind_keys() -> list[Line2D]:
    """Return the legend entries for updates with and without the property."""
    kinds = ((WITHOUT, "without the property"), (WITH, "with the property"))
    return [Line2D([], [], color=style.color, linestyle="", marker=style.marker, label=name) for style, name in kinds]


def updates_by_cluster(updates: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """Return the updates of each model, by the model's number."""
    return {k: updates[updates["cluster"] == k] for k in np.unique(updates["cluster"]).tolist()}


def running_auc(updates: pd.DataFrame, score: str = "score") -> pd.Series:
    """Return, by round, the AUC of all updates up to the round, at no more than `CHECKPOINTS` rounds.

    The series starts once updates with and without the property exist; otherwise it is empty.

    >>> frame = pd.DataFrame({"round": [1, 2, 3], "cluster": 0, "present": [1, 0, 0], "score": [0.5, 0.5, 0.1]})
    >>> running_auc(frame).to_dict()
    {2: 0.5, 3: 0.75}
    """
    scored = updates.dropna(subset=[score]) if score in updates else updates.head(0)
    begins = scored.groupby("present")["round"].min()
    if len(begins) < 2:
        return pd.Series(dtype=float)
    rounds = np.unique(scored["round"])
    rounds = rounds[rounds >= begins.max()]
    some = np.unique(np.linspace(0, len(rounds) - 1, CHECKPOINTS).round().astype(int))
    past = {number: scored[scored["round"] <= number] for number in rounds[some].tolist()}
    return pd.Series({number: auc(rows, score) for number, rows in past.items()})


def control_auc_over_rounds(updates: pd.DataFrame) -> pd.Series:
    """Return the mean `running_auc` of the classifiers trained on shuffled labels."""
    controls = [running_auc(updates, name) for name in updates.columns if name.startswith("control.")]
    return pd.concat(controls, axis=1).mean(axis=1) if controls else pd.Series(dtype=float)


def half_window(rounds: int) -> int:
    """Return the half-width, in rounds, of the window of `rolling_mean`."""
    return max(2, rounds // 50)


def rolling_mean(values: pd.Series, half: int) -> pd.Series:
    """Return, by round, the mean of the values at most ``half`` rounds away, or NaN without values.

    >>> rolling_mean(pd.Series({1: 0.0, 2: 1.0, 3: None, 9: None}), 1).tolist()
    [0.5, 0.5, 1.0, nan]
    """
    every = values.astype(float).reindex(range(values.index.min(), values.index.max() + 1))
    return every.rolling(2 * half + 1, center=True, min_periods=1).mean()[values.index]


def tsne_maps(updates: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the updates with t-SNE coordinates ``x`` and ``y``, by the map's title."""
    maps = {}
    for name, title in (("early", "first fifth of the rounds"), ("all", "all rounds")):
        coordinates = {f"{name}_x": "x", f"{name}_y": "y"}
        if set(coordinates) <= set(updates):
            points = updates.dropna(subset=list(coordinates)).rename(columns=coordinates)
            maps |= {title: points} if len(points) else {}
    return maps
