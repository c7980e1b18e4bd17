"""The picture of docs/leaving.md: the AUC by method and view, from the table that leaving.py wrote.

    python experiments/real/leaving_figure.py OUT/table.csv OUT/auc.svg

Each view has one attack, named beforehand: the largest of several is above 0.5 by chance. Bars are 95 % intervals of
the mean over seeds; federations with fewer than three seeds have none, and are left out.
"""

import argparse
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from shoal.core.atomic_files import write_bytes
from shoal.reports.plotting import CHANCE_LINE, chance_key, cluster_style, figure_files, key, legend

METHODS = ("never", "exact", "continue", "fed-eraser", "gradient-ascent")
ATTACKS = {
    "attacks.lira-before.leaver.auc": "outsider, before it left (LiRA)",
    "attacks.lira.leaver.auc": "outsider, at the end (LiRA)",
    "attacks.span-pair.leaver.auc": "kept the old models (span)",
}


def draw(table: pd.DataFrame, figure: Figure) -> None:
    """One panel per federation, one row per method, one mark per view."""
    names = [*table["data"].unique()]
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        axes.axvline(0.5, **CHANCE_LINE)
        own = table[table["data"] == name]
        for i, attack in enumerate(ATTACKS):
            rows = own[own["figure"] == attack].set_index("method").reindex([*METHODS])
            reach = [(rows["mean"] - rows["low"]).fillna(0), (rows["high"] - rows["mean"]).fillna(0)]
            place = [len(METHODS) - m - 0.22 * (i - 1) for m in range(len(METHODS))]
            axes.errorbar(rows["mean"], place, xerr=reach, **cluster_style(i).mark, elinewidth=1.5, capsize=3)
        axes.set(title=f"{name}, {own['seeds'].max()} seeds", xlim=(0, 1.02), xlabel="AUC")
        axes.set_yticks([len(METHODS) - m for m in range(len(METHODS))], METHODS)
    legend(figure, [*(key(name, **cluster_style(i).mark) for i, name in enumerate(ATTACKS.values())), chance_key()], 2)


def main() -> None:
    """Draw the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    table = pd.read_csv(asked.table)
    table = table[table["figure"].isin(ATTACKS) & table["low"].notna()]
    words = [
        f"{data}, {method}, {ATTACKS[str(attack)]}: {mean:.2f}"
        for data, method, attack, mean in table[["data", "method", "figure", "mean"]].itertuples(index=False)
    ]
    size = (2.2 + 3.2 * table["data"].nunique(), 4.2)
    drawn = figure_files(f"AUC by method and view. {'; '.join(words)}", lambda figure: draw(table, figure), size)
    write_bytes(asked.out, drawn.svg)


if __name__ == "__main__":
    main()
