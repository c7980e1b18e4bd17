"""The figures of an audit's page."""

from collections.abc import Mapping, Sequence
from math import isnan, nan

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MplFigure
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from shoal.audit.finding import Finding, most_exposed
from shoal.core.formats import capitalize, decimal
from shoal.data.preferences import VIEWS
from shoal.reports import plotting as plot
from shoal.reports.charts import evenly

MOST_GROUPS = 6
"""The largest number of groups in a figure."""

LEAST_MEMBERS = 20
"""The smallest number of members for a figure."""

POINTS = 200
"""The largest number of points of a curve, which keeps pages small."""


def drawn_groups(groups: Mapping[str, Sequence[Finding]]) -> list[str]:
    """Return the most exposed groups, in the audit's order of groups."""
    exposed = [finding.group for finding in most_exposed(attempts[0] for attempts in groups.values())][:MOST_GROUPS]
    return [name for name in groups if name in exposed]


def by_view(
    found: Sequence[Finding], views: Sequence[str] = VIEWS, metric: str = "balanced accuracy"
) -> plot.Figure | None:
    """Draw the deciding attack's accuracy with its interval, by view and group, or return ``None`` without a
    measurement.

    Args:
        metric: the name of the metric that ``Finding.accuracy`` holds.
    """
    names = [*dict.fromkeys(finding.group for finding in found)]
    if not names:
        return None
    exposed = [*dict.fromkeys(finding.group for finding in most_exposed(found))][:MOST_GROUPS]
    shown = {name: [finding for finding in found if finding.group == name] for name in names if name in exposed}
    highest = {view: max((one.accuracy.value for one in found if one.view == view), default=nan) for view in views}
    measured = [f"{view} {decimal(value)}" for view, value in highest.items() if not isnan(value)]
    title = f"Highest {metric}: {', '.join(measured)}"
    order = [*reversed(views)]

    def draw(figure: MplFigure) -> None:
        axes = figure.subplots()
        axes.axvline(0.5, **plot.CHANCE_LINE)
        beside = np.linspace(0.24, -0.24, len(shown)) if len(shown) > 1 else np.zeros(1)
        for g, here in enumerate(shown.values()):
            value, low, high = np.array([(one.accuracy.value, one.accuracy.low, one.accuracy.high) for one in here]).T
            reach = np.nan_to_num(np.maximum(0, [value - low, high - value]))
            places = np.array([order.index(one.view) for one in here]) + beside[g]
            style = plot.group_style(g).mark
            drawn = axes.errorbar(value, places, xerr=reach, **style, markersize=6, elinewidth=1.5, capsize=3)
            plot.name_points(drawn.lines[0], [*map(_words, here)])
        filled = {one.view for here in shown.values() for one in here}
        for place in [place for place, row in enumerate(order) if row not in filled]:
            axes.text(0.5, place, "  not measured", va="center", color="#555555")
        axes.set_yticks(range(len(order)), order)
        axes.set_ylim(-0.6, len(order) - 0.4)
        axes.set_xlim(min(0.45, axes.get_xlim()[0]), 1.02)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"{metric} (chance: 0.5, every record: 1)")
        keys = [
            plot.key(plot.short(name), **plot.group_style(g).mark) for g, name in enumerate(shown) if len(names) > 1
        ]
        plot.legend(figure, [*keys, plot.chance_key()])

    caption = "Dots: attacks. Lines: 95 % intervals, which hold for all groups and views at once."
    if len(shown) < len(names):
        caption += f" The {len(shown)} most exposed of {len(names):,} groups are shown."
    alt = f"{capitalize(metric)}. {'; '.join(_words(one) for here in shown.values() for one in here)}."
    height = 1.25 + len(order) * max(0.35, 0.18 * len(shown))
    return plot.draw_figure("views", title, caption, alt, draw, height=height)


def _words(finding: Finding) -> str:
    return f"{finding.title}, {finding.view}, on {finding.group}: {finding.accuracy.figure}, {finding.verdict}"


def chance_share(exposure: NDArray[np.float64], references: int) -> NDArray[np.float64]:
    """Return an upper bound on the fraction of records with at least this ``exposure`` by chance.

    A record's exposure is Phi(d / 2); see `record_exposure`. If the record is not exposed and half of the R + 1 models
    trained on it, d sqrt(R + 1) / 2 has Student's t-distribution with at least R + 3 degrees of freedom.
    """
    return stdtr(references + 3, -np.sqrt(references + 1) * ndtri(exposure))


def chance_exposure(references: int) -> float:
    """Return the exposure that at most 5 % of the records exceed by chance if no record is exposed.

    >>> round(chance_exposure(16), 2)
    0.66
    """
    return float(ndtr(stdtrit(references + 3, 0.95) / (references + 1) ** 0.5))


def exposure_of_records(records: pd.DataFrame, names: Sequence[str], references: int) -> plot.Figure | None:
    """Draw each group's fraction of members above each exposure, or return ``None`` if exposures are unknown."""
    members = records[records["member"].astype(bool) & records["exposure"].notna()]
    of_group = {
        name: np.sort(members.loc[members["group"].astype(str) == name, "exposure"].to_numpy()) for name in names
    }
    of_group = {name: values for name, values in of_group.items() if len(values)}
    if len(members) < LEAST_MEMBERS or not of_group:
        return None
    everything = np.concatenate(list(of_group.values()))
    style = {name: plot.group_style(g) for g, name in enumerate(names)}

    def draw(figure: MplFigure) -> None:
        axes = figure.subplots()
        # Left of the lowest 2 % the curves are flat.
        left, right = min(0.45, float(np.quantile(everything, 0.02))), max(0.75, float(everything.max()))
        bottom = 0.7 / max(map(len, of_group.values()))
        x = np.linspace(max(left, 1e-3), min(right, 1 - 1e-3), 100)
        axes.plot(x, chance_share(x, references), **plot.CHANCE_LINE)
        for name, values in of_group.items():
            ranks = np.unique(np.geomspace(1, len(values), min(POINTS, len(values))).round().astype(int))
            exposure, share = values[len(values) - ranks], ranks / len(values)
            axes.step(exposure, share, where="post", **style[name].line)
            mean = float(values.mean())
            (dot,) = axes.plot(
                [mean], [(values >= mean).mean()], **style[name].mark, markersize=9, markeredgecolor="white", zorder=5
            )
            plot.name_points(dot, [f"{name}: mean {decimal(mean)}"])
            points = evenly(len(ranks), most=40)
            texts = [f"{name}: {decimal(float(share[i]))} have {decimal(float(exposure[i]))} or more" for i in points]
            plot.add_named_points(axes, exposure[points].tolist(), share[points].tolist(), texts)
        axes.set(yscale="log", xlim=(left - 0.01, right + 0.01), ylim=(bottom, 1.3))
        plot.log_shares(axes.yaxis)
        axes.set(xlabel="exposure", ylabel="members with at least this exposure")
        keys = [plot.key(plot.short(name), **style[name].line, marker=style[name].marker) for name in of_group]
        plot.legend(figure, [*keys, plot.chance_key("largest share by chance")], columns=2)

    means = "; ".join(
        f"{name}: " * (len(names) > 1) + f"mean {decimal(float(values.mean()))}, {_top(values)}"
        for name, values in of_group.items()
    )
    caption = (
        "Curves: the share of members with at least the exposure on the horizontal axis. "
        f"Marks: {means}. Dotted: the largest share by chance with {references + 1:,} models if no record is exposed."
    )
    if not records["group"].isin(names).all():
        caption += " Other groups are not shown."
    certain = int((members["exposure.low"] > 0.5).sum())
    title = f"Members exposed with certainty, with {references + 1} models: {certain:,} of {len(members):,}"
    return plot.draw_figure("exposure", title, caption, f"{title}. {means}.", draw)


def _top(values: NDArray[np.float64]) -> str:
    """Describe the exposure of the most exposed 1 % of sorted ``values``; of fewer than 100, the largest."""
    if len(values) < 100:
        return f"largest {decimal(float(values[-1]))}"
    return f"the most exposed 1 % at least {decimal(float(values[-(len(values) // 100)]))}"
