"""A run's figures of who is exposed: limits against measured exposure, and the attack's ROC curves."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from shoal.reports.frames import Floats, column, of_group, rows
from shoal.reports.plotting import COIN, OVER, WITHIN, Dashes, group_look, legend, short, svg
from shoal.reports.run.round_curves import Drawing

Curve = tuple[Floats, Floats]
"""False and true positive rates."""

SMALLEST = 1e-4
"""The smallest rate on the axes of the ROC figure; held-out sets tell nothing about smaller ones."""

DASHED: Dashes = (0, (4, 2))
"""Curves with non-members from the whole population."""


def violations(clients: pd.DataFrame, groups: Sequence[str]) -> Drawing | None:
    """Each client's limit against what was measured on its model; None if nothing was measured."""
    known = rows(clients, ~np.isnan(column(clients, "mia") + column(clients, "threshold")))
    if known.empty:
        return None
    over = int((column(known, "violated") > 0).sum())
    label = f"Limits against exposure of {len(known)} clients; {over} are over their limit."
    drawn = svg("violations", label, lambda figure: _paint_violations(figure, known, groups))
    caption = (
        "A dot is a client. Across: the accuracy of the attack that it tolerates (its threshold). Up: the accuracy "
        "measured on the model it chose; clients of one cluster lie on a level. In the shaded part the attack is "
        "better than the client tolerates."
    )
    return Drawing("violations", "Whose limit is exceeded", caption, drawn)


def roc_curves(roc: pd.DataFrame, groups: Sequence[str]) -> Drawing | None:
    """The attack's ROC curves by group, both axes logarithmic; None if there is none."""
    curves: dict[tuple[int, str], Curve] = {}
    for g, group in enumerate(groups):
        for kind in ("group", "population"):
            wanted = of_group(roc, group) & np.asarray(roc["non_members"] == kind, dtype=bool)
            curve = rows(roc, wanted & ~np.isnan(column(roc, "fpr") + column(roc, "tpr")))
            if len(curve):
                curves[g, kind] = column(curve, "fpr"), column(curve, "tpr")
    if not curves:
        return None
    label = (
        f"ROC curves of the attack on logarithmic axes for {', '.join(dict.fromkeys(groups[g] for g, _ in curves))}."
    )
    drawn = svg("roc", label, lambda figure: _paint_roc(figure, curves, groups))
    caption = (
        "Of the training examples, the share that the attack recognises (up), where it takes only so many of the "
        "others for training examples (across). The left end matters most: a curve above the diagonal there names "
        "members with few mistakes. Solid: others from the same group. Dashed: others from the whole population. "
        "A curve begins where the attack recognises its first member."
    )
    return Drawing("roc", "What the attack recognises", caption, drawn)


def _paint_violations(figure: Figure, known: pd.DataFrame, groups: Sequence[str]) -> None:
    limits, found = column(known, "threshold"), column(known, "mia")
    broken = column(known, "violated") > 0
    x = min(0.5, float(limits.min())) - 0.01, float(limits.max()) + 0.01
    y = min(0.48, float(found.min()) - 0.02), max(x[1], float(found.max()) + 0.02)
    axes = figure.subplots()
    axes.fill_between(x, x, [y[1]] * 2, color=OVER, alpha=0.12, linewidth=0)
    axes.plot(x, x, color="#444444", linewidth=1.2)
    # The largest group first, so that it hides nobody.
    for g, group in sorted(enumerate(groups), key=lambda each: -of_group(known, each[1]).sum()):
        for over, color in ((False, WITHIN), (True, OVER)):
            here = of_group(known, group) & (broken == over)
            axes.scatter(
                limits[here], found[here], s=46, marker=group_look(g).marker, color=color, alpha=0.75,
                edgecolors="white", linewidths=0.6,
            )  # fmt: skip
    axes.set_xlim(*x)
    axes.set_ylim(*y)
    axes.text(0.03, 0.95, "over the limit", transform=axes.transAxes, color="#8a3b00", va="top")
    axes.set_xlabel("attack accuracy the client tolerates")
    axes.set_ylabel("attack accuracy on its model")
    shapes = [
        Line2D([], [], color="#555555", marker=group_look(g).marker, linestyle="", label=short(group))
        for g, group in enumerate(groups)
    ]
    colors = [
        Line2D([], [], color=color, marker="o", markersize=8, linestyle="", label=label)
        for color, label in ((WITHIN, "within its limit"), (OVER, "over its limit"))
    ]
    legend(figure, [*shapes, *colors], columns=2 if len(shapes) <= 2 else 3)


def _paint_roc(figure: Figure, curves: Mapping[tuple[int, str], Curve], groups: Sequence[str]) -> None:
    positive = np.concatenate([rates[rates > 0] for curve in curves.values() for rates in curve])
    smallest = min(0.1, positive.min(initial=0.1))
    low = max(SMALLEST, 10 ** np.floor(np.log10(smallest)))
    axes = figure.subplots()
    axes.plot([low, 1], [low, 1], color=COIN, linewidth=1.2, linestyle=":")
    for (g, kind), (fpr, tpr) in curves.items():
        seen = tpr > 0
        dashes, width = ("-", 2.0) if kind == "group" else (DASHED, 1.4)
        across, up = np.maximum(fpr[seen], low), np.maximum(tpr[seen], low)
        axes.plot(across, up, color=group_look(g).color, linestyle=dashes, linewidth=width)
    axes.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10))
        axis.set_major_formatter(FuncFormatter(lambda rate, _: f"{100 * rate:g} %"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    handles = [
        Line2D([], [], color=group_look(g).color, label=short(groups[g])) for g in dict.fromkeys(g for g, _ in curves)
    ]
    grey = "#444444"
    handles.append(Line2D([], [], color=grey, label="others: same group"))
    handles.append(Line2D([], [], color=grey, linestyle=DASHED, linewidth=1.4, label="others: population"))
    handles.append(Line2D([], [], color=COIN, linestyle=":", linewidth=1.2, label="coin"))
    legend(figure, handles, columns=2)
