"""A run's figures over its rounds: accuracy, risk, and the clients in each cluster, where a drained cluster shows."""

from collections.abc import Hashable, Mapping, Sequence
from math import nan
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from shoal.core.formats import ACCURACY, capitalized, decimal, name_examples
from shoal.metrics.summary import Summary
from shoal.reports.curves import Curve, fit_rounds, over_rounds, round_axes
from shoal.reports.plotting import CHANCE_LINE, Figure, cluster_style, draw_figure, group_style, legend, short
from shoal.reports.svg import add_named_points, name_points

_CHOSEN: Any = {"color": "white", "markeredgecolor": "black"}

FEW = 3
"""Clients of a cluster that has all but drained."""

ESTIMATORS = {
    "shadow": "taken on shadow models, since the server holds no members",
    "federated": "counted by the clients on their own images",
    "histogram": "taken from the clients' histograms of their losses",
    "audit": "taken on the members themselves, which only a simulator knows",
}
"""The red team's estimators of risk, in words."""


def curves_by_cluster(rounds: pd.DataFrame, column: str) -> list[Curve]:
    """A column of a table with one row per round and cluster, as one curve per cluster."""
    table = rounds.pivot_table(index="round", columns="cluster", values=column, dropna=False)
    return [Curve(f"cluster {k}", table[k], cluster_style(int(k))) for k in table.columns]


def round_panels(figure: MplFigure, titles: Sequence[str], label: str) -> list[Axes]:
    """One panel over rounds for each title, on the same scales; the figure gets the height that they need."""
    columns = 1 if len(titles) <= 4 else 2
    lines = -(-len(titles) // columns)
    figure.set_figheight(max(2.6, 1.2 + 1.2 * lines))
    cells = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten().tolist()
    for axes in cells[len(titles) :]:
        axes.set_visible(False)
    for axes, title in zip(cells, titles, strict=False):
        axes.set_title(title, loc="left")
        over_rounds(axes)
        axes.set_ylabel(label)
        axes.label_outer()
    panels = cells[: len(titles)]
    for axes in panels[-columns:]:
        axes.set_xlabel("round")
        axes.tick_params(labelbottom=True)
    return panels


def accuracy_by_cluster(rounds: pd.DataFrame, kind: str = "images", metric: str = ACCURACY) -> Figure | None:
    """Each model's accuracy on test examples, mixed as the groups of those who trained it; None if never measured.

    ``kind`` is what examples are, ``metric`` what the run reports as accuracy.
    """
    what = f"Share of held-out {kind} that each cluster's model gets right"
    if metric != ACCURACY:
        what = f"Mean {metric} of each cluster's model on held-out {kind}, higher is better"
    return _accuracy("cluster", kind, metric, curves_by_cluster(_evaluated(rounds), "accuracy"), (
        f"{what}, on the mix of groups that trained it in that round. A line breaks where no client chose the cluster."
    ))  # fmt: skip


def accuracy_by_group(
    rounds: pd.DataFrame, groups: Sequence[str], kind: str = "images", metric: str = ACCURACY
) -> Figure | None:
    """Each group's accuracy with the models that its clients chose; None if never measured.

    ``kind`` and ``metric`` are as in `accuracy_by_cluster`.
    """
    rounds, curves = _evaluated(rounds), []
    for g, group in enumerate(groups):
        if {f"clients.{group}", f"accuracy.{group}"} <= set(rounds):
            clients = rounds[f"clients.{group}"]
            right = (rounds[f"accuracy.{group}"] * clients).where(clients > 0)
            means = right.groupby(rounds["round"]).sum(min_count=1) / clients.groupby(rounds["round"]).sum()
            curves.append(Curve(short(group), means, group_style(g)))
    what = f"Share of held-out {kind} of a group that are right"
    if metric != ACCURACY:
        what = f"Mean {metric} on held-out {kind} of a group, higher is better"
    caption = f"{what}, each client with the model that it chose in that round."
    return _accuracy("group", kind, metric, curves, caption)


def _evaluated(rounds: pd.DataFrame) -> pd.DataFrame:
    """The rows of rounds with an evaluation; the others would break every line."""
    known = rounds.filter(regex="^accuracy").notna().any(axis=1)
    return rounds[rounds["round"].isin(rounds.loc[known, "round"])]


def _accuracy(by: str, kind: str, metric: str, curves: Sequence[Curve], caption: str) -> Figure | None:
    name, title = f"accuracy-by-{by}", f"{capitalized(metric)} by {by}"
    if all(curve.values.isna().all() for curve in curves):
        return None

    def draw(figure: MplFigure) -> None:
        axes = round_axes(figure, f"{metric} on held-out {kind}")
        if metric == ACCURACY:
            axes.set_ylim(0, 1.02)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        for curve in curves:
            curve.draw(axes)
        fit_rounds(axes, curves[0].values.index.to_series())
        legend(figure, [curve.key() for curve in curves])

    alt = f"{title} over rounds. At the end: {', '.join(curve.end for curve in curves)}."
    return draw_figure(name, title, name_examples(caption, kind), alt, draw)


def risk(
    rounds: pd.DataFrame, summary: Summary, *, estimated: bool, estimator: str, kind: str = "images"
) -> Figure | None:
    """The red team's estimates and the measured exposure of the final models; None if there is neither."""
    curves = curves_by_cluster(rounds, "risk")
    # Runs of earlier versions have no intervals.
    known = estimated and "risk_low" in rounds and bool(rounds["risk_low"].notna().any())
    bands = [curves_by_cluster(rounds, f"risk_{end}") for end in ("low", "high")] if known else []
    measured = [summary.by_cluster.get(k, {}).get("mia", nan) for k in range(len(curves))]
    if not estimated and np.isnan(measured).all():
        return None

    def draw(figure: MplFigure) -> None:
        axes = round_axes(figure, "balanced accuracy of the attack")
        axes.axhline(0.5, **CHANCE_LINE)
        end = fit_rounds(axes, rounds["round"])
        for curve, value in zip(curves, measured, strict=True):
            color, dashes = curve.style.color, curve.style.dashes
            if estimated:
                over, values = _to_the_end(curve, end)
                axes.step(over, values, where="post", color=color, linestyle=dashes)
                curve.name_values(axes)
            if np.isnan(value):
                continue  # Nobody trained the model, so it has no members.
            (diamond,) = axes.plot(
                [end], [value], marker="D", markersize=7, color=color, markeredgecolor="black", clip_on=False, zorder=7
            )
            name_points(diamond, [f"{curve.label}, measured at the end: {decimal(value)}"])
        for low, high in zip(*bands, strict=True):
            (over, lower), (_, upper) = _to_the_end(low, end), _to_the_end(high, end)
            axes.fill_between(over, lower, upper, step="post", color=low.style.color, alpha=0.12, linewidth=0)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.45), max(high, 0.6))
        keys = [curve.key() if estimated else curve.key("D") for curve in curves]
        diamond = Line2D(
            [], [], color="white", marker="D", linestyle="", markeredgecolor="black", label="measured at the end"
        )
        legend(figure, [*keys, diamond, guess_key()], columns=2)

    ends = [curve.end for curve in curves if estimated]
    ends += [f"cluster {k} measured {decimal(value)}" for k, value in enumerate(measured) if not np.isnan(value)]
    shaded = " Shaded: its 95 % interval." if bands else ""
    steps = (
        "Steps: the red team's estimate of the accuracy with which an attacker tells a model's training images from "
        f"others, {ESTIMATORS[estimator]}; 0.5 before the first estimate.{shaded}"
        if estimated
        else "The red team estimated no risk during this run."
    )
    caption = name_examples(f"{steps} Diamonds: what attacking the final model measured.", kind)
    return draw_figure(
        "risk", "Risk of each model", caption, f"Risk by cluster over rounds. At the end: {'; '.join(ends)}.", draw
    )


def _to_the_end(curve: Curve, end: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The rounds and values of ``curve``, the last of which holds until ``end``."""
    return np.append(curve.values.index, end), np.append(curve.values, curve.values.iloc[-1])


def cluster_sizes(rounds: pd.DataFrame, groups: Sequence[str], at_end: Mapping[int, int]) -> Figure:
    """The clients of each group that trained each cluster's model, one panel per cluster.

    The choice after the last round can be another than the one that the last round was trained with, so both have a
    number, and the former has a diamond.

    Args:
        rounds: one row per round and cluster.
        groups: those with clients.
        at_end: clients of each cluster after the last round.
    """
    last = int(rounds["round"].max())
    trained = rounds[rounds["round"] == last].set_index("cluster")["clients"].astype(int)
    titles = [
        f"cluster {k}: {trained.get(k, 0)} trained it in round {last}, {n} chose it after" for k, n in at_end.items()
    ]

    def draw(figure: MplFigure) -> None:
        panels = round_panels(figure, titles, "clients")
        for axes, k in zip(panels, at_end, strict=True):
            own = rounds[rounds["cluster"] == k].set_index("round")
            edges, below = np.append(own.index - 0.5, own.index[-1] + 0.5), np.zeros(len(own))
            for g, group in enumerate(groups):
                top = below + own[f"clients.{group}"].to_numpy()
                axes.stairs(top, edges, baseline=below, fill=True, color=group_style(g).color)
                below = top
            names = [_sizes(row, groups) for row in own.to_dict("records")]
            names = [f"cluster {k}, round {number}: {name}" for number, name in zip(own.index, names, strict=True)]
            add_named_points(axes, own.index.to_list(), below.tolist(), names)
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
            end = fit_rounds(axes, own.index.to_series())
            (diamond,) = axes.plot([end], [at_end[k]], marker="D", markersize=7, clip_on=False, zorder=7, **_CHOSEN)
            name_points(diamond, [f"cluster {k}: chosen by {at_end[k]} after round {last}"])
        # After the last diamond, since panels share their scale and this ends its fitting.
        panels[0].set_ylim(0, None)
        chosen = Line2D([], [], marker="D", linestyle="", **_CHOSEN, label="chose it after the last round")
        legend(
            figure,
            [*[Patch(color=group_style(g).color, label=short(group)) for g, group in enumerate(groups)], chosen],
            columns=2,
        )

    alt = f"Clients by cluster over rounds. At the end: {', '.join(f'cluster {k} {n}' for k, n in at_end.items())}."
    caption = (
        "Bars: clients that trained each cluster's model in a round, coloured by their group. Diamond: clients that "
        f"chose it after the last round, from the final models; the tables count these. {drained(at_end)}"
    )
    return draw_figure("sizes", "Cluster sizes", caption.strip(), alt, draw)


def _sizes(row: Mapping[Hashable, Any], groups: Sequence[str]) -> str:
    return ", ".join(f"{row['clients.' + group]:.0f} of {group}" for group in groups)


def drained(at_end: Mapping[int, int]) -> str:
    """A warning of clusters that end with hardly any client; empty if there are none.

    >>> drained({0: 46, 1: 3, 2: 0})
    'Clusters that end with at most 3 clients: 1 (3), 2 (0). A model of so few can give them away more easily.'
    """
    small = ", ".join(f"{k} ({count})" for k, count in at_end.items() if count <= FEW)
    if not small:
        return ""
    return f"Clusters that end with at most {FEW} clients: {small}. A model of so few can give them away more easily."


def guess_key(label: str = "guessing (0.5)") -> Line2D:
    """The entry of `CHANCE_LINE` in a legend."""
    return Line2D([], [], **CHANCE_LINE, label=label)
