"""Prints the figures behind docs/results/papers.md from the sweeps' results.

    python experiments/ifca-mir/claims.py docs/results/ifca-mir

Differences are paired: of the same seed and setting, IFCA-MIR minus IFCA, or one setting minus another. "Seeds above"
says in how many seeds the difference is positive.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import differences, fieller, spread, table

SHARE = "data.groups.minority.share"
FIGURES = (
    "accuracy.overall", "accuracy.minority", "accuracy.majority", "model.minority.mia", "model.majority.mia",
    "mia.minority", "mia.majority", "violations.total", "violations.minority", "violations.majority", "migrated",
    "smaller.clients", "smaller.mia", "larger.mia", "adjusted_rand_index", "fairness.demographic_parity",
    "fairness.equal_opportunity", "fairness.equalized_odds",
)  # fmt: skip


STRONGEST = (
    *FIGURES, "exceeded.total", "mia_by_rmia.minority", "mia_by_rmia.majority", "mia_by_posterior.minority",
    "mia_by_posterior.majority",
)  # fmt: skip
"""Figures of sweeps with reference federations; their MIA and violations are by the strongest attack."""


PAPER = np.array([0.81, 0.63, 0.52, 0.515])
"""Figure 1: minorities of 10, 30 and 50 %, and the majority."""


def algorithms(results: pd.DataFrame, name: str, keys: tuple[str, ...] = FIGURES) -> None:
    """Each algorithm against IFCA, each seed averaged over the other settings first."""
    for other in [each for each in dict.fromkeys(results["algorithm"]) if each != "IFCA"]:
        rows = []
        for key in keys:
            by = results.groupby(["algorithm", "seed"])[key].mean().unstack("algorithm")
            rows.append([key, spread(by["IFCA"]), spread(by[other]), *differences(by[other] - by["IFCA"])])
        heads = ["figure", "IFCA", other, "difference", "95 % interval", "seeds above"]
        print(table(f"{name}: {other} against IFCA", heads, rows))


def trend(results: pd.DataFrame, axis: str, keys: tuple[str, ...], title: str) -> None:
    """Each algorithm's figures by setting, and the first setting against the last."""
    settings = list(dict.fromkeys(results[axis]))
    rows = []
    for algorithm, mine in results.groupby("algorithm", sort=False):
        for key in keys:
            by = mine.pivot_table(index="seed", columns=axis, values=key)[settings]
            rows.append([
                str(algorithm), key, *(spread(by[each]) for each in settings),
                *differences(by[settings[0]] - by[settings[-1]]),
            ])  # fmt: skip
    heads = [
        "algorithm",
        "figure",
        *map(str, settings),
        f"{settings[0]} minus {settings[-1]}",
        "95 % interval",
        "seeds above",
    ]
    print(table(title, heads, rows))


def angles(results: pd.DataFrame) -> None:
    """The algorithms under an angle per image and under one per client, and the second against the first."""
    for angle, mine in results.groupby("angle", sort=False):
        algorithms(mine, f"angle, {angle}")
    keys = (*FIGURES, "loss_threshold.minority", "loss_threshold.majority", "gap.minority", "gap.majority")
    trend(results.sort_values("angle", kind="stable"), "angle", keys, "angle: per client against per image")


def strongest(results: pd.DataFrame, name: str, axis: str) -> None:
    """The algorithms judged by the strongest attack, over all settings and in each, and each algorithm by setting."""
    algorithms(results, name, STRONGEST)
    for setting, mine in results.groupby(axis, sort=False):
        algorithms(mine, f"{name}, {setting}", STRONGEST)
    keys = ("model.minority.mia", "model.majority.mia", "violations.total", "migrated", "accuracy.overall")
    trend(results, axis, keys, f"{name}: by {axis}")
    rows = []
    for estimate in ("risk", "gap"):
        by = advantages(results, estimate)
        factor, (low, high) = by["mia"].mean() / by[estimate].mean(), fieller(*by[["mia", estimate]].to_numpy().T)
        interval = "unbounded" if np.isnan(low) else f"{low:.1f} to {high:.1f}"
        of_seeds = ", ".join(f"{value:.1f}" for value in by["mia"] / by[estimate])
        rows.append([estimate, f"{factor:.1f}", interval, of_seeds])
    heads = ["estimate", "factor", "95 % interval over seeds", "of each seed"]
    print(table(f"{name}: the strongest attack's advantage by the estimate's, on the same models", heads, rows))


def advantages(results: pd.DataFrame, estimate: str) -> pd.DataFrame:
    """By seed, the mean advantage (A - 0.5) in all models of the strongest attack (mia) and of an estimate."""
    models = [
        results[["seed", f"clusters.{k}.mia", f"clusters.{k}.{estimate}"]].set_axis(["seed", "mia", estimate], axis=1)
        for k in (0, 1)
    ]
    return pd.concat(models).dropna().groupby("seed").mean() - 0.5


def readings(results: pd.DataFrame, axis: str, title: str) -> None:
    """Figure 1 under each reading of "non-members", and how far that is from the paper's four numbers.

    Non-members from the population are a mixture of the group's own and the other group's by their shares, and so are
    the false positive rate of an attack on them and its balanced accuracy (a test of the package holds this).
    """
    means = results.groupby([axis, "trained"]).mean(numeric_only=True)
    shares = {"minority 10 %": 0.1, "minority 30 %": 0.3, "minority 50 %": 0.5, "majority 90 %": 0.9}
    rows = []
    for attack in ("mia", "loss_threshold"):
        for size in dict.fromkeys(results[axis]):
            own, other, unrotated = (
                np.array([means.loc[(size, who), f"{attack}{kind}.trained"] for who in shares])
                for kind in ("", "_against_other", "_against_unrotated")
            )
            part = np.array(list(shares.values()))
            kinds = {"same group": own, "population": part * own + (1 - part) * other, "other rotation": other,
                     "unrotated": unrotated}  # fmt: skip
            for kind, found in kinds.items():
                distance = np.sqrt(((found - PAPER) ** 2).mean())
                rows.append([attack, str(size), kind, *(f"{value:.3f}" for value in found), f"{distance:.3f}"])
    rows.sort(key=lambda row: row[-1])
    print(table(title, ["attack", axis, "non-members", *shares, "distance from the paper (RMS)"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder of sweeps' directories")
    folder = parser.parse_args().folder
    read = {path.parent.name: pd.read_csv(path) for path in sorted(folder.glob("*/results.csv"))}
    if not read:
        parser.error(f"no sweep with results in {folder}")
    for name in ("figure-2", "figure-3", "overlap", "overtrained", "informed"):
        if name in read:
            algorithms(read[name], name)
    if "strongest-shift" in read:
        strongest(read["strongest-shift"], "strongest-shift", "shift")
    if "angle" in read:
        angles(read["angle"])
    keys = ("model.minority.mia", "mia.minority", "loss_threshold.minority", "mia.majority", "violations.total")
    for name, axis in (("figure-2", SHARE), ("overtrained", SHARE)):
        if name in read:
            trend(read[name], axis, keys, f"{name}: by share of the minority")
    for name in ("figure-3", "overlap"):
        if name in read:
            trend(read[name], "shift", ("migrated", "adjusted_rand_index", "accuracy.overall"), f"{name}: by shift")

    for name, axis in (("figure-1", "data.examples_per_client"), ("figure-1-passes", "algorithm.rounds")):
        if name in read:
            readings(read[name], axis, f"{name}: the paper's 0.81, 0.63, 0.52 and 0.515 by kind of non-members")


if __name__ == "__main__":
    main()
