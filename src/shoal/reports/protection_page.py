"""The page of a search for a protection: the answer, the front of accuracy and exposure, and every rung."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as MplFigure

from shoal.core.formats import DASH, decimal, number
from shoal.reports.page import Section, render
from shoal.reports.plotting import OVER, WITHIN, draw_figure, key, legend, name_points
from shoal.reports.table import Cell, ReportTable, TableRow, heads, row

_COLUMNS = heads(["setting"], ["accuracy", "exposure", "limit on any attack", "epsilon"])

_OTHERS: Any = {"color": WITHIN, "marker": "o", "markersize": 4, "linestyle": "", "markerfacecolor": "white"}
_FIRST: Any = {"color": "black", "marker": "s", "markersize": 7, "linestyle": ""}
_CHOSEN: Any = {"color": WITHIN, "marker": "D", "markersize": 7, "linestyle": ""}
_JUDGED: Any = {"color": OVER, "marker": "X", "markersize": 7, "linestyle": ""}
_LIMIT: Any = {"color": OVER, "linestyle": "--", "linewidth": 1.2}


def protection_page(
    front: pd.DataFrame, best: Mapping[str, Any], sentences: Sequence[str], demand: Mapping[str, Any], path: str
) -> str:
    """The page.

    Args:
        front: by setting, ``accuracy`` and its ``change``, ``exposure`` of the most exposed group, its name, ``group``,
            ``epsilon`` and ``bound`` on any attack: means over the choosing seeds. NaN is the exposure of those beyond
            the price.
        best: "rung", the setting that was judged best, and on the judging "seeds" "accuracy", "exposure", and the ends
            of its interval, "exposure_low" and "exposure_high".
        sentences: the answer, the first one first.
        demand: "limit", "promise" (whether the limit is on the bound), "max_cost", "view", "choosing", "judging" and
            "references".
        path: of the configuration with the protection.
    """
    first, chosen, limit = str(front.index[0]), str(best["rung"]), float(demand["limit"])
    price, whole = float(front["accuracy"].to_dict()[first]) - float(demand["max_cost"]), front
    front = whole[whole["exposure"].notna()]
    kept = (front["change"] >= -float(demand["max_cost"])) & (
        front["bound" if demand["promise"] else "exposure"] <= limit
    )

    def draw(figure: MplFigure) -> None:
        axes = figure.subplots()
        wide = 0.02 + 0.1 * float(front["accuracy"].max() - front["accuracy"].min())
        right = min(1.0, max(*front["accuracy"], float(best["accuracy"])) + wide)
        axes.axvspan(price, right, color="#EEEEEE", zorder=0)
        axes.axhline(limit, **_LIMIT)
        (points,) = axes.plot(front["accuracy"], front["exposure"], **_OTHERS)
        name_points(points, [str(name) for name in front.index])
        at = front.loc[first]
        axes.plot([at["accuracy"]], [at["exposure"]], **_FIRST)
        if chosen != first:
            at = front.loc[chosen]
            axes.plot([at["accuracy"]], [at["exposure"]], **_CHOSEN)
        ends = [[best["exposure"] - best["exposure_low"]], [best["exposure_high"] - best["exposure"]]]
        axes.errorbar([best["accuracy"]], [best["exposure"]], ends, capsize=3, linewidth=1.2, **_JUDGED)
        axes.set_xlim(float(front["accuracy"].min()) - wide, right)
        axes.set_xlabel("accuracy over all clients")
        axes.set_ylabel("exposure of the most exposed group")
        styles = {
            "as it is": _FIRST,
            "other settings": _OTHERS,
            "chosen, on other seeds (95 %)": _JUDGED,
            "limit": _LIMIT,
        }
        styles |= {} if chosen == first else {"chosen": _CHOSEN}
        legend(figure, [key(name, **style) for name, style in styles.items()], columns=2)

    def line(name: str, values: pd.Series) -> TableRow:
        epsilon = DASH if isnan(values["epsilon"]) else number(values["epsilon"])
        exposure = DASH if isnan(values["exposure"]) else decimal(values["exposure"])
        bound = DASH if isnan(values["bound"]) else decimal(values["bound"])
        accuracy = Cell(decimal(values["accuracy"]), f"{values['change']:+.3f}" if name != first else "")
        figures = (accuracy, Cell(exposure, str(values["group"])), bound, epsilon)
        return row(f"{name} (chosen)" if name == chosen else name, *figures, style="strong" if name == chosen else "")

    rows = tuple(line(str(name), values) for name, values in whole.iterrows())
    note = (
        f"Below: the change of accuracy, and whose exposure it is. Means over the {demand['choosing']} seeds that "
        "chose, or over the first, where it showed a setting to be above the limit or, not attacked "
        f"({DASH}), the price. {best['seeds']} other seeds judged."
    )
    many = int(kept.iloc[1:].sum())
    title = f"{many} of {len(front) - 1} protections keep{'s' * (many == 1)} limit and price on the seeds that chose"
    caption = (
        f"By the {demand['view']}'s strongest attack; balanced accuracy, 0.5 is chance. Grey: within the price. "
        f"Dashed: the limit{' on any attack' if demand['promise'] else ''}. Points are means over the seeds that "
        "chose, the interval is of those that judged the chosen one."
    )
    alt = f"{len(front)} settings by accuracy and exposure; '{chosen}' was chosen"
    sections = (
        Section("front", "Accuracy against exposure", figures=[draw_figure("front", title, caption, alt, draw)]),
        Section("rungs", "Every setting", table=ReportTable(_COLUMNS, rows, note=note)),
        Section("next", "What to do next", code=f"shoal run {path}\nshoal audit runs/protected --references 16"),
    )
    lead = [("verdict", " ".join(sentences[:2])), *(("", sentence) for sentence in sentences[2:])]
    return render("page.html.j2", "Protection", lead, (), sections, style="run")
