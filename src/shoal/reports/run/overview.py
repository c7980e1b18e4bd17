"""A run at a glance, for a notebook: accuracy, exposure and size of each cluster by round, as axes of matplotlib."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from shoal.core.formats import ACCURACY
from shoal.metrics.summary import Summary
from shoal.reports.curves import over_rounds
from shoal.reports.plotting import CHANCE_LINE, WIDTH, styled
from shoal.reports.run.run_curves import curves_by_cluster


def plot_rounds(rounds: pd.DataFrame, summary: Summary, metric: str = ACCURACY) -> NDArray[Any]:
    """Draw three axes over the rounds, in a figure of their own; clusters differ by colour and by dashes.

    Accuracy is the share of held-out examples that are right, or the mean of the run's metric; exposure is the balanced
    accuracy of the membership attack: lines are the red team's estimates, where it made any, and diamonds what was
    measured on the final models.

    Args:
        rounds: the rows of `rounds.csv`.
        summary: of the run.
        metric: its name.

    Returns:
        (3,) axes: accuracy or the metric, exposure, clients.
    """
    evaluated = rounds[rounds["round"].isin(rounds.loc[rounds["accuracy"].notna(), "round"])]
    estimated = rounds if bool((rounds["risk"].fillna(0.5) != 0.5).any()) else rounds.assign(risk=np.nan)
    last = int(rounds["round"].max())
    with styled():
        figure, axes = plt.subplots(3, 1, sharex=True, figsize=(WIDTH, 6.6), layout="constrained")
        for panel, frame, column in zip(
            axes, (evaluated, estimated, rounds), ("accuracy", "risk", "clients"), strict=True
        ):
            for curve in curves_by_cluster(frame, column):
                curve.draw(panel).set_label(curve.label)
        for k, curve in enumerate(curves_by_cluster(rounds, "risk")):
            measured = summary.by_cluster.get(k, {}).get("mia")
            if measured is not None:
                axes[1].plot([last], [measured], "D", color=curve.style.color, markeredgecolor="black", clip_on=False)
        axes[1].axhline(0.5, **CHANCE_LINE)
        if metric == ACCURACY:
            axes[0].set_ylabel("accuracy (%)")
            axes[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
            axes[0].set_title("held-out examples that are right", loc="left")
        else:
            axes[0].set_ylabel(metric)
            axes[0].set_title("mean over held-out examples; higher is better", loc="left")
        axes[1].set_ylabel("exposure (balanced accuracy)")
        axes[1].set_title("membership attack; 0.5: guessing; diamonds: measured at the end", loc="left")
        axes[2].set_ylabel("size (clients)")
        axes[2].set_title("clients that trained the cluster's model", loc="left")
        axes[2].yaxis.set_major_locator(MaxNLocator(integer=True))
        axes[2].set_ylim(0, None)
        over_rounds(axes[2])
        figure.legend(*axes[2].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return axes
