"""The section of a run's page on its coordinator: what it asked of which cluster, and whether that was enough."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from shoal.control import COLUMN, Coordinator
from shoal.core.formats import capitalized, decimal, percent
from shoal.reports.curves import Curve, fit_rounds, over_rounds
from shoal.reports.plotting import CHANCE_LINE, Figure, draw_figure, legend
from shoal.reports.run.coordinator_history import directive_name, history
from shoal.reports.run.run_curves import curves_by_cluster, guess_key

TARGET_LINE: Any = {"color": "#222222", "linewidth": 1.0, "linestyle": "-"}
"""The line of the share that a coordinator allows."""


@dataclass(frozen=True)
class CoordinatorSection:
    """The section: its paragraphs, and its figure."""

    paragraphs: tuple[str, ...]
    figure: Figure


@dataclass(frozen=True, eq=False)
class _Panel:
    """Axes of the figure: what they show and its unit, the name of the axis, and one curve per cluster."""

    title: str
    axis: str
    curves: Sequence[Curve]


def coordinator_section(coordinator: Coordinator, rounds: pd.DataFrame) -> CoordinatorSection | None:
    """The section on a run's coordinator; None where rounds.csv says nothing of it.

    Args:
        coordinator: of the run; its knobs need not be known.
        rounds: one row per round and cluster, as in rounds.csv.
    """
    if "over_limit" not in rounds:
        return None
    return CoordinatorSection((_how(coordinator), *history(rounds, coordinator)), _figure(coordinator, rounds))


def _how(coordinator: Coordinator) -> str:
    """How it steers, in one sentence or two."""
    sentences = [
        "After each estimate of risk every client says whether its model's risk is above what it tolerates; where more "
        f"than {percent(coordinator.target)} of a model's members do, the coordinator asks their cluster for stronger "
        f"defences, the cheapest first, as far as they are thought to cost at most {decimal(coordinator.max_cost)} of "
        "held-out accuracy."
    ]
    if coordinator.vote_epsilon is not None:
        sentences.append(
            f"Answers are randomised (epsilon {coordinator.vote_epsilon:g} for each), so shares are estimates."
        )
    return " ".join(sentences)


def _figure(coordinator: Coordinator, rounds: pd.DataFrame) -> Figure:
    """Risk, shares over the limit, and each directive that was ever given, over rounds."""
    told = rounds.assign(told=0.5 + coordinator.audit_factor * (rounds["risk"] - 0.5))
    given = [
        column
        for column in map(str, rounds)
        if column.startswith(COLUMN) and bool((rounds[column].fillna(0) != 0).any())
    ]
    panels = [
        _Panel("Risk as told to clients: balanced accuracy of the attack", "risk", curves_by_cluster(told, "told")),
        _Panel("Share of the members who are over their limit", "members", curves_by_cluster(rounds, "over_limit")),
    ]
    for column in given:
        name = directive_name(column)
        price = name == "price"
        title = "Price of the model, in nats of loss" if price else f"{capitalized(name)}: share of its full strength"
        panels.append(_Panel(title, "price" if price else "strength", curves_by_cluster(rounds, column)))
    target = f"target ({percent(coordinator.target)})"

    def draw(figure: MplFigure) -> None:
        figure.set_figheight(1.3 + 1.35 * len(panels))
        cells = figure.subplots(len(panels), 1, sharex=True)
        for axes, panel in zip(cells, panels, strict=True):
            axes.set_title(panel.title, loc="left")
            _steps(axes, panel.curves, rounds["round"])
            axes.set_ylabel(panel.axis)
            if panel.axis == "strength":
                axes.set_ylim(-0.05, 1.05)
        low, high = cells[0].get_ylim()
        cells[0].axhline(0.5, **CHANCE_LINE)
        cells[0].set_ylim(min(low, 0.45), max(high, 0.6))
        cells[1].axhline(coordinator.target, **TARGET_LINE)
        cells[1].set_ylim(-0.05, 1.05)
        cells[1].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        over_rounds(cells[-1])
        figure.align_ylabels(cells)
        keys = [*(curve.key() for curve in panels[0].curves), guess_key(), Line2D([], [], **TARGET_LINE, label=target)]
        legend(figure, keys, columns=2)

    ends = [f"{panel.title}: {', '.join(curve.end for curve in panel.curves)}" for panel in panels]
    return draw_figure(
        "coordinator",
        "What the coordinator saw and asked for",
        _caption(coordinator, rounds),
        f"Over rounds, by cluster. At the end: {'; '.join(ends)}.",
        draw,
    )


def _caption(coordinator: Coordinator, rounds: pd.DataFrame) -> str:
    factor = coordinator.audit_factor
    times = "" if factor == 1 else f", its advantage over guessing times {factor:g}"
    sentences = [
        f"Top: the red team's estimate{times}. Below: the share of the members who say that it is too high; the line "
        "is the target. Then what each cluster was asked for, which holds from the next round on; 1 is the strength "
        "that the configuration gives."
    ]
    never = [
        column for column in map(str, rounds) if column.startswith(COLUMN) and not (rounds[column].fillna(0) != 0).any()
    ]
    if never:
        sentences.append(f"Never asked for: {', '.join(map(directive_name, never))}.")
    return " ".join(sentences)


def _steps(axes: Axes, curves: Sequence[Curve], rounds: pd.Series) -> None:
    """Draw values that hold until the next one."""
    end = fit_rounds(axes, rounds)
    for curve in curves:
        over, values = np.append(curve.values.index, end), np.append(curve.values, curve.values.iloc[-1])
        axes.step(over, values, where="post", color=curve.style.color, linestyle=curve.style.dashes)
        curve.name_values(axes)
