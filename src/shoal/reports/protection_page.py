"""The page of a search for a protection, with the trade-off between accuracy and exposure."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as MplFigure

from shoal.audit.finding import BY, Estimate
from shoal.core.formats import ACCURACY, DASH, capitalize, decimal, number
from shoal.reports.exposure import Headline
from shoal.reports.page import Section, render
from shoal.reports.plotting import OVER, WITHIN, draw_figure, key, legend, name_points
from shoal.reports.table import Cell, ReportTable, TableRow, heads, row, without_dashes

_OTHERS: Any = {"color": WITHIN, "marker": "o", "markersize": 4, "linestyle": "", "markerfacecolor": "white"}
_FIRST: Any = {"color": "black", "marker": "s", "markersize": 7, "linestyle": ""}
_CHOSEN: Any = {"color": WITHIN, "marker": "D", "markersize": 7, "linestyle": ""}
_JUDGED: Any = {"color": OVER, "marker": "X", "markersize": 7, "linestyle": ""}
_LIMIT: Any = {"color": OVER, "linestyle": "--", "linewidth": 1.2}


def protection_page(front: pd.DataFrame, found: Mapping[str, Any], sentences: Sequence[str], path: str) -> str:
    """Render the page of a search for a protection.

    Args:
        front: one row per setting, with ``accuracy``, ``change`` (the change of accuracy), ``group`` (the most exposed
            group), ``exposure`` (of the group), ``epsilon`` and ``bound`` (the largest possible accuracy of any
            attack). The first row is the unprotected federation. ``exposure`` is NaN for settings that were not
            attacked.
    """
    first, chosen, limit = str(front.index[0]), str(found["rung"]), float(found["limit"])
    price, whole = float(front["accuracy"].to_dict()[first]) - float(found["max_cost"]), front
    front = whole[whole["exposure"].notna()]

    marked, metric = {chosen: _CHOSEN, first: _FIRST}, str(found.get("metric", ACCURACY))
    columns = heads(["setting"], [metric, "exposure", "limit on any attack", "epsilon"])

    def draw(figure: MplFigure) -> None:
        axes = figure.subplots()
        wide = 0.02 + 0.1 * float(front["accuracy"].max() - front["accuracy"].min())
        right = min(1.0, max(*front["accuracy"], float(found["accuracy"])) + wide)
        axes.axvspan(price, right, color="#EEEEEE", zorder=0)
        axes.axhline(limit, **_LIMIT)
        (points,) = axes.plot(front["accuracy"], front["exposure"], **_OTHERS)
        name_points(points, [str(name) for name in front.index])
        for name, style in marked.items():
            axes.plot([front["accuracy"][name]], [front["exposure"][name]], **style)
        ends = [[found["exposure"] - found["exposure_low"]], [found["exposure_high"] - found["exposure"]]]
        axes.errorbar([found["accuracy"]], [found["exposure"]], ends, capsize=3, linewidth=1.2, **_JUDGED)
        axes.set_xlim(float(front["accuracy"].min()) - wide, right)
        axes.set_xlabel(f"{metric} over all clients")
        axes.set_ylabel("exposure of the most exposed group")
        styles = {first: _FIRST, "other settings": _OTHERS, "chosen, on other seeds (95 %)": _JUDGED, "limit": _LIMIT}
        styles |= {"chosen": _CHOSEN} if chosen != first else {}
        legend(figure, [key(name, **style) for name, style in styles.items()], columns=2)

    def line(name: str, values: pd.Series) -> TableRow:
        exposure, bound, epsilon = (Estimate(values[key]) for key in ("exposure", "bound", "epsilon"))
        accuracy = Cell(decimal(values["accuracy"]), f"{values['change']:+.3f}" if name != first else "")
        promise = number(epsilon.value) if epsilon.known else DASH
        figures = (accuracy, Cell(exposure.text, str(values["group"])), bound.text, promise)
        return row(f"{name} (chosen)" if name == chosen else name, *figures, style="strong" if name == chosen else "")

    rows = tuple(line(str(name), values) for name, values in whole.iterrows())
    means = (
        f"Means over the {found['choosing']} choosing seeds, or over the first, if it showed a setting to be above the "
        f"limit. Not attacked ({DASH}): settings above the price, or less accurate than the chosen setting. Judged on "
        f"{found['seeds']} other seeds; '{first}' has means over the first of these."
    )
    if not found["searched"]:
        means = f"Means over the {found['seeds']} judging seeds; no other setting was tried."
    note = f"Small print: the change of {metric}, and the most exposed group. {means}"
    caption = (
        f"Balanced accuracy of the {found['view']}'s strongest attack; chance is 0.5. Grey: within the price. "
        f"Dashed: the limit{' on any attack' if found['promise'] else ''}. The interval is for the mean over the "
        f"judging seeds, and holds whenever the test stops (level {found['level']:g} per search)."
    )
    alt = f"{len(front)} settings by {metric} and exposure; '{chosen}' was chosen"
    figure = draw_figure("front", sentences[1], caption, alt, draw)
    what, exposed, *rest = sentences
    sections = (
        Section("front", f"{capitalize(metric)} against exposure", figures=[figure]),
        Section("rungs", "Every setting", table=without_dashes(ReportTable(columns, rows, note=note))),
        Section("details", "In full", items=rest, folded="cost, test and limits"),
    )
    commands = f"shoal run {path} --out runs/protected\nshoal audit runs/protected"
    answers = [
        Headline("What to change?", what),
        Headline("Who is exposed then, to whom?", exposed),
        Headline("What to do?", "Train it, then attack it:", commands),
    ]
    title = f"Protection from {BY[found['view']]}, limit {limit:g}"
    return render("page.html.j2", title, [], (), sections, style="run", answers=answers)
