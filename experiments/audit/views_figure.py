"""The figure of views.py: the AUC of the attack that decides, by view and defence."""

import pandas as pd
from matplotlib.figure import Figure

from shoal.data.preferences import VIEWS
from shoal.reports.plotting import CHANCE_LINE, chance_key, cluster_style, figure_files, key, legend

TITLE = "Only much noise or very few features\nhide records from the server"
NAMES = {"outsider": "outsider", "client": "another client", "server": "server"}
LINE = {"color": "#dddddd", "linewidth": 1.0, "zorder": 0}


def views_figure(summary: pd.DataFrame) -> bytes:
    """An SVG file.

    Args:
        summary: of `views.summary_of`, a row for each setting, view and group. Large marks are the minority's, small
            ones the majority's.
    """
    settings = list(summary["setting"].unique())

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for place, setting in enumerate(settings):
            axes.axhline(place, **LINE)
            for number, view in enumerate(VIEWS):
                here = (summary["setting"] == setting) & (summary["view"] == view)
                mine = summary[here].set_index("group")["auc.within"]
                style = cluster_style(number)
                for group, size in (("minority", 8.5), ("majority", 4.0)):
                    height = place + 0.2 * (number - 1)
                    axes.plot([mine[group]], [height], markersize=size, clip_on=False, **style.mark)
        axes.axvline(0.5, **CHANCE_LINE)
        axes.set_yticks(range(len(settings)), settings)
        axes.set_ylim(len(settings) - 0.4, -0.6)
        axes.set_xlim(0.48, 1.005)
        axes.set_xlabel("AUC of the strongest attack of a view")
        axes.set_title(TITLE)
        views = [key(NAMES[view], **cluster_style(number).mark) for number, view in enumerate(VIEWS)]
        sizes = [
            key("minority", color="#555555", marker="o", linestyle="", markersize=8.5),
            key("majority", color="#555555", marker="o", linestyle="", markersize=4.0),
        ]
        legend(figure, [*views, *sizes, chance_key("chance")], columns=3)

    alt = "AUC of the strongest attack of an outsider, another client and the server under each defence. " + "; ".join(
        f"{row['setting']}, {row['group']}, {row['view']} {row['auc.within']:.2f}" for _, row in summary.iterrows()
    )
    return figure_files(alt, draw, (5.2, 1.6 + 0.42 * len(settings))).svg
