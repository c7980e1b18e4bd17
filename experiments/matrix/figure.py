"""A sweep over algorithms and defences: a table, differences from one of them, and a figure.

    shoal sweep experiments/matrix/small.toml --jobs 2
    python experiments/matrix/figure.py runs/small docs/results/choosing/matrix --beside IFCA

Written: OUT.svg, OUT.md and OUT.csv (a row for each run). Exposure is by the strongest attack on the model that each
client uses; violations are the clients whose exposure is above their limit.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from shoal.core.atomic_files import write_bytes, write_text
from shoal.metrics import mean_interval
from shoal.reports.plotting import figure_files
from shoal.sweeps import read_sweep
from shoal.sweeps.results_table import read_results

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import differences, spread, table
from run_figures import of_clients

FIGURES = {
    "accuracy": "accuracy",
    "accuracy.minority": "of the minority",
    "exposure": "exposure, mean over clients",
    "exposure.minority": "of the minority",
    "worst": "most exposed client",
    "tpr": "TPR at 1 % FPR, majority",
    "violations": "violations",
    "fairness": "demographic parity difference",
    "grouping": "grouping (ARI)",
}
"""Columns of the table; the minority has too few records for a rate of 1 %."""

COMPARED = ("accuracy", "accuracy.minority", "exposure", "exposure.minority", "violations")
"""Those whose differences from the setting beside are given."""

PANELS = {
    "accuracy on held-out images (%)": ("accuracy", "accuracy.minority", 100),
    "exposure: balanced accuracy of\nthe strongest attack (chance: 0.5)": ("exposure", "exposure.minority", 1),
}
"""Axis: what is shown of all clients, what of the minority, and the factor."""

BLUE, ORANGE = "#0072B2", "#D55E00"
"""Of Okabe and Ito's colours, which differ for any kind of colour blindness; marks differ too."""


def measured(sweep: Path) -> pd.DataFrame:
    """A row for each run: its setting, seed, and `FIGURES`."""
    asked = read_sweep(sweep / "sweep.toml")
    axis = next(iter(asked.axes))
    rows = []
    for run in read_results(sweep, asked.axes).to_dict("records"):
        of_run = of_clients(sweep / "runs" / str(run["run"]))
        rows.append({
            "setting": str(run[axis]),
            "seed": run["seed"],
            "accuracy": run["accuracy.overall"],
            "accuracy.minority": run["accuracy.minority"],
            "exposure": of_run["exposure"],
            "exposure.minority": run["exposure.minority"],
            "worst": of_run["worst"],
            "tpr": run.get("tpr_at_fpr_0.01.majority", np.nan),
            "violations": float(run["violations.total"]),
            "fairness": run["fairness.demographic_parity"],
            "grouping": run["adjusted_rand_index"],
            "epsilon": run.get("epsilon", np.nan),
        })  # fmt: skip
    return pd.DataFrame(rows)


def compared(runs: pd.DataFrame, beside: str) -> list[list[str]]:
    """For each other setting, the paired differences of `COMPARED` from ``beside``: mean and 95 % interval."""
    indexed = runs.set_index(["setting", "seed"])
    rows = []
    for name in runs["setting"].unique():
        if name == beside:
            continue
        apart = (indexed.loc[name] - indexed.loc[beside]).dropna(how="all")
        cells = []
        for figure in COMPARED:
            mean, interval, _ = differences(apart[figure])
            low, high = mean_interval(apart[figure].to_numpy())
            cells.append(f"**{mean}** ({interval})" if low * high > 0 else f"{mean} ({interval})")
        rows.append([name, *cells])
    return rows


def draw(runs: pd.DataFrame, names: list[str], figure: Figure) -> None:
    """A line for each setting, means over seeds with the seeds' standard deviation."""
    axes = figure.subplots(1, 2, sharey=True)
    where = np.arange(len(names))
    for axis, (label, (everybody, minority, factor)) in zip(axes, PANELS.items(), strict=True):
        for column, colour, mark, name, moved in (
            (everybody, BLUE, "o", "all clients", 0.12),
            (minority, ORANGE, "D", "minority", -0.12),
        ):
            of = runs.groupby("setting")[column]
            mean, sd = factor * of.mean()[names], factor * of.std()[names]
            axis.errorbar(mean, where + moved, xerr=sd, fmt=mark, color=colour, ms=5, lw=1, label=name)
        axis.set_xlabel(label)
        axis.set_yticks(where, names)
        axis.grid(visible=True)
    axes[1].axvline(0.5, color="black", lw=1, ls=":")
    axes[0].legend(loc="lower left", fontsize="small")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="the directory of a finished sweep")
    parser.add_argument("out", type=Path, help="the files' path without its ending")
    parser.add_argument("--beside", default="IFCA", help="the setting from which differences are taken")
    arguments = parser.parse_args()
    runs = measured(arguments.sweep)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(arguments.out.with_suffix(".csv"), runs.to_csv(index=False))
    rows = [
        [str(name), *(spread(some[figure]) for figure in FIGURES)] for name, some in runs.groupby("setting", sort=False)
    ]
    seeds = runs["seed"].nunique()
    parts = [
        table(f"{seeds} seeds, mean ± standard deviation", ["setting", *FIGURES.values()], rows),
        table(
            f"Less {arguments.beside} of the same seed, 95 % interval; bold where it is not around 0",
            ["setting", *(FIGURES[figure] for figure in COMPARED)],
            compared(runs, arguments.beside),
        ),
    ]
    write_text(arguments.out.with_suffix(".md"), "\n".join([*parts, ""]))
    names = list(runs.groupby("setting")["exposure"].mean().sort_values(ascending=False).index)
    alt = "Accuracy and exposure of every setting, of all clients and of the minority, the least exposed first."
    size = (9, 0.28 * len(names) + 1.4)
    files = figure_files(alt, lambda figure: draw(runs, names, figure), size)
    write_bytes(arguments.out.with_suffix(".svg"), files.svg)


if __name__ == "__main__":
    main()
