"""Audits the runs of a sweep, and compares the attacks by their number of reference federations.

    shoal sweep experiments/audit/mlp.toml --jobs 2
    python experiments/audit/attacks.py runs/mlp docs/results/audit/mlp

Reference federations that are trained already are not trained again, so a killed audit goes on. Written:
OUT/attacks.csv (a row for each run, number of references, group and attack), OUT/violations.csv (a row for each run)
and OUT/attacks.md.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd

from shoal.audit.audit import audit_records
from shoal.core.atomic_files import write_text
from shoal.core.formats import DASH
from shoal.core.randomness import Stream
from shoal.runs.audits.audit_files import read_scores
from shoal.runs.audits.audit_run import audit_run
from shoal.runs.files import read_table
from shoal.simulation.measure import CLIENT_COLUMNS
from shoal.sweeps import read_sweep
from shoal.sweeps.results_table import read_results

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import differences, spread, table

REFERENCES = (1, 4, 16)
"""Numbers of reference federations that are compared, where as many are trained."""

WITHOUT = ("gap", "posterior", "label-only", "boundary-distance", "loss-threshold", "loss", "other-clusters")
"""Attacks that need no reference federation, in the order of the table; `loss` has its threshold from them, though."""

FIGURES = ("accuracy", "auc", "tpr_at_fpr_0.01")
TITLES = ("balanced accuracy", "AUC", "TPR at 1 % FPR")


def audited(sweep: Path, most: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The attacks on every run of a sweep with at most ``most`` references, and its violations by each attack."""
    asked = read_sweep(sweep / "sweep.toml")
    runs = read_results(sweep, asked.axes)
    attacks, violations = [], []
    for number, run in enumerate(runs.to_dict("records")):
        out = sweep / "runs" / str(run["run"])
        place = {"algorithm": run["algorithm"], "seed": run["seed"]}
        began = time.perf_counter()
        full = audit_run(out, references=most)
        cost = full.flat["seconds.references"] / full.flat["seconds.train"] / most
        records = read_scores(out / "scores.csv")
        for count in sorted({*(each for each in REFERENCES if each < most), most}):
            some = replace(records, scores=records.scores.only(range(count)))
            rows = full.audit.attacks
            if count < most:
                rows = audit_records(some, Stream(0)("thresholds")).attacks
            rows = rows[rows["scope"].isin(["all", "group"])]
            attacks.append(rows.assign(references=count, cost=cost, **place))
        violations.append(place | exceeded(out, full.audit.attacks))
        print(f"{number + 1} of {len(runs)}: {place}, {time.perf_counter() - began:.0f} s", flush=True)
    return pd.concat(attacks, ignore_index=True), pd.DataFrame(violations)


def exceeded(out: Path, attacks: pd.DataFrame) -> dict[str, float]:
    """How many clients' thresholds each attack's balanced accuracy on the client's model exceeds; by lower ends too."""
    clients = read_table(out / "clients.csv", CLIENT_COLUMNS)
    of_models = attacks[attacks["scope"] == "model"]
    counts: dict[str, float] = {}
    strongest = of_models[of_models["strongest"]].set_index("name")["accuracy"]
    for name, by_model in (*of_models.groupby("attack"), ("strongest", None)):
        accuracy = strongest if by_model is None else by_model.set_index("name")["accuracy"]
        exposure = clients["cluster"].astype(str).map(accuracy)
        counts[str(name)] = int((exposure > clients["threshold"]).sum())
    return counts


def measured(values: pd.Series) -> str:
    """Mean and standard deviation over seeds; a dash where it was not measured, with too few non-members for a rate."""
    return DASH if values.isna().all() else spread(values)


def compared(attacks: pd.DataFrame, group: str) -> str:
    """A table for each algorithm: mean and standard deviation over seeds, by attack and number of references."""
    parts = []
    for algorithm, of_algorithm in attacks[attacks["name"] == group].groupby("algorithm", sort=False):
        rows = []
        for name, mine in of_algorithm.groupby("attack", sort=False):
            counts = sorted(mine["references"].unique())
            for count in counts if name not in WITHOUT else counts[-1:]:
                here = mine[mine["references"] == count]
                if len(here) == 0:
                    continue
                number = "" if name in WITHOUT else str(count)
                rows.append([str(name), number, *(measured(here[figure]) for figure in FIGURES)])
        rows.sort(key=lambda row: (row[0] not in WITHOUT, row[2]))
        runs = of_algorithm["seed"].nunique()
        members = of_algorithm["members"].iloc[0]
        title = f"{algorithm}, {group}: {runs} seeds, {members} members and as many non-members each"
        parts.append(table(title, ["attack", "references", *TITLES], rows))
    return "\n".join(parts)


def stronger(attacks: pd.DataFrame, group: str) -> str:
    """The strongest attack with most references against today's posterior attack, paired by seed."""
    rows = []
    most = attacks[(attacks["references"] == attacks["references"].max()) & (attacks["name"] == group)]
    for algorithm, mine in most.groupby("algorithm", sort=False):
        for figure, title in zip(FIGURES, TITLES, strict=True):
            by = mine.pivot_table(index="seed", columns="attack", values=figure)
            if by.empty:  # Too few non-members for the rate.
                continue
            best = by.mean().idxmax()
            rows.append([
                str(algorithm), title, spread(by["posterior"]), f"{best}: {spread(by[best])}",
                *differences(by[best] - by["posterior"]),
            ])  # fmt: skip
    heads = ["algorithm", "figure", "posterior", "strongest", "difference", "95 % interval", "seeds above"]
    return table(f"{group}: the strongest attack against the posterior attack", heads, rows)


def heeding(figures: pd.DataFrame, title: str) -> str:
    """Each column of ``figures`` under IFCA and under IFCA-MIR, paired by seed; empty without both."""
    rows = []
    for attack in [name for name in figures if name not in {"algorithm", "seed"}]:
        by = figures.pivot_table(index="seed", columns="algorithm", values=attack)
        if {"IFCA", "IFCA-MIR"} <= set(by):
            change = differences(by["IFCA-MIR"] - by["IFCA"])
            rows.append([str(attack), spread(by["IFCA"]), spread(by["IFCA-MIR"]), *change])
    if not rows:
        return ""
    return table(title, ["attack", "IFCA", "IFCA-MIR", "difference", "95 % interval", "seeds above"], rows)


def exposures(attacks: pd.DataFrame, group: str, figure: str) -> pd.DataFrame:
    """A row a run: what each attack with most references finds about a group, a column an attack."""
    most = attacks[(attacks["references"] == attacks["references"].max()) & (attacks["name"] == group)]
    return most.pivot_table(index=["algorithm", "seed"], columns="attack", values=figure).reset_index()


def report(attacks: pd.DataFrame, violations: pd.DataFrame) -> str:
    """All tables, as Markdown."""
    groups = [name for name in dict.fromkeys(attacks["name"]) if name != "all"]
    parts = [stronger(attacks, group) for group in groups]
    parts.append(heeding(violations, "Clients whose threshold is exceeded, by the attack that judges"))
    for group in groups:
        found = exposures(attacks, group, FIGURES[0])
        parts.append(heeding(found, f"{group}: {TITLES[0]} under IFCA and under IFCA-MIR, by the attack that judges"))
    parts += [compared(attacks, group) for group in groups]
    cost = f"A reference federation cost {attacks['cost'].median():.2f} times the training of its run (median)."
    return "\n".join([*parts, "", cost, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="the directory of a finished sweep")
    parser.add_argument("out", type=Path, help="where the tables are written")
    parser.add_argument("--references", type=int, default=max(REFERENCES), help="reference federations of each run")
    arguments = parser.parse_args()
    attacks, violations = audited(arguments.sweep, arguments.references)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_text(arguments.out / "attacks.csv", attacks.to_csv(index=False))
    write_text(arguments.out / "violations.csv", violations.to_csv(index=False))
    write_text(arguments.out / "attacks.md", report(attacks, violations))


if __name__ == "__main__":
    main()
