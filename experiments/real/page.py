"""The table and the figure of docs/real.md, from the rows that `run.py` has written.

    python experiments/real/page.py OUT/runs.csv [MORE.csv ...] docs/results/real

Writes runs.csv (all rows), accuracy.csv (means over seeds, and the paired difference to FedAvg with its 95 % interval
by Student's t over three or more seeds), exposure.csv (each audited run by view), tables.md and accuracy.svg.
"""

import argparse
from math import isnan, nan
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from shoal.metrics import mean_interval

MEASURES = ("accuracy", "accuracy.minority", "worst_tenth", "worst", "accuracy_on_group_rows")
SHOWN = ("local", "by-group", "ifca", "ifca-mir", "ditto", "auto", "private")

VIEWS = ("outsider", "client", "server")


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
        for view in VIEWS:
            for who in ("minority", "majority"):
                figures = {key: run[f"{view}.{who}.{key}"] for key in ("attack", "accuracy", "low", "high", "verdict")}
                about = {key: run[key] for key in ("table", "method", "seed")}
                rows.append(about | {"view": view, "group": run[who]} | figures)
    return pd.DataFrame(rows).dropna(subset=["accuracy"]).round(4)


def words(accuracy: pd.DataFrame, exposure: pd.DataFrame) -> str:
    """The tables of all measures and of exposure, in Markdown."""
    parts = ["# Real federations: every table\n\nTables of [this page](../../real.md), by `experiments/real/page.py`."]
    parts.append(
        "FedAvg in percent, and other methods in points above FedAvg, paired by seed; bold 95 % intervals exclude 0."
    )
    for measure, rows in accuracy.groupby("measure", sort=False):
        lines = [
            f"## {measure}",
            "",
            f"| federation | FedAvg | {' | '.join(SHOWN)} |",
            "|---|" + "---:|" * (len(SHOWN) + 1),
        ]
        for table, of_table in rows.groupby("table", sort=False):
            own = of_table.set_index("method")
            fedavg = 100 * float(own["mean"]["fedavg"])
            points = {str(row["method"]): _points(row) for _, row in of_table.iterrows()}
            cells = [points.get(name, "not run") for name in SHOWN]
            lines.append(f"| {table} | {fedavg:.1f} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    lines = [
        "## Exposure",
        "",
        "Attack accuracy on each audited run's most exposed group; * marks a verdict other than exposed.",
        "",
    ]
    lines += ["| federation | method | seed | outsider | client | server |", "|---|---|---:|---|---|---|"]
    for key, own in exposure.groupby(["table", "method", "seed"], sort=False):
        lines.append(f"| {' | '.join(map(str, key))} | " + " | ".join(_worst(own, view) for view in VIEWS) + " |")
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def _points(row: pd.Series) -> str:
    if isnan(row["low"]):
        return f"{100 * row['difference']:+.1f} ({row['seeds']} seeds)"
    text = f"{100 * row['difference']:+.1f} ({100 * row['low']:+.1f} to {100 * row['high']:+.1f})"
    return f"**{text}**" if row["low"] > 0 or row["high"] < 0 else text


def _worst(rows: pd.DataFrame, view: str) -> str:
    own = rows[rows["view"] == view]
    if own.empty:
        return "not run"
    exposed = own[own["verdict"] == "exposed"]
    worst = (own if exposed.empty else exposed).sort_values("accuracy").iloc[-1]
    return (
        f"{worst['accuracy']:.3f} ({worst['low']:.3f} to {worst['high']:.3f}), {worst['group']}" + "*" * exposed.empty
    )


def draw(accuracy: pd.DataFrame, path: Path) -> None:
    """Draw the difference to FedAvg of each method on each table, with its interval."""
    tables, chosen = list(accuracy["table"].unique()), accuracy[accuracy["measure"] == "accuracy"]
    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for i, method in enumerate(SHOWN):
        rows = chosen[chosen["method"] == method].set_index("table").reindex(tables)
        reach = [100 * (rows["difference"] - rows["low"]), 100 * (rows["high"] - rows["difference"])]
        place = [t + 0.12 * (i - 3) for t in range(len(tables))]
        axes.errorbar(place, 100 * rows["difference"], reach, fmt="osD^v*P"[i], capsize=2, label=method)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(tables)), tables)
    axes.set_ylabel("points above FedAvg")
    figure.legend(ncols=7, loc="outside upper center", fontsize="small", frameon=False)
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
    (asked.out / "tables.md").write_text(words(accuracy, exposure), encoding="utf-8")
    draw(accuracy, asked.out / "accuracy.svg")


if __name__ == "__main__":
    main()
