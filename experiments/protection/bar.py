"""Whether the settings of bar.toml take the bar of protection: two of them against IFCA-MIR, seed by seed.

    shoal sweep experiments/protection/bar.toml --out runs/protection
    for run in runs/protection/runs/*; do shoal audit $run --references 0; done
    python experiments/protection/bar.py runs/protection docs/results/protection/bar

Written: OUT.csv (a row for each run) and OUT.md (the bar seed by seed, then means and differences from IFCA-MIR and
from the shadow set alone, of the same seed). `protected` has at most a quarter of IFCA-MIR's violations, is at least 2
points more accurate, for the minority too, and a client's span attack has AUC below 0.6 on the minority (where runs
were audited); `promised` has an epsilon of at most 8 and is not less accurate. "Expected" violations are the mean over
limits uniform in [0.5, 0.8], not over those drawn.
"""

import argparse
import json
import sys
from pathlib import Path

import pandas as pd

from shoal.core.atomic_files import write_text
from shoal.sweeps import read_sweep
from shoal.sweeps.results_table import read_results

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import differences, spread, table
from run_figures import of_clients

AGAINST, ALONE = "IFCA-MIR", "shadow set alone"
ACCURACIES = {"accuracy.overall": "accuracy", "accuracy.minority": "accuracy, minority"}
FIGURES = {
    **ACCURACIES,
    "violations.total": "violations",
    "expected": "violations expected",
    "exposure": "exposure, mean over clients",
    "exposure.minority": "exposure, minority",
    "tpr_at_fpr_0.01.minority": "TPR at 1 % FPR, minority",
    "attacks.span-models.minority.auc": "span of models, AUC, minority",
    "attacks.span.minority.auc": "span of updates, AUC, minority",
    "canaries.tpr_at_fpr_0.01": "canaries: TPR at 1 % FPR",
    "adjusted_rand_index": "grouping (ARI)",
    "epsilon": "epsilon, client view",
    "epsilon.outsider": "epsilon, outsider view",
    "epsilon.server": "epsilon, server view without secure sums",
    "epsilon.choice": "epsilon of the choice",
}


def measured(sweep: Path) -> pd.DataFrame:
    """A row for each run: setting, seed, and those of `FIGURES` that it has."""
    rows = []
    for run in read_results(sweep, read_sweep(sweep / "sweep.toml").axes).to_dict("records"):
        folder = sweep / "runs" / str(run["run"])
        own: dict[str, float] = of_clients(folder)
        if (folder / "audit.json").exists():
            own |= json.loads((folder / "audit.json").read_text(encoding="utf-8"))
        figures = {key: own.get(key, run.get(key)) for key in FIGURES}
        if pd.isna(own["exposure"]):
            # No client trained, and nothing was attacked.
            figures["expected"] = None
        rows.append({"setting": run["setting"], "seed": run["seed"], **figures})
    return pd.DataFrame(rows)


def missed(setting: str, after: pd.Series, before: pd.Series) -> list[str]:
    """What of the bar a run does not take, beside IFCA-MIR's run of the same seed."""
    if setting == "promised":
        kept = {"epsilon": after["epsilon"] <= 8, "accuracy": after["accuracy.overall"] >= before["accuracy.overall"]}
    else:
        kept = {said: after[key] >= before[key] + 0.02 for key, said in ACCURACIES.items()}
        kept["violations"] = after["violations.total"] <= before["violations.total"] / 4
        kept["client view"] = not after.get("attacks.span-models.minority.auc", 0.5) >= 0.6
    return [said for said, is_kept in kept.items() if not is_kept]


def seed_by_seed(runs: pd.DataFrame, setting: str) -> list[list[str]]:
    """A row for each seed: figures of IFCA-MIR and of the setting, and what was missed."""
    by, rows = runs.set_index(["setting", "seed"]), []
    for seed in sorted(runs.loc[runs["setting"] == setting, "seed"]):
        before, after = by.loc[(AGAINST, seed)], by.loc[(setting, seed)]
        cells = [f"{before[key]:.3g} / {after[key]:.3g}" for key in ("violations.total", *ACCURACIES)]
        rows.append([str(seed), *cells, "; ".join(missed(setting, after, before)) or "taken"])
    return rows


def report(runs: pd.DataFrame) -> str:
    """All tables as Markdown."""
    shown, names = [key for key in FIGURES if key in runs], list(dict.fromkeys(runs["setting"]))
    parts = [
        table(
            f"{name}, seed by seed",
            ["seed", f"violations, {AGAINST} / {name}", *ACCURACIES.values(), "missed"],
            seed_by_seed(runs, name),
        )
        for name in ("protected", "promised")
        if name in names
    ]
    means = [
        [name, str(len(some)), *(spread(some[key].dropna()) if some[key].notna().any() else "" for key in shown)]
        for name, some in runs.groupby("setting", sort=False)
    ]
    heads = ["setting", "seeds", *(FIGURES[key] for key in shown)]
    parts.append(table("Mean ± standard deviation over seeds", heads, means))
    by = runs.set_index(["setting", "seed"])
    heads = ["setting", "", "difference", "95 % interval", "seeds above"]
    for against in (AGAINST, ALONE):
        rows = []
        for name in (name for name in names if name != against):
            for key in (key for key in shown if not key.startswith("epsilon")):
                less = (by.loc[name, key] - by.loc[against, key]).dropna()
                if len(less):
                    rows.append([name, FIGURES[key], *differences(less)])
        parts.append(table(f"Less {against}, of the same seed", heads, rows))
    return "\n".join([*parts, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="the directory of a finished sweep")
    parser.add_argument("out", type=Path, help="the files' path without its ending")
    arguments = parser.parse_args()
    runs = measured(arguments.sweep).dropna(axis="columns", how="all")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(arguments.out.with_suffix(".csv"), runs.to_csv(index=False))
    write_text(arguments.out.with_suffix(".md"), report(runs))
    print(report(runs))


if __name__ == "__main__":
    main()
