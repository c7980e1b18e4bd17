"""The table and the figure of docs/real.md, from the rows that `run.py` has written.

    python experiments/real/page.py OUT/runs.csv [MORE.csv ...] docs/results/real

Writes runs.csv (all rows), accuracy.csv (means over seeds, and the paired difference to FedAvg with its 95 % interval
by Student's t over three or more seeds), exposure.csv (each audited run by view), and accuracy.svg.
"""

import argparse
from math import nan
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from shoal.metrics import mean_interval

MEASURES = ("accuracy", "accuracy.minority", "worst_tenth", "worst", "accuracy_on_group_rows")
SHOWN = ("local", "by-group", "ifca", "ifca-mir", "ditto", "auto")


def accuracy_table(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per table, method and measure: the mean over seeds, and its difference to FedAvg in the same seeds."""
    rows = []
    for table, of_table in runs.groupby("table", sort=False):
        for measure in MEASURES:
            by_method = of_table.pivot(index="seed", columns="method", values=measure)
            for method in by_method.columns:
                paired = (by_method[method] - by_method["fedavg"]).dropna().to_numpy()
                low, high = mean_interval(paired, 0.95) if len(paired) > 2 else (nan, nan)
                rows.append({"table": table, "measure": measure, "method": method, "seeds": len(paired),
                             "mean": by_method[method].mean(), "difference": paired.mean(), "low": low,
                             "high": high})  # fmt: skip
    return pd.DataFrame(rows).round(4)


def exposure_table(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per audited run, view and group."""
    rows = []
    for run in runs[runs["references"].notna()].to_dict("records"):
        for view in ("outsider", "client", "server"):
            for who in ("minority", "majority"):
                figures = {key: run[f"{view}.{who}.{key}"] for key in ("attack", "accuracy", "low", "high", "verdict")}
                about = {key: run[key] for key in ("table", "method", "seed")}
                rows.append(about | {"view": view, "group": run[who]} | figures)
    return pd.DataFrame(rows).dropna(subset=["accuracy"]).round(4)


def draw(accuracy: pd.DataFrame, path: Path) -> None:
    """Draw the difference to FedAvg of each method on each table, with its interval."""
    tables, chosen = list(accuracy["table"].unique()), accuracy[accuracy["measure"] == "accuracy"]
    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for i, method in enumerate(SHOWN):
        rows = chosen[chosen["method"] == method].set_index("table").reindex(tables)
        reach = [100 * (rows["difference"] - rows["low"]), 100 * (rows["high"] - rows["difference"])]
        place = [t + 0.13 * (i - 2.5) for t in range(len(tables))]
        axes.errorbar(place, 100 * rows["difference"], reach, fmt="osD^v*"[i], capsize=2, label=method)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylim(-12, 12)
    axes.set_xticks(range(len(tables)), tables)
    axes.set_ylabel("points above FedAvg")
    axes.legend(ncols=6, loc="upper center", fontsize="small", frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Read the rows and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    runs = pd.concat([pd.read_csv(path) for path in asked.runs]).drop_duplicates(["table", "method", "seed"])
    accuracy, exposure = accuracy_table(runs), exposure_table(runs)
    runs.to_csv(asked.out / "runs.csv", index=False)
    accuracy.to_csv(asked.out / "accuracy.csv", index=False)
    exposure.to_csv(asked.out / "exposure.csv", index=False)
    draw(accuracy, asked.out / "accuracy.svg")


if __name__ == "__main__":
    main()
