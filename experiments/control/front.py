"""Accuracy against exposure of the runs of a sweep: a figure, a table and the dominated area of each family.

    shoal sweep experiments/control/front.toml --jobs 2
    python experiments/control/front.py runs/front docs/results/control/front

A family is the settings whose names begin alike, up to a comma or a number: "augmentation 5", "augmentation 10".
Written: OUT.svg, OUT.md and OUT.csv (a row for each run), which may be given again beside sweeps of other settings.
Exposure is by the strongest attack on each client's model, averaged over clients; violations are those that are
expected of limits uniform in [0.5, 0.8], or in --limits. With --against and --line OUT.md has paired differences too.
"""

import argparse
import re
import sys
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from shoal.core.atomic_files import write_bytes, write_text
from shoal.reports.plotting import figure_files
from shoal.sweeps import read_sweep
from shoal.sweeps.results_table import read_results

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import differences, spread, table
from run_figures import LIMITS, of_clients

WORST = (0.55, 0.70)
"""Accuracy and exposure of the corner from which areas are measured."""

FIGURES = {
    "accuracy": "accuracy",
    "accuracy.minority": "of the minority",
    "exposure": "exposure",
    "worst": "most exposed client",
    "tpr": "TPR at 1 % FPR, minority",
    "expected": "violations expected",
}

COMPARED = ("accuracy", "accuracy.minority", "exposure", "worst", "expected")
"""The figures with printed differences."""

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""Okabe and Ito's, which differ for any kind of colour blindness; families differ by their marks as well."""


def family(setting: str) -> str:
    """The name of a setting without its strength.

    >>> family("L2 0.01"), family("IFCA, 40 rounds")
    ('L2', 'IFCA')
    """
    return re.split(r",| \d", setting, maxsplit=1)[0]


def measured(sweep: Path, limits: tuple[float, float]) -> pd.DataFrame:
    """A row for each run of a sweep's directory or of a file of this script: its setting, seed, and `FIGURES`."""
    if sweep.suffix == ".csv":
        return pd.read_csv(sweep)
    asked = read_sweep(sweep / "sweep.toml")
    axis = next(iter(asked.axes))
    return pd.DataFrame(
        {
            "setting": str(run[axis]),
            "seed": run["seed"],
            "accuracy": run["accuracy.overall"],
            "accuracy.minority": run["accuracy.minority"],
            "tpr": run.get("tpr_at_fpr_0.01.minority", np.nan),
            **of_clients(sweep / "runs" / str(run["run"]), limits),
        }
        for run in read_results(sweep, asked.axes).to_dict("records")
    )


def dominated_area(accuracy: NDArray[np.float64], exposure: NDArray[np.float64]) -> float:
    """The area between the corner `WORST` and the points that some run reaches: the hypervolume of its front.

    >>> round(dominated_area(np.array([0.65]), np.array([0.60])), 4)
    0.01
    """
    area, best = 0.0, WORST[1]
    for each in np.argsort(-accuracy):
        if accuracy[each] > WORST[0] and exposure[each] < best:
            area += (accuracy[each] - WORST[0]) * (best - exposure[each])
            best = exposure[each]
    return float(area)


def front(means: pd.DataFrame) -> list[str]:
    """The settings that no other is better than in both figures, by accuracy."""
    names = []
    for name, row in means.sort_values("accuracy", ascending=False).iterrows():
        if all(row["exposure"] < means.loc[other, "exposure"] for other in names):
            names.append(str(name))
    return names


def apart(runs: pd.DataFrame, others: pd.DataFrame, title: str) -> str:
    """A table of each setting's figures less those of ``others``, by setting and seed; paired by seed."""
    less, rows = runs.set_index(["setting", "seed"])[list(others)] - others, []
    for name, some in less.dropna().groupby(level=0, sort=False):
        rows += [[str(name), FIGURES[figure], *differences(some[figure])] for figure in others]
    return table(title, ["setting", "", "difference", "95 % interval", "seeds above"], rows)


def of_setting(runs: pd.DataFrame, setting: str) -> pd.DataFrame:
    """The figures of ``setting``, for every setting and seed."""
    by_seed = runs[runs["setting"] == setting].set_index("seed")[list(COMPARED)]
    return by_seed.reindex(runs["seed"]).set_index(pd.MultiIndex.from_frame(runs[["setting", "seed"]]))


def of_line(runs: pd.DataFrame, ends: tuple[str, str]) -> pd.DataFrame:
    """The figures on the straight line between two settings, at the accuracy of every other setting and seed.

    >>> runs = pd.DataFrame({"setting": ["a", "b", "c"], "seed": 0, "accuracy": [0.6, 0.8, 0.65]})
    >>> runs = runs.assign(**{figure: [0.0, 0.4, 0.7] for figure in COMPARED[1:]})
    >>> of_line(runs, ("a", "b")).loc[("c", 0), "exposure"].round(3)
    0.1
    """
    low, high = (of_setting(runs, each) for each in ends)
    share = (runs.set_index(low.index)["accuracy"] - low["accuracy"]) / (high["accuracy"] - low["accuracy"])
    return (low + (high - low).mul(share, axis=0))[list(COMPARED[1:])].drop(index=list(ends), level=0)


def draw(means: pd.DataFrame, figure: Figure) -> None:
    """A line for each family, its settings by accuracy."""
    axes = figure.subplots()
    marks, colours = cycle("osD^vPX*<>hp"), cycle(COLOURS)
    for name, some in means.sort_values("accuracy").groupby(family, sort=False):
        axes.plot(100 * some["accuracy"], some["exposure"], marker=next(marks), color=next(colours), label=name, lw=1)
    best = means.loc[front(means)].sort_values("accuracy")
    axes.plot(100 * best["accuracy"], best["exposure"], color="black", lw=5, alpha=0.15, label="front", zorder=0)
    axes.set_xlabel("accuracy on held-out images (%)")
    axes.set_ylabel("exposure: balanced accuracy of the strongest attack,\nmean over clients (chance: 0.5)")
    axes.legend(ncols=2, fontsize="small")
    axes.grid(visible=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "sweeps", type=Path, nargs="+", help="directories of finished sweeps, or CSV files of this script"
    )
    parser.add_argument("out", type=Path, help="the files' path without its ending")
    parser.add_argument(
        "--limits", type=float, nargs=2, default=LIMITS, metavar=("LOW", "HIGH"), help="what clients tolerate"
    )
    parser.add_argument("--against", metavar="SETTING", help="print every setting's differences from this one")
    parser.add_argument(
        "--line",
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="and from the straight line between these two, at equal accuracy",
    )
    arguments = parser.parse_args()
    runs = pd.concat([measured(sweep, tuple(arguments.limits)) for sweep in arguments.sweeps], ignore_index=True)
    for name in [arguments.against or runs["setting"][0], *(arguments.line or [])]:
        if name not in set(runs["setting"]):
            parser.error(f"no setting '{name}'; there are {', '.join(runs['setting'].unique())}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(arguments.out.with_suffix(".csv"), runs.to_csv(index=False))
    # Below 200 members a group has no TPR at 1 % FPR.
    shown = {figure: said for figure, said in FIGURES.items() if runs[figure].notna().any()}
    means = runs.groupby("setting", sort=False)[list(shown)].mean()
    best = front(means)
    rows = [
        [f"**{name}**" if name in best else str(name), *(spread(some[figure]) for figure in shown)]
        for name, some in runs.groupby("setting", sort=False)
    ]
    title = f"{runs['seed'].nunique()} seeds, mean ± standard deviation; on the front: bold"
    parts = [table(title, ["setting", *shown.values()], rows)]
    areas = [
        [name, f"{1000 * dominated_area(some['accuracy'].to_numpy(), some['exposure'].to_numpy()):.2f}"]
        for name, some in means.groupby(family, sort=False)
    ]
    heads = ["family", f"area below accuracy and above exposure, from {WORST[0]:g} and {WORST[1]:g}, in thousandths"]
    parts.append(table("Hypervolume of the means", heads, areas))
    if arguments.against:
        others = of_setting(runs, arguments.against).drop(index=arguments.against, level=0)
        parts.append(apart(runs, others, f"Less {arguments.against}, of the same seed"))
    if arguments.line:
        parts.append(
            apart(runs, of_line(runs, tuple(arguments.line)), f"Less the line from {' to '.join(arguments.line)}")
        )
    write_text(arguments.out.with_suffix(".md"), "\n".join([*parts, ""]))
    alt = "Accuracy against exposure of every setting, means over seeds; the settings of a family are joined by a line."
    write_bytes(arguments.out.with_suffix(".svg"), figure_files(alt, lambda figure: draw(means, figure), (9, 6)).svg)


if __name__ == "__main__":
    main()
