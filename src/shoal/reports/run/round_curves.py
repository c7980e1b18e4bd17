"""A run's figures over its rounds: accuracy, risk, and who was in which cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from shoal.reports.frames import Floats, by_cluster, column, rows
from shoal.reports.plotting import COIN, Dashes, Look, cluster_look, group_look, legend, short, svg

ESTIMATORS = {
    "shadow": "taken on shadow models, since the server holds no members",
    "federated": "counted by the clients on their own images",
    "audit": "taken on the members themselves, which only a simulator knows",
}
"""How the red team estimates risk, in words."""


@dataclass(frozen=True)
class Drawing:
    """A figure of the page.

    Args:
        name: unique in the page.
        title: what it shows.
        caption: how to read it.
        svg: the figure itself.
    """

    name: str
    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Line:
    """A course over rounds, NaN where there is nothing to show."""

    label: str
    rounds: Floats
    values: Floats
    look: Look

    @property
    def last(self) -> str:
        """Where it ends, in words."""
        known = self.values[~np.isnan(self.values)]
        return f"{self.label} {known[-1]:.3f}" if len(known) else f"{self.label} unknown"


def accuracy_by_cluster(rounds: pd.DataFrame, groups: Sequence[str]) -> Drawing | None:
    """Each model's accuracy on test examples, mixed as the groups of those who trained it; None if never measured."""
    measured = _measured(rounds, groups)
    lines = _by_cluster(measured, "accuracy")
    return _accuracy("accuracy-by-cluster", "Accuracy by cluster", lines, (
        "Share of held-out images that each cluster's model gets right, on the mix of groups that trained it in that "
        "round. A line breaks where nobody chose the cluster."
    ))  # fmt: skip


def accuracy_by_group(rounds: pd.DataFrame, groups: Sequence[str]) -> Drawing | None:
    """Each group's accuracy with the models its clients chose; None if never measured."""
    measured = _measured(rounds, groups)
    lines = []
    for g, group in enumerate(groups):
        count, right = f"clients.{group}", f"accuracy.{group}"
        if count in measured and right in measured:
            lines.append(_weighted(measured, right, count, group_look(g), short(group)))
    return _accuracy("accuracy-by-group", "Accuracy by group", lines, (
        "Share of held-out images of a group that are right, each client with the model it chose in that round."
    ))  # fmt: skip


def fit(axes: Axes, rounds: Floats) -> float:
    """Limit the axis to the rounds there are; returns its right end."""
    end = float(rounds.max()) + max(0.5, 0.02 * len(rounds))
    axes.set_xlim(float(rounds.min()) - 0.5, end)
    return end


def risk(rounds: pd.DataFrame, figures: Mapping, *, estimated: bool, estimator: str) -> Drawing | None:
    """The red team's estimates, and what attacking the final models measured; None if there is neither."""
    lines = _by_cluster(rounds, "risk")
    measured = [float(figures.get(f"clusters.{k}.mia", np.nan)) for k in range(len(lines))]
    if not estimated and np.isnan(measured).all():
        return None
    told = [f"cluster {k} measured {value:.3f}" for k, value in enumerate(measured) if not np.isnan(value)]
    label = (
        f"Risk by cluster over rounds. At the end: {'; '.join([*(line.last for line in lines if estimated), *told])}."
    )
    drawn = svg("risk", label, lambda figure: _paint_risk(figure, lines, measured, estimated))
    steps = (
        "Steps: the red team's estimate of how often an attacker tells a model's training images from others, "
        f"{ESTIMATORS[estimator]}; 0.5 before the first."
        if estimated
        else "The red team estimated no risk during this run."
    )
    return Drawing("risk", "Risk of each model", f"{steps} Diamonds: what attacking the final model measured.", drawn)


def _measured(rounds: pd.DataFrame, groups: Sequence[str]) -> pd.DataFrame:
    """The rows of rounds with an evaluation: in the others nothing breaks a line."""
    names = ["accuracy", *(f"accuracy.{group}" for group in groups)]
    known = np.any([~np.isnan(column(rounds, name)) for name in names], axis=0)
    played = column(rounds, "round")
    return rows(rounds, np.isin(played, played[known]))


def _by_cluster(rounds: pd.DataFrame, name: str) -> list[Line]:
    return [
        Line(f"cluster {k}", column(own, "round"), column(own, name), cluster_look(k)) for k, own in by_cluster(rounds)
    ]


def _weighted(rounds: pd.DataFrame, name: str, weight: str, look: Look, label: str) -> Line:
    """The mean of a column over clusters, weighted by another, in each round."""
    played, at = np.unique(column(rounds, "round"), return_inverse=True)
    weights = np.nan_to_num(column(rounds, weight))
    values = np.where(weights > 0, column(rounds, name), 0.0)
    total = np.bincount(at, weights)
    sums = np.bincount(at, weights * values)
    return Line(label, played, np.divide(sums, total, out=np.full(len(played), np.nan), where=total > 0), look)


def _accuracy(name: str, title: str, lines: Sequence[Line], caption: str) -> Drawing | None:
    if all(np.isnan(line.values).all() for line in lines):
        return None
    label = f"{title} over rounds. At the end: {', '.join(line.last for line in lines)}."

    def paint(figure: Figure) -> None:
        axes = _over_rounds(figure, "accuracy on held-out images")
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        for line in lines:
            _draw(axes, line)
        fit(axes, lines[0].rounds)
        legend(figure, [_key(line, line.look.dashes) for line in lines])

    return Drawing(name, title, caption, svg(name, label, paint))


def _over_rounds(figure: Figure, what: str) -> Axes:
    axes = figure.subplots()
    axes.set_xlabel("round")
    axes.set_ylabel(what)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return axes


def _key(line: Line, dashes: Dashes, marker: str = "") -> Line2D:
    return Line2D([], [], color=line.look.color, linestyle=dashes, marker=marker, label=line.label)


def _draw(axes: Axes, line: Line) -> None:
    """A line, with a dot where a value has no neighbours and no line would show it."""
    known = np.concatenate([[False], ~np.isnan(line.values), [False]])
    alone = known[1:-1] & ~known[:-2] & ~known[2:]
    axes.plot(
        line.rounds, line.values, color=line.look.color, linestyle=line.look.dashes, label=line.label,
        marker="o", markersize=4, markevery=alone.tolist(),
    )  # fmt: skip


def _paint_risk(figure: Figure, lines: Sequence[Line], measured: Sequence[float], estimated: bool) -> None:
    axes = _over_rounds(figure, "balanced accuracy of the attack")
    axes.axhline(0.5, color=COIN, linewidth=1.2, linestyle=":")
    handles = []
    beyond = fit(axes, lines[0].rounds)
    for line, value in zip(lines, measured, strict=True):
        color, dashes = line.look.color, line.look.dashes
        if estimated:
            over, values = np.append(line.rounds, beyond), np.append(line.values, line.values[-1:])
            axes.step(over, values, where="post", color=color, linestyle=dashes)
        axes.plot(
            [beyond], [value], marker="D", markersize=7, color=color, markeredgecolor="black", clip_on=False, zorder=5
        )
        handles.append(_key(line, dashes) if estimated else _key(line, "", "D"))
    handles.append(
        Line2D([], [], color="white", marker="D", linestyle="", markeredgecolor="black", label="measured at the end")
    )
    handles.append(Line2D([], [], color=COIN, linewidth=1.2, linestyle=":", label="coin (0.5)"))
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.45), max(high, 0.6))
    legend(figure, handles, columns=2)
