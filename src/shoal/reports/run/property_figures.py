"""A run's figures of a property attack: its AUC over rounds, how updates turn, and updates as maps."""

from collections.abc import Iterable, Sequence
from math import isnan

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from shoal.reports.frames import by_cluster, column, rows
from shoal.reports.plotting import COIN, OVER, WITHIN, Look, cluster_look, legend, svg
from shoal.reports.run.property_curves import (
    drawn_of,
    early_and_all,
    half_window,
    of_control,
    rolling_mean,
    running_auc,
    spread,
)
from shoal.reports.run.round_curves import Drawing, Line, fit
from shoal.reports.run.tables import DASH

WITH, WITHOUT = Look(OVER, "", "^"), Look(WITHIN, "", "o")
"""How updates with the property and without it are drawn: by shape and by colour."""

MOST = 1200
"""Points that a panel shows; beyond, they hide each other and the page grows for nothing."""

MANY = 300
"""Points from which on they are drawn smaller."""

MEAN = "#222222"
"""The colour of rolling means."""


def auc_over_rounds(updates: pd.DataFrame) -> Drawing | None:
    """The attack's AUC on the updates up to each round, of all models and of each; None where it is never defined."""
    pooled = _course("all models", updates, Look("#000000", "-", ""))
    if pooled is None:
        return None
    clusters = dict(by_cluster(updates))
    found = (
        {k: _course(f"cluster {k}", own, cluster_look(k)) for k, own in clusters.items()} if len(clusters) > 1 else {}
    )
    lines = [pooled, *(line for line in found.values() if line is not None)]
    control = Line("shuffled labels", *of_control(updates), Look("#999999", (0, (5, 2)), ""))
    if len(control.rounds):
        lines.append(control)
    never = ", ".join(str(k) for k, line in found.items() if line is None)
    caption = (
        "How often the attacker is surer of an update with the property than of one without it, among all updates up "
        "to a round. It judges them after the last round, with all that it simulated by then; a line begins where "
        "both kinds have been seen. Grey: the same by attackers that learned from shuffled labels, a control: what "
        "is found without knowing anything."
    )
    if never:
        caption += f" The updates of cluster {never} are of one kind alone, which leaves no AUC."
    label = f"AUC of the property attack over rounds. At the end: {', '.join(line.last for line in lines)}."
    drawn = svg("property-auc", label, lambda figure: _paint_auc(figure, lines, column(updates, "round")))
    return Drawing("property-auc", "Property inference over rounds", caption, drawn)


def cosines(updates: pd.DataFrame) -> Drawing | None:
    """How alike consecutive updates of a model are, a panel a cluster; None where there are no two in a row."""
    panels = {k: own for k, own in by_cluster(updates) if not np.isnan(column(own, "cosine")).all()}
    if not panels:
        return None
    wide = 1 if len(panels) <= 4 else 2
    high = -(-len(panels) // wide)
    told = {k: mean_and_sd(own) for k, own in panels.items()}
    label = (
        f"Cosines of consecutive updates over rounds: {'; '.join(f'cluster {k} {text}' for k, text in told.items())}."
    )
    end = float(column(updates, "round").max())

    def paint(figure: Figure) -> None:
        grid = figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False)
        for spare in grid.flatten()[len(panels) :]:
            spare.set_visible(False)
        for axes, (k, own) in zip(grid.flatten(), panels.items(), strict=False):
            paint_cosines(axes, own, end)
            fit(axes, column(updates, "round"))
            axes.set_title(f"cluster {k}: {told[k]}", loc="left")
        for axes in grid.flatten()[max(0, len(panels) - wide) : len(panels)]:
            axes.set_xlabel("round")
            axes.tick_params(labelbottom=True)
        for axes in grid[:, 0]:
            axes.set_ylabel("cosine")
        legend(figure, [*kinds(updates), mean_key(end)], columns=2)

    caption = (
        "A point: the cosine of the angle between a model's aggregated update and the one before. 1: the same "
        "direction; 0: unrelated; -1: back again. Kim et al. (RAID 2023) hold that updates which keep their direction "
        f"give more away. Line: mean over {2 * half_window(end) + 1} rounds around. Above each panel: mean ± standard "
        f"deviation.{_left_out(panels.values())}"
    )
    height = max(2.6, 1.2 + 1.15 * high)
    return Drawing("property-cosine", "How updates turn", caption, svg("property-cosine", label, paint, height=height))


def maps(updates: pd.DataFrame, models: int) -> Drawing | None:
    """The updates as points by t-SNE, of the first rounds and of all; None where there were too few."""
    found = early_and_all(updates)
    if not found:
        return None
    whose = "FL, one model" if models == 1 else f"CFL, {models} models"
    told = ", ".join(f"{title}: {len(placed)}" for title, placed in found)

    def paint(figure: Figure) -> None:
        grid = figure.subplots(1, len(found), squeeze=False)[0]
        for axes, (title, placed) in zip(grid, found, strict=True):
            paint_map(axes, placed)
            axes.set_title(title)
        legend(figure, kinds(updates))

    caption = (
        "A point is an aggregated update; t-SNE puts updates near each other whose features are alike. Only "
        "neighbourhoods mean something: directions and distances have no unit. Where triangles lie apart from circles "
        f"the property is easy to tell; different models lie apart too.{_left_out(placed for _, placed in found)}"
    )
    if len(found) == 1 and found[0][0] == "all rounds":
        caption += " The first fifth of the rounds has too few updates for a map of its own."
    drawn = svg("property-maps", f"Maps of updates by t-SNE ({whose}); {told}.", paint, height=3.2)
    return Drawing("property-maps", f"Updates as a map ({whose})", caption, drawn)


def mean_and_sd(updates: pd.DataFrame, digits: int = 3) -> str:
    """Mean and standard deviation of the cosines, in words."""
    return " ± ".join(DASH if isnan(value) else f"{value:.{digits}f}" for value in spread(column(updates, "cosine")))


def paint_cosines(axes: Axes, own: pd.DataFrame, end: float) -> None:
    """One model's cosines over rounds, up to round ``end``, with their rolling mean."""
    _scatter(axes, own, ("round", "cosine"))
    played = column(own, "round")
    means = rolling_mean(played, column(own, "cosine"), half_window(end))
    axes.axhline(0, color=COIN, linewidth=1.0, linestyle=":")
    axes.plot(played, means, color=MEAN, linewidth=1.5)
    axes.set_ylim(-1.08, 1.08)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def paint_map(axes: Axes, placed: pd.DataFrame) -> None:
    """Updates at their places ``x`` and ``y``; those with the property last, so that they are seen."""
    _scatter(axes, placed, ("x", "y"))
    axes.set(xticks=[], yticks=[], xlabel="t-SNE axis 1", ylabel="t-SNE axis 2")
    axes.margins(0.06)


def _course(label: str, updates: pd.DataFrame, look: Look) -> Line | None:
    over, aucs = running_auc(column(updates, "round"), column(updates, "present") > 0, column(updates, "score"))
    return Line(label, over, aucs, look) if len(over) else None


def _paint_auc(figure: Figure, lines: Sequence[Line], rounds: np.ndarray) -> None:
    axes = figure.subplots()
    axes.axhline(0.5, color=COIN, linewidth=1.2, linestyle=":")
    for line in lines:
        alone = "o" if len(line.rounds) == 1 else ""
        axes.plot(line.rounds, line.values, color=line.look.color, linestyle=line.look.dashes, marker=alone)
    axes.set(xlabel="round", ylabel="AUC up to the round", ylim=(-0.02, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    fit(axes, rounds)
    handles = [Line2D([], [], color=each.look.color, linestyle=each.look.dashes, label=each.label) for each in lines]
    legend(figure, [*handles, Line2D([], [], color=COIN, linewidth=1.2, linestyle=":", label="coin (0.5)")])


def _scatter(axes: Axes, updates: pd.DataFrame, names: tuple[str, str]) -> None:
    """Points by kind, the same share of either, so that their densities can be compared."""
    held = column(updates, "present") > 0
    share = min(1.0, MOST / len(updates))
    few = len(updates) <= MANY
    for kind, look in ((False, WITHOUT), (True, WITH)):
        part = rows(updates, held == kind)
        part = part.iloc[drawn_of(len(part), share)]
        size = (5.5 if kind else 3.5) if few else (4.0 if kind else 2.5)
        axes.plot(
            column(part, names[0]), column(part, names[1]), linestyle="", marker=look.marker, color=look.color,
            markersize=size, alpha=0.85 if kind else 0.5, markeredgewidth=0,
        )  # fmt: skip


def _left_out(panels: Iterable[pd.DataFrame]) -> str:
    """What to say where some points are not drawn."""
    if max(len(each) for each in panels) <= MOST:
        return ""
    return f" A panel of more than {MOST:,} updates shows about as many of them, the same share of either kind."


def kinds(updates: pd.DataFrame | None = None) -> list[Line2D]:
    """Keys to the points, with how many updates there are of each kind where ``updates`` are given."""
    counts = ("", "")
    if updates is not None:
        held = int((column(updates, "present") > 0).sum())
        counts = (f" ({len(updates) - held:,})", f" ({held:,})")
    told = ((WITHOUT, "without the property"), (WITH, "with the property"))
    return [
        Line2D([], [], color=look.color, linestyle="", marker=look.marker, label=text + count)
        for (look, text), count in zip(told, counts, strict=True)
    ]


def mean_key(end: float) -> Line2D:
    """Key to the rolling means of a training up to round ``end``."""
    return Line2D([], [], color=MEAN, linewidth=1.5, label=f"mean over {2 * half_window(end) + 1} rounds")
