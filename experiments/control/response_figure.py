"""The figure of a response: risk, strengths and held-out accuracy over rounds, with the event marked."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from shoal.reports.plotting import CHANCE_LINE, LineStyle, cluster_style, figure_files, legend

CLUSTERS = ("larger", "smaller")

PANELS = (
    ("risk", "risk (balanced accuracy)", ("risk",)),
    ("strength", "strength of knob", ("directive.augmentation", "directive.pooling")),
    ("share", "members over limit (share)", ("over_limit",)),
    ("accuracy", "held-out accuracy", ("heldout_accuracy",)),
)
"""A row of the figure each: its name, the label of its axis with the unit, and the columns that it shows."""


def style_of(column: str) -> LineStyle:
    """Of a column; the two knobs differ by colour and dashes, and what is measured is nearly black."""
    knobs = ("directive.augmentation", "directive.pooling")
    return cluster_style(knobs.index(column)) if column in knobs else LineStyle("#222222", "-", "o")


def response_figure(rows: pd.DataFrame, event: int, what: str, limit: float) -> bytes:
    """An SVG file.

    Args:
        rows: of `step_response.run`, of all seeds.
        event: the round after which it happened.
        what: what happened, in words.
        limit: the strictest limit of a client after the event.
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(PANELS), len(CLUSTERS), sharex=True, sharey="row")
        for column, cluster in enumerate(CLUSTERS):
            mine = rows[rows["cluster"] == cluster]
            for row, (name, label, columns) in enumerate(PANELS):
                panel = axes[row, column]
                for shown in columns:
                    wide = mine.pivot_table(index="round", columns="seed", values=shown)
                    # A directive holds from the estimate that gave it to the next one.
                    steps = "steps-post" if name == "strength" else "default"
                    style = style_of(shown)
                    panel.plot(wide.index, wide, color=style.color, linewidth=0.7, alpha=0.55, drawstyle=steps)
                    mean = wide.mean(axis=1)
                    panel.plot(
                        mean.index, mean, color=style.color, linestyle=style.dashes, linewidth=2.2, drawstyle=steps
                    )
                panel.axvline(event, color="#888888", linewidth=3.0, zorder=0.5)
                if name == "risk":
                    panel.axhline(limit, **CHANCE_LINE)
                if name in ("strength", "share"):
                    panel.set_ylim(-0.05, 1.05)
                if column == 0:
                    panel.set_ylabel(label)
            axes[0, column].set_title(f"{cluster} cluster")
            axes[-1, column].set_xlabel("round")
        knobs = {name: style_of(name) for name in PANELS[1][2]}
        legend(figure, [
            Line2D([], [], color=style_of("risk").color, label="risk, share, accuracy"),
            *(
                Line2D([], [], color=style.color, linestyle=style.dashes, label=name.partition(".")[2])
                for name, style in knobs.items()
            ),
            Line2D([], [], color="#555555", linewidth=0.7, label="thin: one seed"),
            Line2D([], [], color="#888888", linewidth=3.0, label=what),
            Line2D([], [], label=f"strictest limit, {limit:g}", **CHANCE_LINE),
        ], columns=3)  # fmt: skip

    alt = f"Risk, strengths, share over the limit and held-out accuracy of two clusters over rounds; {what} at {event}."
    return figure_files(alt, draw, (8.2, 9.6)).svg
