"""What each view finds on each group: a line for each view, and the figure that compares them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure as MplFigure

from shoal.audit.audit import headline
from shoal.audit.records import CHOSEN_OF_VIEW
from shoal.core.formats import percent
from shoal.data.preferences import VIEWS, View
from shoal.reports import plotting as plot
from shoal.reports.attack_titles import BY, WHO
from shoal.reports.audit.audit_epsilon import limit_sentence
from shoal.reports.audit.audit_figures import MOST_GROUPS
from shoal.reports.audit.findings import Attacked, Finding
from shoal.reports.estimate import at_chance
from shoal.reports.figure_titles import exposure_title
from shoal.reports.svg import name_points

TO_MEASURE: Mapping[View, str] = {
    "outsider": "shoal audit RUN asks the final models of a run",
    "client": "shoal audit RUN repeats the first rounds of a run and reads their models",
    "server": "shoal audit RUN repeats the first rounds of a run and reads their updates, and shoal audit --trace DIR "
    "those that were recorded",
}
"""How a view is measured."""

Headlines = Mapping[View, Mapping[str, Finding]]
"""The finding that decides for each view on each group."""


def headlines(audit: Attacked, groups: Sequence[str]) -> Headlines:
    """The attack that decides for each view on each of the ``groups``; on all records, where none is one."""
    scopes = [("group", name) for name in groups]
    found = {}
    for view in VIEWS:
        rows = [headline(audit.attacks, view, *scope) for scope in scopes]
        if not any(row is not None for row in rows):
            rows = [headline(audit.attacks, view)]
        found[view] = {finding.name: finding for finding in (Finding.of(row) for row in rows if row is not None)}
    return found


def lines(found: Headlines, omitted: Mapping[str, str], stated: Mapping[str, Any] = {}) -> list[tuple[str, str]]:
    """Of each view who it is, what it recognises of the group of largest AUC, or how to measure it, and what no attack
    exceeds.

    A span is said to be found where the attack is exact on most records; elsewhere its verdict is one of statistics.

    Args:
        found: the headlines.
        omitted: attacks that were not computed, and why.
        stated: as of `limit_sentence`.
    """
    limits = {
        view: limit_sentence(view, stated, [one.accuracy.value for one in found[view].values()]) for view in VIEWS
    }
    return [(WHO[view], _line(view, found[view], omitted) + f" {limits[view]}." * bool(limits[view])) for view in VIEWS]


def _line(view: View, groups: Mapping[str, Finding], omitted: Mapping[str, str]) -> str:
    if not groups:
        reason = omitted.get(CHOSEN_OF_VIEW.get(view, ""), "")
        return f"not measured, since the span attack {reason}." if reason else f"not measured; {TO_MEASURE[view]}."
    worst = max(groups.values(), key=lambda finding: (finding.auc.value, finding.accuracy.value))
    accuracy, rate = worst.accuracy.among(len(groups)), worst.tpr[0.01]
    records = f"the records of group {worst.name}" if len(groups) > 1 else "the records"
    named = rate.among(len(groups)).low > 0.01
    kind = "" if worst.exact is None else ", statistical"
    if worst.exact:
        kind = ", exact" if worst.exact == 1 else f", exact for {percent(worst.exact)} of its calls"
    by = f"({worst.title}{kind}; AUC {worst.auc.text}, {worst.auc.interval})"
    finds = "finds the span of the inputs and " if worst.exact is not None and worst.exact >= 0.5 else ""
    if named and rate.known:
        average = ", though on average it is at chance" if accuracy.outcome == "chance" else ""
        return f"{finds}recognises {percent(rate.value)} of {records} at 1 % false alarms{average} {by}."
    if accuracy.outcome == "exposed":
        return f"{finds}is right about {records} in {accuracy.percent} of cases, where chance is 50 % {by}."
    what = "is not shown to recognise" if accuracy.outcome == "chance" else "may or may not recognise, by so few,"
    interval = accuracy.with_interval(at_chance(worst.null_high))
    return f"{what} {records}: {worst.title} has balanced accuracy {interval} and AUC {worst.auc.with_interval()}."


def by_view(found: Headlines) -> plot.Figure | None:
    """AUC by view and group, with intervals; None where nothing was measured."""
    measured: dict[View, Mapping[str, Finding]] = {view: groups for view, groups in found.items() if groups}
    names = [*dict.fromkeys(name for groups in measured.values() for name in groups)]
    if not names:
        return None
    most = {name: max(groups[name].auc.value for groups in measured.values() if name in groups) for name in names}
    exposed = sorted(names, key=lambda name: -most[name])
    shown = [name for name in names if name in exposed[:MOST_GROUPS]]
    rows = [*reversed(VIEWS)]

    def draw(figure: MplFigure) -> None:
        axes = figure.subplots()
        axes.axvline(0.5, **plot.CHANCE_LINE)
        beside = np.linspace(0.22, -0.22, len(shown)) if len(shown) > 1 else np.zeros(1)
        for g, name in enumerate(shown):
            here: list[tuple[View, Finding]] = [
                (view, groups[name]) for view, groups in measured.items() if name in groups
            ]
            value, low, high = np.array([(f.auc.value, f.auc.low, f.auc.high) for _, f in here]).T
            reach = np.nan_to_num(np.maximum(0, [value - low, high - value]))
            places = np.array([rows.index(view) for view, _ in here]) + beside[g]
            drawn = axes.errorbar(
                value, places, xerr=reach, **plot.group_style(g).mark, markersize=7, elinewidth=1.6, capsize=3
            )
            name_points(drawn.lines[0], [_words(view, finding) for view, finding in here])
        for place, view in enumerate(rows):
            if view not in measured:
                axes.text(0.5, place, "  not measured", va="center", color="#555555")
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(-0.5, len(rows) - 0.5)
        axes.set_xlim(min(0.45, axes.get_xlim()[0]), 1.02)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("AUC: 0.5 recognises nothing, 1 every record")
        keys = [
            plot.key(plot.short(name), **plot.group_style(g).mark) for g, name in enumerate(shown) if len(names) > 1
        ]
        plot.legend(figure, [*keys, plot.chance_key()])

    caption = (
        "How well each view tells the records that were trained on from others: the attack that decides for it, with "
        "its 95 % interval. A view has the attacks of those above it too. The lines at the top of the page are of the "
        "group of largest AUC."
    )
    if len(shown) < len(names):
        caption += f" The {len(shown)} most exposed of {len(names):,} groups are drawn."
    said = [_words(view, groups[name]) for view, groups in measured.items() for name in shown if name in groups]
    alt = f"AUC by view. {'; '.join(said)}."
    height = 1.3 + len(rows) * max(0.4, 0.2 * len(shown))
    worst = {BY[view]: max((one.auc for one in groups.values()), key=lambda auc: auc.value)
             for view, groups in measured.items()}  # fmt: skip
    title = exposure_title(worst, "view", looked=sum(map(len, measured.values())), metric="AUC")
    return plot.draw_figure("views", title, caption, alt, draw, height=height)


def _words(view: View, finding: Finding) -> str:
    return f"{view} on {finding.name}: {finding.auc.with_interval()}, {finding.title}"
