"""The page of a search for a protection: the answer, the front of accuracy and exposure, and every rung."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure as MplFigure

from shoal.core.formats import decimal
from shoal.reports.page import Section, render
from shoal.reports.plotting import OVER, WITHIN, draw_figure, key, legend
from shoal.reports.table import Table, heads, row


def protection_page(
    front: pd.DataFrame, chosen: str, sentences: Sequence[str], demand: Mapping[str, object], path: str
) -> str:
    """The page.

    Args:
        front: by setting, ``accuracy``, ``exposure`` of the most exposed group, and its name, ``group``: means over the
            choosing seeds.
        chosen: the setting that was judged best.
        sentences: the answer, the first one first.
        demand: "limit", "max_cost", "view", "choosing", "judging" and "references".
        path: of the configuration with the protection.
    """
    first = str(front.index[0])
    price = float(front.loc[first, "accuracy"]) - float(str(demand["max_cost"]))
    limit = float(str(demand["limit"]))

    def draw(figure: MplFigure) -> None:
        axes = figure.subplots()
        axes.axvspan(price, max(1.0, price), ymax=1, color="#EEEEEE", zorder=0)
        axes.axhline(limit, color=OVER, linestyle="--", linewidth=1.2)
        for name, values in front.iterrows():
            style = {"marker": "D" if name == chosen else "s" if name == first else "o", "color": WITHIN}
            axes.plot(values["accuracy"], values["exposure"], markersize=8 if name in (chosen, first) else 5, **style)
        for name in dict.fromkeys((first, chosen)):
            point = front.loc[name]
            axes.annotate(name, (point["accuracy"], point["exposure"]), (6, 5), textcoords="offset points")
        pad = 0.02 + 0.1 * float(front["accuracy"].max() - front["accuracy"].min())
        axes.set_xlim(front["accuracy"].min() - pad, front["accuracy"].max() + 2 * pad)
        axes.set_xlabel("accuracy over all clients, on test examples")
        axes.set_ylabel(f"exposure of the most exposed group\n({demand['view']}, balanced accuracy)")
        handles = [
            key("as it is", marker="s", color=WITHIN, linestyle=""),
            key("chosen", marker="D", color=WITHIN, linestyle=""),
            key("limit", color=OVER, linestyle="--"),
        ]
        legend(figure, handles)

    rows = (
        row(str(name), decimal(values["accuracy"]), decimal(values["exposure"]), str(values["group"]))
        for name, values in front.iterrows()
    )
    columns = heads(["setting"], ["accuracy", "exposure", "of"])
    note = f"Means over the {demand['choosing']} seeds that chose; {demand['judging']} other seeds judged."
    better = float(front.loc[chosen, "exposure"]) < float(front.loc[first, "exposure"])
    title = f"{chosen} is less exposed than the federation as it is" if better else "Nothing is less exposed"
    caption = "In grey: within the price. Below the dashed line: within the limit."
    alt = f"{len(front)} settings by accuracy and exposure; {chosen} was chosen"
    sections = (
        Section("front", "The front", figures=[draw_figure("front", title, caption, alt, draw)]),
        Section("rungs", "Every setting", table=Table(columns, tuple(rows), note=note)),
        Section("next", "What to do next", code=f"shoal run {path}\nshoal audit runs/protected --references 16"),
    )
    lead = [("verdict", " ".join(sentences[:2])), *(("", sentence) for sentence in sentences[2:])]
    return render("page.html.j2", "Protection", lead, (), sections, style="run")
