"""A run's figure of the clients in each cluster, where a drained cluster shows."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MplFigure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from shoal.reports.plotting import Figure, draw_figure, group_style, legend, short
from shoal.reports.run.round_curves import fit_rounds, round_panels

FEW = 3
"""Clients of a cluster that has all but drained."""


def cluster_sizes(rounds: pd.DataFrame, groups: Sequence[str], at_end: Mapping[int, int]) -> Figure:
    """The clients of each group that trained each cluster's model, one panel per cluster.

    Args:
        rounds: one row per round and cluster.
        groups: those with clients.
        at_end: clients of each cluster after the last round.
    """

    def draw(figure: MplFigure) -> None:
        panels = round_panels(figure, [f"cluster {k}: ends with {n}" for k, n in at_end.items()], "clients")
        for axes, k in zip(panels, at_end, strict=True):
            own = rounds[rounds["cluster"] == k].set_index("round")
            edges, below = np.append(own.index - 0.5, own.index[-1] + 0.5), np.zeros(len(own))
            for g, group in enumerate(groups):
                top = below + own[f"clients.{group}"].to_numpy()
                axes.stairs(top, edges, baseline=below, fill=True, color=group_style(g).color)
                below = top
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
            axes.set_ylim(0, None)
            fit_rounds(axes, own.index.to_series())
        legend(figure, [Patch(color=group_style(g).color, label=short(group)) for g, group in enumerate(groups)])

    alt = f"Clients by cluster over rounds. At the end: {', '.join(f'cluster {k} {n}' for k, n in at_end.items())}."
    caption = "Clients that trained each cluster's model in a round, coloured by their group. " + drained(at_end)
    return draw_figure("sizes", "Cluster sizes", caption.strip(), alt, draw)


def drained(at_end: Mapping[int, int]) -> str:
    """A warning of clusters that end with hardly any client; empty if there are none.

    >>> drained({0: 46, 1: 3, 2: 0})
    'Clusters that end with at most 3 clients: 1 (3), 2 (0). A model of so few can give them away more easily.'
    """
    small = ", ".join(f"{k} ({count})" for k, count in at_end.items() if count <= FEW)
    warning = (
        f"Clusters that end with at most {FEW} clients: {small}. A model of so few can give them away more easily."
    )
    return warning if small else ""
