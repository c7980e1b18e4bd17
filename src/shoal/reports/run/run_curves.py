"""A run over its rounds: accuracy, risk, and the clients in each cluster; for a notebook also all three at a glance."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MplFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from shoal.core.formats import ACCURACY, capitalized, decimal, join_words, metric_format, name_examples
from shoal.metrics.summary import Summary
from shoal.reports import plotting as plot
from shoal.reports.curves import (
    Curve,
    by_name,
    ends,
    ends_title,
    fit_rounds,
    over_rounds,
    round_axes,
    round_panels,
    span,
)
from shoal.reports.plotting import add_named_points

MOST_CLUSTERS = 6
"""Clusters whose sizes are in a title."""

FEW = 3
"""Clients of a cluster that has all but drained."""

ESTIMATORS = {
    "shadow": "taken on shadow models, since the server holds no members",
    "federated": "counted by the clients on their own images",
    "histogram": "taken from the clients' histograms of their losses",
    "relative-histogram": "taken from the clients' histograms of their losses, less those on the other models",
    "audit": "taken on the members themselves, which only a simulator knows",
}
"""The red team's estimators of risk, in words."""


def curves_by_cluster(rounds: pd.DataFrame, column: str) -> list[Curve]:
    """A column of a table with one row per round and cluster, as one curve per cluster."""
    table = rounds.pivot_table(index="round", columns="cluster", values=column, dropna=False)
    return [Curve(f"cluster {k}", table[k], plot.cluster_style(int(k))) for k in table.columns]


def accuracy_by_cluster(rounds: pd.DataFrame, kind: str = "images", metric: str = ACCURACY) -> plot.Figure | None:
    """Each model's accuracy on test examples, mixed as the groups of those who trained it; None if never measured.

    ``kind`` is what examples are, ``metric`` what the run reports as accuracy.
    """
    subject = ("that each cluster's model gets right", "of each cluster's model")
    remark = "on the mix of groups that trained it in that round. A line breaks where no client chose the cluster."
    return _accuracy("cluster", kind, metric, curves_by_cluster(_evaluated(rounds), "accuracy"), subject, remark)


def accuracy_by_group(
    rounds: pd.DataFrame, groups: Sequence[str], kind: str = "images", metric: str = ACCURACY
) -> plot.Figure | None:
    """Each group's accuracy with the models that its clients chose; None if never measured.

    ``kind`` and ``metric`` are as in `accuracy_by_cluster`.
    """
    rounds, curves = _evaluated(rounds), []
    for g, group in enumerate(groups):
        if {f"clients.{group}", f"accuracy.{group}"} <= set(rounds):
            clients = rounds[f"clients.{group}"]
            right = (rounds[f"accuracy.{group}"] * clients).where(clients > 0)
            means = right.groupby(rounds["round"]).sum(min_count=1) / clients.groupby(rounds["round"]).sum()
            curves.append(Curve(plot.short(group), means, plot.group_style(g)))
    subject = ("of a group that are right", "of a group")
    return _accuracy("group", kind, metric, curves, subject, "each client with the model that it chose in that round.")


def _evaluated(rounds: pd.DataFrame) -> pd.DataFrame:
    """The rows of rounds with an evaluation; the others would break every line."""
    measured = rounds.filter(regex="^accuracy").notna().any(axis=1)
    return rounds[rounds["round"].isin(rounds.loc[measured, "round"])]


def _accuracy(
    by: str, kind: str, metric: str, curves: Sequence[Curve], subject: tuple[str, str], remark: str
) -> plot.Figure | None:
    if all(curve.values.isna().all() for curve in curves):
        return None
    title = ends_title(f"{capitalized(metric)} by {by}", curves, metric_format(metric))
    caption = f"Share of held-out {kind} {subject[0]}, {remark}"
    if metric != ACCURACY:
        caption = f"Mean {metric} on held-out {kind} {subject[1]}, higher is better, {remark}"

    def draw(figure: MplFigure) -> None:
        axes = round_axes(figure, f"{metric} on held-out {kind}")
        if metric == ACCURACY:
            axes.set_ylim(0, 1.02)
            plot.share_axis(axes.yaxis)
        for curve in curves:
            curve.draw(axes)
        fit_rounds(axes, curves[0].values.index.to_series())
        plot.legend(figure, [curve.key for curve in curves])

    alt = f"{capitalized(metric)} by {by} over rounds. At the end: {ends(curves)}."
    return plot.draw_figure(f"accuracy-by-{by}", title, caption, alt, draw)


def risk(
    rounds: pd.DataFrame, summary: Summary, *, estimated: bool, estimator: str, kind: str = "images"
) -> plot.Figure | None:
    """The red team's estimates and the measured exposure of the final models; None if there is neither."""
    curves = curves_by_cluster(rounds, "risk")
    shaded = estimated and "risk_low" in rounds and bool(rounds["risk_low"].notna().any())
    bands = [curves_by_cluster(rounds, f"risk_{end}") for end in ("low", "high")] if shaded else []
    measured = [summary.by_cluster.get(k, {}).get("mia", nan) for k in range(len(curves))]
    if not estimated and np.isnan(measured).all():
        return None

    def draw(figure: MplFigure) -> None:
        axes = round_axes(figure, "balanced accuracy of the attack")
        axes.axhline(0.5, **plot.CHANCE_LINE)
        end = fit_rounds(axes, rounds["round"])
        for curve, value in zip(curves, measured, strict=True):
            if estimated:
                curve.draw_steps(axes, end)
            if not np.isnan(value):  # Nobody trained the model otherwise, so it has no members.
                name = f"{curve.label}, measured at the end: {decimal(value)}"
                plot.draw_diamond(axes, end, value, name, color=curve.style.color)
        for low, high in zip(*bands, strict=True):
            (over, lower), (_, upper) = low.held_until(end), high.held_until(end)
            axes.fill_between(over, lower, upper, step="post", color=low.style.color, alpha=0.12, linewidth=0)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.45), max(high, 0.6))
        diamonds = [plot.key(curve.label, color=curve.style.color, marker="D", linestyle="") for curve in curves]
        keys = [curve.key for curve in curves] if estimated else diamonds
        plot.legend(figure, [*keys, _diamond_key("measured at the end"), plot.chance_key()], columns=2)

    at_end = [curve.end for curve in curves if estimated]
    at_end += [f"cluster {k} measured {decimal(value)}" for k, value in enumerate(measured) if not np.isnan(value)]
    steps = "The red team estimated no risk during this run."
    if estimated:
        steps = (
            "Steps: the red team's estimate of the accuracy with which an attacker tells a model's training images "
            f"from others, {ESTIMATORS[estimator]}; 0.5 before the first estimate."
        )
    steps += " Shaded: its 95 % interval." * shaded
    caption = name_examples(f"{steps} Diamonds: what attacking the final model measured.", kind)
    alt = f"Risk by cluster over rounds. At the end: {'; '.join(at_end)}."
    title = ends_title("The red team's estimate of risk", curves)
    if not np.isnan(measured).all():
        called = _called(rounds)
        values = {called[k]: value for k, value in enumerate(measured) if not np.isnan(value)}
        title = f"The run's attack has balanced accuracy {by_name(values)} at the end"
    return plot.draw_figure("risk", title, caption, alt, draw)


def _called(rounds: pd.DataFrame) -> dict[int, str]:
    """Each cluster with the group that more than half of those who trained it last are of, where there are several."""
    sizes = rounds.filter(regex=r"^clients\.").rename(columns=lambda column: column.removeprefix("clients."))
    called = {}
    for k in sorted(map(int, rounds["cluster"].unique())):
        last = sizes[rounds["cluster"] == k].iloc[-1]
        most = len(last) > 1 and 2 * last.max() > last.sum()
        called[k] = f"cluster {k}, {last.idxmax()}" if most else f"cluster {k}"
    return called


def cluster_sizes(rounds: pd.DataFrame, groups: Sequence[str], at_end: Mapping[int, int]) -> plot.Figure:
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
            inside = rounds[rounds["cluster"] == k].set_index("round")
            edges, below = np.append(inside.index - 0.5, inside.index[-1] + 0.5), np.zeros(len(inside))
            for g, group in enumerate(groups):
                top = below + inside[f"clients.{group}"].to_numpy()
                axes.stairs(top, edges, baseline=below, fill=True, color=plot.group_style(g).color)
                below = top
            sizes = [", ".join(f"{row['clients.' + group]:.0f} of {group}" for group in groups)
                     for row in inside.to_dict("records")]  # fmt: skip
            names = [f"cluster {k}, round {number}: {size}" for number, size in zip(inside.index, sizes, strict=True)]
            add_named_points(axes, inside.index.to_list(), below.tolist(), names)
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
            end = fit_rounds(axes, inside.index.to_series())
            plot.draw_diamond(
                axes, end, at_end[k], f"cluster {k}: chosen by {at_end[k]} after round {last}", color="white"
            )
        # After the last diamond, since panels share their scale and this ends its fitting.
        panels[0].set_ylim(0, None)
        keys = [Patch(color=plot.group_style(g).color, label=plot.short(group)) for g, group in enumerate(groups)]
        plot.legend(figure, [*keys, _diamond_key("chose it after the last round")], columns=2)

    alt = f"Clients by cluster over rounds. At the end: {', '.join(f'cluster {k} {n}' for k, n in at_end.items())}."
    caption = (
        "Bars: clients that trained each cluster's model in a round, coloured by their group. Diamond: clients that "
        f"chose it after the last round, from the final models; the tables count these. {drained(at_end)}"
    )
    sizes = join_words([*map(str, at_end.values())])
    if len(at_end) > MOST_CLUSTERS:
        sizes = f"{span([*at_end.values()], str)} of {sum(at_end.values())}"
    subject = "the clusters have" if len(at_end) > 1 else "the cluster has"
    title = f"After round {last} {subject} {sizes} clients"
    return plot.draw_figure("sizes", title, caption.strip(), alt, draw)


def _diamond_key(label: str) -> Line2D:
    return plot.key(label, color="white", markeredgecolor="black", marker="D", linestyle="")


def drained(at_end: Mapping[int, int]) -> str:
    """A warning of clusters that end with hardly any client; empty if there are none.

    >>> drained({0: 46, 1: 3, 2: 0})
    'Clusters that end with at most 3 clients: 1 (3), 2 (0). A model of so few can give them away more easily.'
    """
    small = ", ".join(f"{k} ({count})" for k, count in at_end.items() if count <= FEW)
    if not small:
        return ""
    return f"Clusters that end with at most {FEW} clients: {small}. A model of so few can give them away more easily."


def plot_rounds(rounds: pd.DataFrame, summary: Summary, metric: str = ACCURACY) -> NDArray[Any]:
    """Draw three axes over the rounds, in a figure of their own; clusters differ by colour and by dashes.

    Accuracy is the share of held-out examples that are right, or the mean of the run's metric; exposure is the balanced
    accuracy of the membership attack: lines are the red team's estimates, where it made any, and diamonds what was
    measured on the final models.

    Returns:
        (3,) axes: accuracy or the metric, exposure, clients.
    """
    from matplotlib import pyplot as plt  # noqa: PLC0415 - pages do without it

    evaluated = rounds[rounds["round"].isin(rounds.loc[rounds["accuracy"].notna(), "round"])]
    estimated = rounds if bool((rounds["risk"].fillna(0.5) != 0.5).any()) else rounds.assign(risk=np.nan)
    last = int(rounds["round"].max())
    with plot.use_figure_style():
        figure, axes = plt.subplots(3, 1, sharex=True, figsize=(plot.WIDTH, 6.6), layout="constrained")
        shown = ((evaluated, "accuracy"), (estimated, "risk"), (rounds, "clients"))
        for panel, (frame, column) in zip(axes, shown, strict=True):
            for curve in curves_by_cluster(frame, column):
                curve.draw(panel).set_label(curve.label)
        for k, curve in enumerate(curves_by_cluster(rounds, "risk")):
            measured = summary.by_cluster.get(k, {}).get("mia")
            if measured is not None:
                axes[1].plot([last], [measured], "D", color=curve.style.color, markeredgecolor="black", clip_on=False)
        axes[1].axhline(0.5, **plot.CHANCE_LINE)
        if metric == ACCURACY:
            axes[0].set_ylabel("accuracy (%)")
            plot.share_axis(axes[0].yaxis, symbol="")
            axes[0].set_title("held-out examples that are right", loc="left")
        else:
            axes[0].set_ylabel(metric)
            axes[0].set_title("mean over held-out examples; higher is better", loc="left")
        axes[1].set_ylabel("exposure (balanced accuracy)")
        axes[1].set_title("membership attack; chance: 0.500; diamonds: measured at the end", loc="left")
        axes[2].set_ylabel("size (clients)")
        axes[2].set_title("clients that trained the cluster's model", loc="left")
        axes[2].yaxis.set_major_locator(MaxNLocator(integer=True))
        axes[2].set_ylim(0, None)
        over_rounds(axes[2])
        figure.legend(*axes[2].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return axes
