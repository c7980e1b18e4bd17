"""Whether a sweep such as bar.toml takes the bar: the coordinator against IFCA-MIR, seed by seed.

    shoal sweep experiments/control/bar.toml --jobs 2
    python experiments/control/bar.py runs/bar docs/results/control/bar.md

The bar: at most half of IFCA-MIR's violations, accuracy (all, minority) not lower by more than one point, and no model
with fewer than one client in twenty. "Expected" violations are the mean over limits uniform in [0.5, 0.8], not over
those drawn.
"""

import argparse
import sys
from pathlib import Path

import pandas as pd

from shoal.core.atomic_files import write_text
from shoal.sweeps import read_sweep
from shoal.sweeps.results_table import read_results

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import differences, spread, table
from run_figures import of_clients

FIGURES = {
    "violations.total": "violations",
    "expected": "violations expected",
    "exposure": "exposure, mean over clients",
    "worst": "exposure, most exposed client",
    "tpr_at_fpr_0.01.minority": "TPR at 1 % FPR, minority",
    "accuracy.overall": "accuracy",
    "accuracy.minority": "accuracy, minority",
    "smallest": "clients of the smallest model in use",
    "canaries.auc": "canaries: AUC",
    "canaries.tpr_at_fpr_0.1": "canaries: TPR at 10 % FPR",
    "canaries.tpr_at_fpr_0.01": "canaries: TPR at 1 % FPR",
    "seconds.train": "training, s",
}


def measured(sweep: Path) -> pd.DataFrame:
    """A row for each run: algorithm, seed, and those of `FIGURES` that it has."""
    runs, rows = read_results(sweep, read_sweep(sweep / "sweep.toml").axes), []
    for run in runs.to_dict("records"):
        own = of_clients(sweep / "runs" / str(run["run"]))
        rows.append(
            {**{key: run.get(key) for key in FIGURES}, **own, "algorithm": run["algorithm"], "seed": run["seed"]}
        )
    return pd.DataFrame(rows)


def taken(runs: pd.DataFrame) -> list[list[str]]:
    """A row for each seed: figures of IFCA-MIR and of the coordinator, and what of the bar was missed."""
    by, rows = runs.set_index(["algorithm", "seed"]), []
    for seed in sorted(runs["seed"].unique()):
        before, after = by.loc[("IFCA-MIR", seed)], by.loc[("coordinator", seed)]
        missed = []
        if after["violations.total"] > before["violations.total"] / 2:
            missed.append("violations")
        accuracies = ("accuracy.overall", "accuracy.minority")
        missed += [FIGURES[key] for key in accuracies if after[key] < before[key] - 0.01]
        if after["smallest"] * 20 < 50:
            missed.append("smallest model")
        cells = [
            f"{before[key]:.3g} / {after[key]:.3g}"
            for key in ("violations.total", "accuracy.overall", "accuracy.minority")
        ]
        rows.append([str(seed), *cells, f"{after['smallest']:.0f}", ", ".join(missed) or "taken"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="the directory of a finished sweep")
    parser.add_argument("out", type=Path, help="the Markdown file that is written")
    arguments = parser.parse_args()
    runs = measured(arguments.sweep)
    names = list(dict.fromkeys(runs["algorithm"]))
    shown = [key for key in FIGURES if runs[key].notna().any()]
    rows = []
    for key in shown:
        by = runs.pivot_table(index="seed", columns="algorithm", values=key)
        change = differences(by["coordinator"] - by["IFCA-MIR"])
        rows.append([FIGURES[key], *(spread(by[name]) for name in names), *change[:2]])
    heads = ["figure", *names, "coordinator less IFCA-MIR", "95 % interval"]
    title = f"{runs['seed'].nunique()} seeds, mean ± standard deviation, paired differences"
    seeds = ["seed", "violations, IFCA-MIR / coordinator", "accuracy", "accuracy, minority", "smallest model", "bar"]
    parts = [table("Seed by seed", seeds, taken(runs)), table(title, heads, rows), ""]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(arguments.out, "\n".join(parts))
    print("\n".join(parts))


if __name__ == "__main__":
    main()
