"""Audits the runs of a sweep by every attack there is, and says what each finds under each setting.

    shoal sweep experiments/attacks/digits.toml --jobs 1
    python experiments/attacks/every_attack.py runs/digits docs/results/attacks/digits --references 4

Reference federations that are trained already are not trained again: a killed audit resumes. Written: OUT/attacks.csv
(one row per run and key) and OUT/attacks.md (mean and standard deviation over seeds, one column per setting).
"""

import argparse
import sys
from pathlib import Path

import pandas as pd

from shoal.core.atomic_files import write_text
from shoal.core.formats import DASH
from shoal.runs.audits.audit_run import audit_run
from shoal.sweeps import read_sweep
from shoal.sweeps.results_table import read_results

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import spread, table

GUESSES = (
    "source-inference",
    "source-inference-in-cluster",
    "group-inference",
    "cluster-identity",
    "preference-inference",
)
"""Attacks whose answer is a guess; beside each accuracy of `audit.json` stands that of guessing blindly."""


def audited(sweep: Path, references: int) -> pd.DataFrame:
    """A row for each run and key of its `audit.json`, without ends of intervals.

    The columns are ``setting``, ``seed``, ``key`` and ``value``.
    """
    (axis,) = (axes := read_sweep(sweep / "sweep.toml").axes)
    rows = []
    for run in read_results(sweep, axes).to_dict("records"):
        flat = audit_run(sweep / "runs" / str(run["run"]), references=references).flat
        print(f"{run[axis]}, seed {run['seed']}", flush=True)
        rows += [
            {"setting": run[axis], "seed": run["seed"], "key": key, "value": value}
            for key, value in flat.items()
            if not isinstance(value, str) and not key.startswith("seconds.") and not key.endswith((".low", ".high"))
        ]
    return pd.DataFrame(rows)


def report(found: pd.DataFrame) -> str:
    """The tables: AUC and balanced accuracy of each membership attack on all members, and guesses."""
    attacks = list(dict.fromkeys(key.split(".")[1] for key in found["key"] if key.startswith("attacks.")))
    tables = [
        ("AUC on all members", {name: f"attacks.{name}.all.auc" for name in attacks}),
        ("Balanced accuracy on all members", {name: f"attacks.{name}.all.accuracy" for name in attacks}),
        (
            "Accuracy of guesses, and of guessing blindly",
            {
                f"{name}{of}": f"{name}{key}"
                for name in GUESSES
                for of, key in (("", ".accuracy"), (", blind", ".chance"))
            },
        ),
    ]
    seeds = found["seed"].nunique()
    head = f"# Every attack\n\n{seeds} seeds, mean ± standard deviation"
    return "\n".join([head, *(_table(found, title, keys) for title, keys in tables)]) + "\n"


def _table(found: pd.DataFrame, title: str, keys: dict[str, str]) -> str:
    settings = list(dict.fromkeys(found["setting"]))
    rows = [[name, *(_cell(found, setting, key) for setting in settings)] for name, key in keys.items()]
    return table(title, ["", *settings], [row for row in rows if set(row[1:]) != {DASH}])


def _cell(found: pd.DataFrame, setting: str, key: str) -> str:
    values = found.loc[(found["setting"] == setting) & (found["key"] == key), "value"]
    return spread(values) if len(values) else DASH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="the directory of a finished sweep")
    parser.add_argument("out", type=Path, help="where the tables are written")
    parser.add_argument("--references", type=int, default=4, help="reference federations of each run")
    arguments = parser.parse_args()
    found = audited(arguments.sweep, arguments.references)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_text(arguments.out / "attacks.csv", found.to_csv(index=False, float_format="%.6g"))
    write_text(arguments.out / "attacks.md", report(found))


if __name__ == "__main__":
    main()
