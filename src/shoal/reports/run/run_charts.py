"""The figures of a run's page: accuracy, risk, cluster sizes, limits and ROC curves."""

from collections.abc import Hashable, Mapping, Sequence
from math import isnan, nan
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MplFigure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from shoal.core.formats import ACCURACY, capitalize, decimal, join_words, metric_format, name_examples
from shoal.data.names import EVERYBODY
from shoal.metrics.summary import Summary
from shoal.reports import plotting as plot
from shoal.reports.charts import (
    MOST_NAMED,
    Curve,
    RoundPanel,
    by_name,
    curves_by_cluster,
    evenly,
    fit_rounds,
    over_rounds,
    round_panels,
    rounds_chart,
    span,
)
from shoal.reports.run.run_tables import EXCEEDED, UNCERTAIN, WITHIN_LIMIT

MOST_CLUSTERS = 6
"""The largest number of clusters with sizes in a title."""

SMALLEST = 1e-4
"""The smallest rate on the axes of the ROC figure; held-out sets are too small for less."""

ESTIMATORS = {
    "shadow": "taken on shadow models, since the server holds no members",
    "federated": "counted by the clients on their own images",
    "histogram": "taken from the clients' histograms of their losses",
    "relative-histogram": "taken from the clients' histograms of their losses minus the losses on other models",
    "audit": "taken on the members, which only a simulator knows",
}
"""Descriptions of the red team's risk estimators."""

_STATES = (
    (WITHIN_LIMIT, plot.WITHIN, "within its limit"),
    (UNCERTAIN, plot.UNSURE, "above, not certain"),
    (EXCEEDED, plot.OVER, "over its limit"),
)
"""The colour and legend of each state of a client's limit."""

_DIAMOND: Any = {"color": "white", "markeredgecolor": "black", "marker": "D", "linestyle": ""}


def accuracy_by_group(
    rounds: pd.DataFrame,
    groups: Sequence[str],
    kind: str = "images",
    metric: str = ACCURACY,
    marks: Mapping[int, str] | None = None,
) -> plot.Figure | None:
    """Draw each group's accuracy over rounds, or return ``None`` if accuracy was never measured."""
    rounds, curves = _evaluated(rounds), []
    for g, group in enumerate(groups):
        if {f"clients.{group}", f"accuracy.{group}"} <= set(rounds):
            clients = rounds[f"clients.{group}"]
            right = (rounds[f"accuracy.{group}"] * clients).where(clients > 0)
            means = right.groupby(rounds["round"]).sum(min_count=1) / clients.groupby(rounds["round"]).sum()
            curves.append(Curve(plot.short(group), means, plot.group_style(g)))
    last = {curve.label: values.iloc[-1] for curve in curves if len(values := curve.values.dropna())}
    if not last:
        return None
    name = "Accuracy" if metric == ACCURACY else f"Mean {metric}"
    caption = f"{name} on a group's held-out {kind}; each client uses its chosen model."
    panel = RoundPanel(curves, f"{metric} on held-out {kind}", least=(0, 1.02) if metric == ACCURACY else None)
    title = f"{capitalize(metric)} by group ends at {by_name(last, metric_format(metric))}"
    return rounds_chart("accuracy", title, caption, [panel], curves[0].values.index.to_series(), marks=marks)


def _evaluated(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of evaluated rounds; other rows would break the lines."""
    measured = rounds.filter(regex="^accuracy").notna().any(axis=1)
    return rounds[rounds["round"].isin(rounds.loc[measured, "round"])]


def risk(
    rounds: pd.DataFrame,
    summary: Summary,
    *,
    estimated: bool,
    estimator: str,
    kind: str = "images",
    marks: Mapping[int, str] | None = None,
) -> plot.Figure | None:
    """Draw the red team's estimates over rounds and the final models' exposure, or return ``None`` without values."""
    shaded = estimated and "risk_low" in rounds and bool(rounds["risk_low"].notna().any())
    shown = rounds if estimated else rounds.assign(risk=nan)
    curves = curves_by_cluster(shown, "risk", *(("risk_low", "risk_high") if shaded else ()))
    measured = {curve.label: summary.by_cluster.get(k, {}).get("mia", nan) for k, curve in enumerate(curves)}
    known = [not isnan(value) for value in measured.values()]
    if not estimated and not any(known):
        return None
    steps = "The red team estimated no risk during this run."
    if estimated:
        steps = (
            f"Steps: the red team's estimate ({ESTIMATORS[estimator]}) of how accurately an attacker tells a model's "
            "training images from other images; 0.5 before the first estimate."
        )
    steps += " Shaded: its 95 % interval." * shaded
    caption = name_examples(f"{steps} Diamonds: attacks on the final model.", kind)
    title = f"The red team's estimate of risk ends at {by_name({c.label: c.values.iloc[-1] for c in curves})}"
    if any(known):
        named = {
            name: value for name, value in zip(_called(rounds), measured.values(), strict=True) if not isnan(value)
        }
        title = f"The run's attack has balanced accuracy {by_name(named)} at the end"
    panel = RoundPanel(
        curves, "balanced accuracy of the attack", steps=estimated, least=(0.45, 0.6), level=0.5,
        measured=[*measured.values()],
    )  # fmt: skip
    keys = [plot.key("measured at the end", **_DIAMOND), plot.chance_key()]
    return rounds_chart("risk", title, caption, [panel], rounds["round"], keys, marks)


def _called(rounds: pd.DataFrame) -> list[str]:
    """Name each cluster, with the group of more than half of the clients that trained the cluster last, if any."""
    sizes = rounds.filter(regex=r"^clients\.").rename(columns=lambda column: column.removeprefix("clients."))
    called = []
    for k in sorted(map(int, rounds["cluster"].unique())):
        last = sizes[rounds["cluster"] == k].iloc[-1]
        most = len(last) > 1 and 2 * last.max() > last.sum()
        called.append(f"cluster {k}, {last.idxmax()}" if most else f"cluster {k}")
    return called


def cluster_sizes(rounds: pd.DataFrame, groups: Sequence[str], at_end: Mapping[int, int]) -> plot.Figure:
    """Draw the number of clients that trained each cluster's model, one panel per cluster.

    Colours show groups, unless some clients hold examples of several groups. Diamonds mark cluster sizes after the last
    round.

    Args:
        at_end: the number of clients of each cluster after the last round.
    """
    last = int(rounds["round"].max())
    titles = [f"cluster {k}: {n} client{'s' * (n != 1)}" for k, n in at_end.items()]
    columns = {group: f"clients.{group}" for group in groups}
    if (rounds[[*columns.values()]].sum(axis=1) > rounds["clients"]).any():
        columns = {"all clients": "clients"}

    def draw(figure: MplFigure) -> None:
        panels = round_panels(figure, titles, "clients")
        for axes, (k, chosen) in zip(panels, at_end.items(), strict=True):
            inside = rounds[rounds["cluster"] == k].set_index("round")
            edges, below = np.append(inside.index - 0.5, inside.index[-1] + 0.5), np.zeros(len(inside))
            for g, column in enumerate(columns.values()):
                top = below + inside[column].to_numpy()
                axes.stairs(top, edges, baseline=below, fill=True, color=plot.group_style(g).color)
                below = top
            names = []
            for number, row in zip(inside.index, inside.to_dict("records"), strict=True):
                sizes = ", ".join(f"{row[column]:.0f} of {group}" for group, column in columns.items())
                names.append(f"cluster {k}, round {number}: {sizes}")
            plot.add_named_points(axes, inside.index.to_list(), below.tolist(), names)
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
            end = fit_rounds(axes, inside.index.to_series())
            plot.draw_diamond(axes, end, chosen, f"cluster {k}: chosen by {chosen} after round {last}", color="white")
        # After the last diamond, since panels share their scale and this ends its fitting.
        panels[0].set_ylim(0, None)
        keys = [Patch(color=plot.group_style(g).color, label=plot.short(group)) for g, group in enumerate(columns)]
        plot.legend(figure, [*keys, plot.key("chose the model after the last round", **_DIAMOND)], columns=2)

    caption = (
        "Bars: clients that trained a cluster's model in a round. Diamond: clients that chose the model after the last "
        "round; the tables count these."
    )
    sizes = join_words([*map(str, at_end.values())])
    if len(at_end) > MOST_CLUSTERS:
        sizes = f"{span([*at_end.values()], str)} of {sum(at_end.values())}"
    title = f"Clients by cluster after round {last}: {sizes}"
    return plot.draw_figure("sizes", title, caption.strip(), f"{title}. {'; '.join(titles)}.", draw)


def violations(clients: pd.DataFrame, groups: Sequence[str]) -> plot.Figure | None:
    """Draw each client's exposure against the client's limit, or return ``None`` if exposure was not measured."""
    judged = clients.dropna(subset=["exposure", "threshold"])
    if judged.empty:
        return None
    uncertain = int((judged["limit"] == UNCERTAIN).sum())
    groups = groups if judged["group"].isin(groups).any() else [EVERYBODY]

    def draw(figure: MplFigure) -> None:
        limits, exposure = judged["threshold"], judged["exposure"]
        x = min(0.5, limits.min()) - 0.01, limits.max() + 0.01
        y = min(0.48, exposure.min() - 0.02), max(x[1], exposure.max() + 0.02)
        axes = figure.subplots()
        axes.fill_between(x, x, [y[1]] * 2, color=plot.OVER, alpha=0.12, linewidth=0)
        axes.plot(x, x, color="#444444", linewidth=1.2)
        # The largest group first, so that it hides no other.
        for group in sorted(groups, key=lambda name: -(judged["group"] == name).sum()):
            for limit, color, _ in _STATES:
                here = judged[(judged["group"] == group) & (judged["limit"] == limit)]
                marker = plot.group_style(groups.index(group)).marker
                dots = axes.scatter(
                    here["threshold"], here["exposure"], s=46, marker=marker, color=color, alpha=0.75,
                    edgecolors="white", linewidths=0.6,
                )  # fmt: skip
                plot.name_points(dots, [*map(_name, here.to_dict("records"))] if len(judged) <= plot.MOST else [])
        axes.text(0.03, 0.95, "over the limit", transform=axes.transAxes, color="#8a3b00", va="top")
        axes.set(xlim=x, ylim=y, xlabel="client's limit", ylabel="attack accuracy on the client's model")
        marks = [(plot.group_style(g).marker, "#555555", plot.short(group)) for g, group in enumerate(groups)]
        marks += [("o", color, label) for limit, color, label in _STATES if limit != UNCERTAIN or uncertain]
        keys = [plot.key(label, linestyle="", marker=marker, color=color) for marker, color, label in marks]
        plot.legend(figure, keys, columns=2 if len(groups) <= 2 else 3)

    sizes = judged.groupby("group")["over"].agg(["sum", "size"]).reindex([*groups]).fillna(0).astype(int)
    certain = int(sizes["sum"].sum())
    where = [f"{over} of {size} in {name}" for name, over, size in sizes.itertuples() if over][:MOST_NAMED]
    title = f"{certain or 'None'} of {len(judged)} limits {'are' if certain > 1 else 'is'} exceeded at 95 % confidence"
    title += f", {uncertain} may be" * bool(uncertain) + f", by the run's attack{': ' * bool(where)}{', '.join(where)}"
    above = f"above the limit by the point estimate, but not at 95 % confidence: {uncertain}."
    caption = (
        "Each dot is a client. Horizontal axis: the client's limit. Vertical axis: the client's exposure, which is the "
        "attack accuracy on its models. Shaded: exposure above the limit."
    ) + f" Orange, {above}" * bool(uncertain)
    alt = f"Limits against exposure. {title}." + f" {capitalize(above)}" * bool(uncertain)
    return plot.draw_figure("violations", title, caption, alt, draw)


def _name(client: Mapping[Hashable, Any]) -> str:
    """Describe a client and its exposure."""
    exposure = f"exposure {decimal(client['exposure'])} by {client['attack']}, limit {decimal(client['threshold'])}"
    return f"client {client['client']} ({client['group']}): {exposure}"


def roc_figure(roc: pd.DataFrame, groups: Sequence[str], *, configured: bool = False) -> plot.Figure | None:
    """Draw the attack's ROC curves by group on logarithmic axes, or return ``None`` without curves."""
    curves = roc.dropna(subset=["fpr", "tpr"])
    curves = curves[curves["group"].isin(groups) & (curves["non_members"] == "group")]
    if curves.empty:
        return None
    measured = {name: curves[curves["group"] == name] for name in groups if (curves["group"] == name).any()}
    styles = {name: plot.group_style(groups.index(name)).color for name in measured}

    def draw(figure: MplFigure) -> None:
        rates = curves[["fpr", "tpr"]].to_numpy()
        low = max(SMALLEST, 10 ** np.floor(np.log10(rates[rates > 0].min(initial=0.1))))
        axes = figure.subplots()
        axes.plot([low, 1], [low, 1], **plot.CHANCE_LINE)
        for group, here in measured.items():
            points = here.loc[here["tpr"] > 0, ["fpr", "tpr"]].clip(lower=low)
            axes.plot(points["fpr"], points["tpr"], color=styles[group], linewidth=2.0)
            points = points.iloc[evenly(len(points))]
            texts = [f"{group}, {decimal(t)} at {decimal(f)} FPR" for f, t in points.itertuples(index=False)]
            plot.add_named_points(axes, points["fpr"].tolist(), points["tpr"].tolist(), texts)
        axes.set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1))
        plot.log_shares(axes.xaxis)
        plot.log_shares(axes.yaxis)
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        keys = [plot.key(plot.short(group), color=color) for group, color in styles.items()]
        plot.legend(figure, [*keys, plot.chance_key("chance")], columns=2)

    caption = (
        "Vertical axis: the share of training examples that the attack recognises. Horizontal axis: the share of the "
        "group's other examples that the attack takes for training examples. An attack with a curve above the diagonal "
        "at the left recognises members with few mistakes."
    )
    if configured:
        caption += " This is the configured attack, not the deciding attack."
    which = "configured" if configured else "run's"
    areas = {name: float(np.trapezoid(here["tpr"], here["fpr"])) for name, here in measured.items()}
    title = f"The {which} attack has AUC {by_name(areas)}; chance is 0.5"
    return plot.draw_figure("roc", title, caption, f"ROC curves on logarithmic axes. {title}.", draw)


def plot_rounds(rounds: pd.DataFrame, summary: Summary, metric: str = ACCURACY) -> NDArray[Any]:
    """Draw accuracy, exposure and cluster sizes over the rounds, in a new figure.

    In the panel of exposure, lines are the red team's estimates, and diamonds are measurements on the final models.

    Returns:
        Three axes, (3,): accuracy (or the run's metric), exposure, and clients per cluster.
    """
    from matplotlib import pyplot as plt  # noqa: PLC0415 - pages do without it

    evaluated = rounds[rounds["round"].isin(rounds.loc[rounds["accuracy"].notna(), "round"])]
    estimated = rounds if bool((rounds["risk"].fillna(0.5) != 0.5).any()) else rounds.assign(risk=nan)
    risks = curves_by_cluster(estimated, "risk")
    measured = [summary.by_cluster.get(k, {}).get("mia", nan) for k in range(len(risks))]
    panels = (
        RoundPanel(
            curves_by_cluster(evaluated, "accuracy"), metric, "on held-out examples; higher is better"
        ),
        RoundPanel(
            risks, "exposure (balanced accuracy)", "membership attack; diamonds: measured at the end", level=0.5,
            measured=measured,
        ),
        RoundPanel(curves_by_cluster(rounds, "clients"), "size (clients)", "clients that trained the cluster's model"),
    )  # fmt: skip
    with plot.use_figure_style():
        figure, cells = plt.subplots(3, 1, sharex=True, figsize=(plot.WIDTH, 6.6), layout="constrained")
        for axes, panel in zip(cells, panels, strict=True):
            panel.draw(axes, rounds["round"])
        cells[2].yaxis.set_major_locator(MaxNLocator(integer=True))
        cells[2].set_ylim(0, None)
        over_rounds(cells[2])
        keys = [curve.key for curve in panels[2].curves]
        figure.legend(handles=keys, loc="outside lower center", ncols=3)
    return cells
