"""What a threshold for each record changes in the order of attacks, and what queries with copies find.

    for S in 0 1 2; do
        shoal run experiments/control/bar-base.toml --out runs/bar-$S --set seed=$S \
            --set evaluation.reference_federations=0
        shoal audit runs/bar-$S --references 16
        shoal audit runs/bar-$S --references 8 --queries 18 --out runs/bar-$S-copies
    done
    python experiments/audit/per_record.py docs/results/audit runs/bar-0 runs/bar-1 runs/bar-2

With ``--queries RUN...`` further runs, for a comparison of queries alone, audited with 8 references without and with
copies, such as two whose models were trained with such copies: ``--set defenses.augmentation.rotation=0.0``,
``defenses.augmentation.shift=4.0`` and ``defenses.augmentation.flip=true``.

Written: OUT/per-record-calibration.csv (a row for each run, group and attack: TPR at 1 % FPR with one threshold and one
for each record, and the rank by each) and OUT/queries.csv (a row for each run, group, attack and number
of queries, with the first eight references).
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd

from shoal.audit.audit import audit_records
from shoal.core.atomic_files import write_text
from shoal.core.randomness import Stream
from shoal.runs.audits.audit_files import read_scores

POOLED, PER_RECORD = "tpr_at_fpr_0.01", "tpr_at_fpr_0.01_per_record"
FIGURES = ("auc", "accuracy", POOLED, PER_RECORD)
REFERENCES = 8
"""Of audits with and without copies."""


def attacks(folder: Path, references: int | None = None) -> pd.DataFrame:
    """The attacks on the scores of an audit, on all records and on each group; with its first references alone."""
    records = read_scores(folder / "scores.csv")
    if references is not None:
        records = replace(records, scores=records.scores.only(range(references)))
    rows = audit_records(records, Stream(0)("thresholds")).attacks
    return rows[rows["scope"].isin(["all", "group"])].assign(run=folder.name, group=rows["name"])


def calibration(runs: list[Path]) -> pd.DataFrame:
    """TPR at 1 % FPR by attack, pooled and with a threshold for each record, and ranks from 1."""
    table = pd.concat([attacks(run) for run in runs])
    for name in (POOLED, PER_RECORD):
        table[f"rank.{name}"] = table.groupby(["run", "group"])[name].rank(ascending=False, method="min").astype(int)
    ends = [f"{name}{end}" for name in (POOLED, PER_RECORD) for end in ("", ".low", ".high")]
    return table[["run", "group", "attack", *ends, f"rank.{POOLED}", f"rank.{PER_RECORD}"]]


def queries(runs: list[Path]) -> pd.DataFrame:
    """The figures of each attack with one query and with eighteen."""
    suffix = {1: "", 18: "-copies"}
    tables = [
        attacks(run.with_name(run.name + end), REFERENCES).assign(run=run.name, queries=number)
        for run in runs
        for number, end in suffix.items()
    ]
    return pd.concat(tables)[["run", "group", "attack", "queries", *FIGURES]]


def main() -> int:
    """Write both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--queries", type=Path, nargs="*", default=[], help="further runs for queries alone")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, table in (
        ("per-record-calibration", calibration(asked.runs)),
        ("queries", queries([*asked.runs, *asked.queries])),
    ):
        write_text(asked.out / f"{name}.csv", table.to_csv(index=False, float_format="%.4f"))
        keys = [key for key in ("group", "attack", "queries") if key in table]
        print(table.groupby(keys, sort=False).mean(numeric_only=True).round(3).to_string())
    return 0


if __name__ == "__main__":
    sys.exit(main())
