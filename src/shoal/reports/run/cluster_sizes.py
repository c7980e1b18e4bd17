"""A run's figure of who was in which cluster, so that a drained one is seen."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from shoal.reports.frames import by_cluster, column
from shoal.reports.plotting import HEIGHT, group_look, legend, short, svg
from shoal.reports.run.round_curves import Drawing, fit

FEW = 3
"""Clients of a cluster that has all but drained."""


def sizes(rounds: pd.DataFrame, groups: Sequence[str], figures: Mapping) -> Drawing:
    """How many clients of each group trained each cluster's model, a panel a cluster."""
    panels = dict(by_cluster(rounds))
    at_end = {k: int(figures.get(f"clusters.{k}.clients", column(own, "clients")[-1])) for k, own in panels.items()}
    columns = 1 if len(panels) <= 4 else 2
    lines = -(-len(panels) // columns)
    label = f"Clients by cluster over rounds. At the end: {', '.join(f'cluster {k} {n}' for k, n in at_end.items())}."
    drawn = svg(
        "sizes",
        label,
        lambda figure: _paint_sizes(figure, panels, groups, at_end, (lines, columns)),
        height=HEIGHT if lines <= 2 else 1.2 + 1.2 * lines,
    )
    caption = "Clients that trained each cluster's model in a round, coloured by their group. " + drained(at_end)
    return Drawing("sizes", "Cluster sizes", caption.strip(), drawn)


def drained(at_end: Mapping[int, int]) -> str:
    """What to know about clusters that end with hardly anybody in them; empty if there are none.

    >>> drained({0: 46, 1: 3, 2: 0})
    'Cluster 1 ends with 3 clients: a model of so few can give them away more easily. Nobody ends in cluster 2.'
    """
    few = {k: count for k, count in at_end.items() if 0 < count <= FEW}
    empty = [str(k) for k, count in at_end.items() if count == 0]
    told = []
    if len(few) == 1:
        ((k, count),) = few.items()
        who = "one client" if count == 1 else f"{count} clients"
        told.append(f"Cluster {k} ends with {who}: a model of so few can give them away more easily.")
    elif few:
        each = ", ".join(map(str, few))
        told.append(f"Clusters {each} end with at most {FEW} clients: models of so few can give them away more easily.")
    if empty:
        told.append(f"Nobody ends in cluster {', '.join(empty)}.")
    return " ".join(told)


def _paint_sizes(
    figure: Figure,
    panels: Mapping[int, pd.DataFrame],
    groups: Sequence[str],
    at_end: Mapping[int, int],
    grid: tuple[int, int],
) -> None:
    cells = figure.subplots(*grid, sharex=True, sharey=True, squeeze=False).flatten()
    for spare in cells[len(panels) :]:
        spare.set_visible(False)
    for axes, (k, own) in zip(cells, panels.items(), strict=False):
        _stack(axes, own, groups)
        axes.set_title(f"cluster {k}: ends with {at_end[k]}", loc="left")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        axes.set_ylim(0, None)
        fit(axes, column(own, "round"))
    for axes in cells[max(0, len(panels) - grid[1]) : len(panels)]:
        axes.set_xlabel("round")
        axes.tick_params(labelbottom=True)
    for axes in cells[:: grid[1]]:
        axes.set_ylabel("clients")
    legend(figure, [Patch(color=group_look(g).color, label=short(group)) for g, group in enumerate(groups)])


def _stack(axes: Axes, own: pd.DataFrame, groups: Sequence[str]) -> None:
    rounds = column(own, "round")
    edges = np.append(rounds - 0.5, rounds[-1] + 0.5)
    below = np.zeros(len(own))
    for g, group in enumerate(groups):
        top = below + np.nan_to_num(column(own, f"clients.{group}"))
        axes.stairs(top, edges, baseline=below, fill=True, color=group_look(g).color)
        below = top
