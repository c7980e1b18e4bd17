"""Prints the tables of docs/results/evidence.md from finished runs, and writes their summaries as one CSV.

python experiments/ifca-mir/table.py runs/fashion-mnist docs/results/ifca-mir/fashion-mnist.csv
"""

import json
import sys
from pathlib import Path

import pandas as pd

ROWS = {
    "accuracy.overall": "accuracy, all clients",
    "accuracy.minority": "accuracy, minority",
    "accuracy.majority": "accuracy, majority",
    "train_accuracy.minority": "train accuracy, minority",
    "train_accuracy.majority": "train accuracy, majority",
    "gap.minority": "gap attack, minority",
    "gap.majority": "gap attack, majority",
    "mia.minority": "MIA accuracy, minority",
    "mia.majority": "MIA accuracy, majority",
    "mia_population.minority": "MIA, population non-members, minority",
    "mia_population.majority": "MIA, population non-members, majority",
    "loss_threshold.minority": "loss threshold, minority",
    "loss_threshold.majority": "loss threshold, majority",
    "small.mia": "MIA accuracy, smaller model",
    "large.mia": "MIA accuracy, larger model",
    "small.clients": "clients of the smaller model",
    "violations.total": "violations",
    "violations.minority": "violations, minority",
    "migrated": "migrated clients",
    "adjusted_rand_index": "adjusted Rand index",
    "fairness.demographic_parity": "demographic parity difference",
    "fairness.equal_opportunity": "equal opportunity difference",
    "fairness.equalized_odds": "equalized odds difference",
    "seconds.total": "seconds",
}


def read(folder: Path) -> pd.DataFrame:
    """A row a run: its name, its seed, and its summary."""
    rows = []
    for path in sorted(folder.glob("*/summary.json")):
        summary = json.loads(path.read_text())
        sizes = {k: summary[f"clusters.{k}.clients"] for k in range(2) if f"clusters.{k}.clients" in summary}
        small, large = min(sizes, key=lambda k: sizes[k]), max(sizes, key=lambda k: sizes[k])
        summary |= {"small.clients": sizes[small], "large.mia": summary[f"clusters.{large}.mia"]}
        if small != large and f"clusters.{small}.mia" in summary:
            summary["small.mia"] = summary[f"clusters.{small}.mia"]
        rows.append({"run": path.parent.name.rpartition("-")[0]} | summary)
    return pd.DataFrame(rows)


def main() -> None:
    runs = read(Path(sys.argv[1]))
    runs.to_csv(sys.argv[2], index=False)
    for name, mine in runs.groupby("run"):
        print(f"\n**{name}**, seeds {', '.join(str(seed) for seed in mine['seed'])}\n")
        print(f"| | {' | '.join(f'seed {seed}' for seed in mine['seed'])} | mean +- sd |")
        print("|---|" + "---:|" * (len(mine) + 1))
        for key, label in ROWS.items():
            if key not in mine or mine[key].isna().all():
                continue
            values = mine[key].astype(float)
            digits = 0 if values.dropna().apply(float.is_integer).all() or key == "seconds.total" else 3
            cells = ["-" if pd.isna(value) else f"{value:.{digits}f}" for value in values]
            spread = f"{values.mean():.{max(digits, 1)}f} +- {values.std():.{max(digits, 1)}f}"
            print(f"| {label} | {' | '.join(cells)} | {spread} |")


if __name__ == "__main__":
    main()
