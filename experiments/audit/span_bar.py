"""What the span attacks find in a run of the coordinator's bar, by `shoal audit` alone.

    python experiments/audit/span_bar.py OUT [--seeds 0 1 2 3 4] [--references 0]

For each seed `experiments/control/bar-base.toml` is run, without reference federations of its own, into OUT/SEED, where
the run is missing, and audited. Written: OUT/span-bar.csv, a row for each seed, attack and group or final model, with
the seconds of the whole audit, page included.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from shoal.config.schema import parse_config
from shoal.config.toml_files import read_toml
from shoal.core.atomic_files import write_text
from shoal.runs.audits.audit_run import audit_run
from shoal.runs.run import run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "control"))
from made_by import made_by

BASE = Path(__file__).resolve().parents[1] / "control" / "bar-base.toml"
ATTACKS = ("loss", "other-clusters", "rmia", "span-models", "span")
FIGURES = ("members", "auc", "auc.low", "auc.high", "accuracy", "tpr_at_fpr_0.01")


def figures(folder: Path, seed: int, references: int) -> pd.DataFrame:
    """The rows of one seed."""
    out = folder / str(seed)
    if not (out / "summary.json").exists():
        table = read_toml(BASE) | {"seed": seed}
        table["evaluation"] |= {"reference_federations": 0}
        run(parse_config(table, "bar-base.toml"), out)
    began = time.perf_counter()
    audit = audit_run(out, references=references, out=folder / f"audit-{seed}-{references}").audit
    seconds = time.perf_counter() - began
    rows = audit.attacks[audit.attacks["attack"].isin(ATTACKS) & (audit.attacks["scope"] != "client")]
    known = {"seed": seed, "references": references, "seconds": round(seconds, 1)}
    return rows[["view", "attack", "scope", "name", *FIGURES]].round(4).assign(**known)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where runs, audits and the table are written")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--references", type=int, nargs="+", default=[0])
    given = parser.parse_args(arguments)
    found = [figures(given.out, seed, count) for count in given.references for seed in given.seeds]
    write_text(given.out / "span-bar.csv", pd.concat(found).to_csv(index=False))
    print(made_by("python experiments/audit/span_bar.py OUT"))


if __name__ == "__main__":
    main()
