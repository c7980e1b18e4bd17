"""The board's figure: what the minority gains by each defence, and who else recognises its clients' records.

    python experiments/board/figure.py docs/results/board/minority.svg

A panel for each federation, a mark for each defence: mean over the judging seeds with 95 % intervals (Student's t).
"""

import sys
from math import isnan
from pathlib import Path
from typing import Any

from board import read_rows
from matplotlib.figure import Figure
from places import standings

from shoal.core.atomic_files import write_bytes
from shoal.reports import plotting as plot

HERE = Path(__file__).resolve().parent

KINDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "begun on the server's labels": ("#0072B2", "s", (
        "shadow set alone", "noise in one sum", "noise in cluster sums",
    )),
    "at the clients": ("#009E73", "p", ("DP-SGD", "augmentation", "fewer rounds")),
    "of the models": ("#CC79A7", "D", ("few features", "students", "pooling")),
    "no defence": ("#D55E00", "o", ("IFCA", "one-shot start", "FedAvg")),
}  # fmt: skip
"""Colour (of Okabe and Ito's) and mark of each kind of defence, whose names are in the order of their letters."""

TITLE = "Where the server's labels miss the minority,\nwhat serves it exposes it to other clients"
"""What the figure shows."""

PANELS = {
    "distant": "distant: the server has labels of both groups",
    "near": "near: of both groups, which share much",
    "many": "many: of all three groups",
    "labels": "labels: the same label means another digit",
    "one-sided": "one-sided: the server has no minority images",
}


def draw(figure: Figure) -> None:
    rows = read_rows(HERE)
    with_rows = {*rows["defence"]}
    judged = {kind: (*look, [name for name in names if name in with_rows]) for kind, (*look, names) in KINDS.items()}
    letters = {name: chr(ord("a") + i) for i, name in enumerate(n for *_, names in judged.values() for n in names)}
    axes = figure.subplots(len(PANELS), 1, sharex=True, sharey=True)
    for axis, (federation, title) in zip(axes, PANELS.items(), strict=True):
        table = standings(rows, federation).set_index("defence")
        for color, mark, names in judged.values():
            for name in names:
                if name in table.index:
                    _mark(axis, table.loc[name], letters[name], color, mark)
        axis.axvline(0.5, **plot.CHANCE_LINE)
        axis.set_title(title, loc="left")
        axis.set_xlim(0.47, 1.03)
        axis.set_ylim(0, 1)
        axis.set_ylabel("minority's accuracy")
    axes[-1].set_xlabel("another client recognises records (AUC; 0.5 is chance)")
    handles = []
    for kind, (color, mark, names) in judged.items():
        said = ", ".join(f"{letters[name]} {name}" for name in names)
        handles.append(plot.key(f"{kind}:\n{said}", color=color, marker=mark, linestyle="", markersize=9))
    figure.legend(handles=handles, loc="outside upper left", title=TITLE, title_fontsize=11, alignment="left")


def _mark(axis: Any, row: Any, letter: str, color: str, mark: str) -> None:  # noqa: ANN401 - of matplotlib, of pandas
    """One defence: its intervals, thin, and its letter in its mark."""
    x, y = row["client"], row["minority"]
    if isnan(x):
        return
    axis.errorbar(x, y, xerr=row["client.half"], yerr=row["minority.half"], color=color, elinewidth=0.9, alpha=0.55)
    axis.plot([x], [y], color=color, marker=mark, markersize=11, markeredgecolor="white")
    axis.text(x, y, letter, color="white", ha="center", va="center_baseline", fontsize=7.5, weight="bold")


def main() -> None:
    title = "The minority's accuracy and another client's exposure by defence, in five federations."
    files = plot.figure_files(title, draw, (plot.WIDTH, 11.5))
    write_bytes(Path(sys.argv[1]), files.svg)


if __name__ == "__main__":
    main()
