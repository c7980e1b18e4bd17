"""Exposure against examples per class: a power law fitted on clusters of known size, and what it says of others.

    python experiments/audit/sizes.py docs/results/audit/alone docs/results/audit/mlp docs/results/audit/alone

The first folder has the attacks (attacks.csv of attacks.py) on groups that train alone, by their number of images; the
second those on federations, whose models are predicted. Written into the third: sizes.svg, sizes.pdf and sizes.md.

The law: advantage = 2 * balanced accuracy - 1 = a * (examples per class) ^ -b, by least squares of the logarithms.
Source of its form, for centralised training: Tobaben et al. 2024, arXiv:2402.06674.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from shoal.core.atomic_files import write_bytes, write_text
from shoal.reports.plotting import cluster_style, figure_files

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import spread, table

CLASSES = 10
ATTACKS = ("rmia", "calibration", "loss", "posterior")


def advantages(attacks: pd.DataFrame) -> pd.DataFrame:
    """The advantage of each attack with most references, by algorithm, seed and examples per class."""
    most = attacks[(attacks["references"] == attacks["references"].max()) & (attacks["name"] == "all")]
    rows = most[["algorithm", "seed", "attack"]].assign(
        per_class=most["members"] / CLASSES, advantage=2 * most["accuracy"] - 1
    )
    return rows[rows["attack"].isin(ATTACKS)]


def law(rows: pd.DataFrame) -> tuple[float, float]:
    """a and b of the law, from the mean advantages by size."""
    means = rows.groupby("per_class")["advantage"].mean()
    slope, level = np.polyfit(np.log(means.index.to_numpy()), np.log(means.to_numpy()), 1)
    return float(np.exp(level)), -float(slope)


def draw(known: pd.DataFrame, others: pd.DataFrame, laws: dict[str, tuple[float, float]], figure: Figure) -> None:
    """Means with standard deviations over seeds; lines: the laws; hollow: models that the laws were not fitted on."""
    axes = figure.subplots()
    for i, (name, (a, b)) in enumerate(laws.items()):
        style = cluster_style(i)
        for rows, face in ((known, style.color), (others, "white")):
            by = rows[rows["attack"] == name].groupby("per_class")["advantage"].agg(["mean", "std"])
            axes.errorbar(
                by.index, by["mean"], yerr=by["std"], color=style.color, marker=style.marker, linestyle="",
                markerfacecolor=face, capsize=2, label=name if face == style.color else None,
            )  # fmt: skip
        ends = pd.concat([known, others])["per_class"]
        x = np.geomspace(ends.min(), ends.max(), 50)
        axes.plot(x, a * x**-b, color=style.color, dashes=(4, 2) if i else (), linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="training examples per class of the model", ylabel="advantage, 2 A - 1")
    sizes = sorted(pd.concat([known, others])["per_class"].unique())
    axes.set_xticks(sizes, labels=[f"{each:.0f}" for each in sizes])
    axes.set_xticks([], minor=True)
    axes.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5], labels=["0.02", "0.05", "0.1", "0.2", "0.5"])
    axes.set_yticks([], minor=True)
    axes.legend(frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("alone", type=Path, help="a folder with the attacks on groups that train alone")
    parser.add_argument("federations", type=Path, help="a folder with the attacks on federations")
    parser.add_argument("out", type=Path, help="where the figure and the table are written")
    arguments = parser.parse_args()
    known = advantages(pd.read_csv(arguments.alone / "attacks.csv"))
    federations = pd.read_csv(arguments.federations / "attacks.csv")
    others = advantages(federations[federations["algorithm"] == "FedAvg"])
    laws = {name: law(known[known["attack"] == name]) for name in ATTACKS}
    rows = []
    for name, (a, b) in laws.items():
        for per_class, there in others[others["attack"] == name].groupby("per_class"):
            predicted = 0.5 + a * float(per_class) ** -b / 2
            measured = 0.5 + there["advantage"] / 2
            rows.append([name, f"{a:.2f}", f"{b:.2f}", f"{per_class:g}", f"{predicted:.3f}", spread(measured)])
    heads = ["attack", "a", "b", "examples per class", "predicted balanced accuracy", "measured"]
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_text(
        arguments.out / "sizes.md", table("FedAvg's model, from the law of groups that train alone", heads, rows) + "\n"
    )
    alt = "Advantage of four attacks against training examples per class, both logarithmic, with fitted power laws."
    files = figure_files(alt, lambda figure: draw(known, others, laws, figure), (5.2, 3.6), name="sizes")
    write_bytes(arguments.out / "sizes.svg", files.svg)
    write_bytes(arguments.out / "sizes.pdf", files.pdf)


if __name__ == "__main__":
    main()
