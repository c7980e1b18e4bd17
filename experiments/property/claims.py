"""Prints the figures behind the property inference part of docs/results/papers.md from the sweeps' results.

    python experiments/property/claims.py docs/results/property

Differences are paired: of the same seed and setting, one setting of an axis minus another. "Seeds above" says in how
many the difference is positive.
"""

import argparse
import sys
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import differences, spread, table

FIGURES = (
    "property.auc_counterfactual", "property.auc_swapped", "property.auc", "property.auc_within", "property.auc_rounds",
    "property.auc_control", "main.auc", "main.auc_even", "cosine.mean",
)  # fmt: skip
NOISES = ("clipping alone", "0.0002", "0.002", "0.2")
PAIRS = {
    "passive": ("algorithm", [("CFL", "FL")], ["task"]),
    "clients": ("algorithm", [("CFL", "FL")], ["clients"]),
    "active": (
        "attack",
        [
            ("FL, active", "FL, passive"), ("FL, scaled by 5", "FL, active"), ("CFL, active", "CFL, passive"),
            ("CFL, scaled by 5", "CFL, active"), ("CFL, passive", "FL, passive"), ("CFL, active", "FL, active"),
        ],
        [],
    ),
    "explained-faces": ("algorithm", [("CFL", "FL")], ["setting"]),
    "explained-faces by setting": ("setting", [("no skew", "skewed others")], ["algorithm"]),
    "explained-digits": ("algorithm", [("CFL", "FL")], ["setting"]),
    "explained-digits by setting": (
        "setting",
        [
            (each, "skewed others")
            for each in ("no skew", "skewed victim", "own part kept", "skewed victim, own part kept")
        ],
        ["algorithm"],
    ),
    "regularization": ("defense", [(each, "none") for each in ("dropout 0.2", "L2 0.02")], ["attack"]),
    "privacy": ("noise", [(each, "none") for each in NOISES], ["algorithm"]),
    "simulations": ("property_attack.simulate_every", [(each, "1") for each in ("3", "10", "30", "100")], []),
    "beyond": (
        "federation",
        [("IFCA-MIR", "IFCA"), ("IFCA, scaled by 5", "IFCA"), ("IFCA, scaled by 5, bounded", "IFCA, scaled by 5")],
        [],
    ),
}  # fmt: skip
"""Of each sweep, which its first word names: the axis that is compared, which of its settings with which, and the axes
that are held."""


def compared(results: pd.DataFrame, name: str) -> None:
    axis, pairs, held = PAIRS[name]
    for setting, mine in results.groupby(held, sort=False) if held else [((), results)]:
        rows = []
        for key in [each for each in FIGURES if each in mine]:
            by = mine.pivot_table(index="seed", columns=axis, values=key)
            for one, other in pairs:
                if one in by and other in by:
                    both = by[[one, other]].dropna()
                    if len(both) > 1:
                        apart = differences(both[one] - both[other])
                        rows.append([key, f"{one} against {other}", spread(both[one]), spread(both[other]), *apart])
        heads = ["figure", "", "first", "second", "difference", "95 % interval", "seeds above"]
        print(table(", ".join([name, *map(str, setting)]), heads, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder of sweeps' results, each in a folder of the sweep's name")
    folder = parser.parse_args().folder
    read = {name: pd.read_csv(path) for name in PAIRS if (path := folder / name.split()[0] / "results.csv").exists()}
    if not read:
        parser.error(f"no sweep with results in {folder}")
    for name, results in read.items():
        compared(results.astype(dict.fromkeys((PAIRS[name][0],), str)), name)


if __name__ == "__main__":
    main()
