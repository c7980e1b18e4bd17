"""Who recognises records that trained IFCA on adapters, by view.

    python experiments/algorithms/adapter_views.py plain | private OUT [--seeds 0 1 2 3 4] [--references 16]

Federation and adapters are those of `adapters.py`. The private run is also audited without noise, clipped alone, which
shows what the attacks find where steps are not private.

A run whose table is in OUT/runs is not run again. Written: OUT/WHAT-views.csv, a row for each algorithm, seed, view and
group (and "all"), with the attack that decides.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
from adapters import adapted, compared, federation

import shoal
from shoal.core.atomic_files import write_text
from shoal.data.preferences import VIEWS
from shoal.engine import Algorithm, LocalSGD

CLIENTS, EXAMPLES, RANK, ROUNDS = 16, 60, 24, 40
FIGURES = ("auc", "accuracy", "tpr_at_fpr_0.01")


def settings(what: str) -> dict[str, tuple[Algorithm, LocalSGD]]:
    """Algorithm and local training by name."""
    known = compared(what, ROUNDS)
    if what == "plain":
        return {name: known[name] for name in ("IFCA, K = 4", "IFCA after one-shot, K = 4")}
    algorithm, private = known["IFCA"]
    clipped = replace(private, gradient_privacy=shoal.DPSGD(1.0, 0.0))
    return {"IFCA": (algorithm, private), "IFCA, steps without noise": (algorithm, clipped)}


def audited(what: str, name: str, seed: int, references: int, folder: Path) -> pd.DataFrame:
    """The rows of one run."""
    algorithm, local = settings(what)[name]
    of = federation(what, seed, CLIENTS, EXAMPLES)
    result = shoal.simulate(of, adapted(of, RANK), algorithm, local, rounds=ROUNDS, seed=seed)
    audit = result.audit(folder, references=references)
    found, overall = audit.flat(), result.summary.overall
    kept = {"test accuracy": overall["accuracy.overall"], "ARI": overall["adjusted_rand_index"]}
    rows = []
    for view in VIEWS:
        for group in ("all", *of.groups):
            key = f"views.{view}.{group}"
            if f"{key}.attack" not in found:
                continue
            here = audit.attacks[(audit.attacks["name"] == group) & (audit.attacks["attack"] == found[f"{key}.attack"])]
            row = {"algorithm": name, "seed": seed, "view": view, "group": group, "attack": found[f"{key}.attack"]}
            row |= {f"{figure}{end}": found.get(f"{key}.{figure}{end}") for figure in FIGURES for end in ENDS}
            row |= {end: int(here[end].iloc[0]) for end in ("members", "non_members")}
            rows.append({**row, "exact": float(here["exact"].iloc[0]), **kept, "references": references})
    return pd.DataFrame(rows).round(4)


ENDS = ("", ".low", ".high")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["plain", "private"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(5)))
    parser.add_argument("--references", type=int, default=16)
    args = parser.parse_args()
    folder = args.out / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    tables = []
    for seed in args.seeds:
        for name in settings(args.what):
            path = folder / f"{args.what}-{name.replace(' ', '-')}-{seed}.csv"
            if not path.exists():
                table = audited(args.what, name, seed, args.references, path.with_suffix(""))
                write_text(path, table.to_csv(index=False))
            tables.append(pd.read_csv(path))
            print(f"{path.name}: done", file=sys.stderr, flush=True)
    rows = pd.concat(tables)
    write_text(args.out / f"{args.what}-views.csv", rows.to_csv(index=False))
    means = rows.groupby(["algorithm", "view", "group"], sort=False)[["auc", "accuracy", "test accuracy", "members"]]
    print(means.agg(["mean", "min", "max"]).round(3).to_string())


if __name__ == "__main__":
    main()
