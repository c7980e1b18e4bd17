"""A run's figures of exposure: limits against measured exposure, and the attack's ROC curves."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MplFigure

from shoal.core.formats import decimal, percent
from shoal.reports import plotting as plot
from shoal.reports.curves import MOST_NAMED, by_name, evenly
from shoal.reports.plotting import MOST, add_named_points, name_points
from shoal.reports.run.run_view import EXCEEDED, UNCERTAIN, WITHIN_LIMIT

SMALLEST = 1e-4
"""The smallest rate on the axes of the ROC figure; held-out sets are too small for less."""

KINDS: Mapping[str, Any] = {
    "group": {"linestyle": "-", "linewidth": 2.0},
    "population": {"linestyle": (0, (4, 2)), "linewidth": 1.4},
}
"""How the curves are drawn, by where their non-members are from."""

_DARK = "#444444"

STATES = (
    (WITHIN_LIMIT, plot.WITHIN, "within its limit"),
    (UNCERTAIN, plot.UNSURE, "above, not certain"),
    (EXCEEDED, plot.OVER, "over its limit"),
)
"""How a client is drawn, by what can be said of its limit."""


def violations(clients: pd.DataFrame, groups: Sequence[str]) -> plot.Figure | None:
    """Each client's limit against the measured exposure of its models; None if nothing was measured.

    ``clients`` has the columns of `with_limits`.
    """
    judged = clients.dropna(subset=["exposure", "threshold"])
    if judged.empty:
        return None
    over, uncertain = int(judged["over"].sum()), int((judged["limit"] == UNCERTAIN).sum())
    states = [(color, label) for limit, color, label in STATES if limit != UNCERTAIN or uncertain]

    def draw(figure: MplFigure) -> None:
        limits, exposure = judged["threshold"], judged["exposure"]
        x = min(0.5, limits.min()) - 0.01, limits.max() + 0.01
        y = min(0.48, exposure.min() - 0.02), max(x[1], exposure.max() + 0.02)
        axes = figure.subplots()
        axes.fill_between(x, x, [y[1]] * 2, color=plot.OVER, alpha=0.12, linewidth=0)
        axes.plot(x, x, color=_DARK, linewidth=1.2)
        # The largest group first, so that it hides no other.
        for group in sorted(groups, key=lambda name: -(judged["group"] == name).sum()):
            for limit, color, _ in STATES:
                here = (judged["group"] == group) & (judged["limit"] == limit)
                marker = plot.group_style(groups.index(group)).marker
                dots = axes.scatter(
                    limits[here], exposure[here], s=46, marker=marker, color=color, alpha=0.75, edgecolors="white",
                    linewidths=0.6,
                )  # fmt: skip
                name_points(
                    dots, [_name(row) for row in judged[here].to_dict("records")] if len(judged) <= MOST else []
                )
        axes.text(0.03, 0.95, "over the limit", transform=axes.transAxes, color="#8a3b00", va="top")
        axes.set(xlim=x, ylim=y, xlabel="attack accuracy the client tolerates", ylabel="attack accuracy on its model")
        shapes = [(plot.group_style(g).marker, "#555555", plot.short(group)) for g, group in enumerate(groups)]
        marks = [*shapes, *(("o", color, label) for color, label in states)]
        keys = [plot.key(label, linestyle="", marker=marker, color=color) for marker, color, label in marks]
        plot.legend(figure, keys, columns=2 if len(shapes) <= 2 else 3)

    caption = (
        "A dot is a client. Across: the accuracy of the attack that it tolerates (its threshold). Up: its exposure, "
        "the accuracy measured on its models; clients with the same models lie on one level. In the shaded part the "
        "attack is better than the client tolerates."
    )
    alt = f"Limits against exposure of {len(judged)} clients; {over} are over their limit."
    if uncertain:
        caption += " Orange: above the limit by the point estimate, but not at 95 % confidence."
        alt += f" {uncertain} more are above it by the point estimate alone."
    return plot.draw_figure("violations", _limits_title(judged, groups), caption, alt, draw)


def _limits_title(judged: pd.DataFrame, groups: Sequence[str]) -> str:
    """How many limits are exceeded for certain, and in which groups."""
    sizes = {name: int((judged["group"] == name).sum()) for name in groups}
    over = {name: int(judged.loc[judged["group"] == name, "over"].sum()) for name in groups}
    certain = sum(over.values())
    title = f"{certain or 'None'} of {len(judged)} limits {'are' if certain > 1 else 'is'} exceeded"
    where = [f"{many} of {sizes[name]} in {name}" for name, many in over.items() if many][:MOST_NAMED]
    return f"{title} at 95 % confidence, by the run's attack{': ' * bool(where)}{', '.join(where)}"


def _name(client: Mapping[Hashable, Any]) -> str:
    """A client and its numbers, in words."""
    exposure = f"exposure {decimal(client['exposure'])} by {client['attack']}, limit {decimal(client['threshold'])}"
    return f"client {client['client']} ({client['group']}): {exposure}"


def roc_figure(roc: pd.DataFrame, groups: Sequence[str], *, configured: bool = False) -> plot.Figure | None:
    """The attack's ROC curves by group, both axes logarithmic; None if there is none.

    ``configured`` says that it is the configured attack, where a page is about others too.
    """
    curves = roc.dropna(subset=["fpr", "tpr"])
    curves = curves[curves["group"].isin(groups) & curves["non_members"].isin(KINDS)]
    if curves.empty:
        return None
    measured = [group for group in groups if (curves["group"] == group).any()]

    def draw(figure: MplFigure) -> None:
        rates = curves[["fpr", "tpr"]].to_numpy()
        low = max(SMALLEST, 10 ** np.floor(np.log10(rates[rates > 0].min(initial=0.1))))
        axes = figure.subplots()
        axes.plot([low, 1], [low, 1], **plot.CHANCE_LINE)
        for group in measured:
            for kind, line in KINDS.items():
                here = (curves["group"] == group) & (curves["non_members"] == kind) & (curves["tpr"] > 0)
                fpr, tpr = (curves.loc[here, rate].clip(lower=low) for rate in ("fpr", "tpr"))
                axes.plot(fpr, tpr, color=plot.group_style(groups.index(group)).color, **line)
                points = evenly(len(fpr))
                fpr, tpr = fpr.iloc[points].tolist(), tpr.iloc[points].tolist()
                name = f"{group}, others: {kind}"
                texts = [f"{name}, {percent(t)} at {percent(f)} FPR" for f, t in zip(fpr, tpr, strict=True)]
                add_named_points(axes, fpr, tpr, texts)
        axes.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1))
        plot.log_percent(axes.xaxis)
        plot.log_percent(axes.yaxis)
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        keys = [plot.key(plot.short(group), color=plot.group_style(groups.index(group)).color) for group in measured]
        keys += [plot.key(f"others: {kind}", color=_DARK, **line) for kind, line in KINDS.items()]
        plot.legend(figure, [*keys, plot.chance_key("chance")], columns=2)

    caption = (
        "Of the training examples, the share that the attack recognises (up), where it takes only so many of the "
        "others for training examples (across). The left end matters most: a curve above the diagonal there names "
        "members with few mistakes. Solid: others from the same group. Dashed: others from the whole population. "
        "A curve begins where the attack recognises its first member; left of the rate of a single mistake it is flat: "
        "what is recognised without any."
    )
    if configured:
        caption += " It is the configured attack, not the one that decides."
    alt = f"ROC curves of the attack on logarithmic axes for {', '.join(measured)}."
    areas = {group: _area(curves[curves["group"] == group]) for group in measured}
    which = "configured" if configured else "run's"
    title = f"The {which} attack has AUC {by_name(areas)}; chance is 0.5"
    return plot.draw_figure("roc", title, caption, alt, draw)


def _area(curves: pd.DataFrame) -> float:
    """The area under a group's ROC curve against its own non-members, or against those there are."""
    own = curves[curves["non_members"] == "group"] if (curves["non_members"] == "group").any() else curves
    return float(np.trapezoid(own["tpr"], own["fpr"]))
