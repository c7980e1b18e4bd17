"""How often `shoal protect` answers wrongly: federations where nothing is exposed, and federations above the limit.

    python experiments/real/protect_null.py OUT.csv --null 20 --above 10 --jobs 2

The null federations have 12 clients in two groups with 2,000 rows in all, four inputs, and a linear model: nothing is
exposed. In the federations above the limit the labels are random and a network learns them by heart. Each is made from
a seed of its own. OUT.csv has a row per federation: its kind, seed, answer ("change nothing", "protect" or "not
decided"), the protection, exposure with its interval, judging seeds, runs and seconds. The federations above the limit
are judged as they are, without other protections: the question is whether they are ever called "within the limit".
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from shoal.config.schema import parse_config
from shoal.core.atomic_files import write_text
from shoal.core.processes import Workers, Workplace
from shoal.protection import Demand, Ladder, protect
from shoal.protection.ladder import UNPROTECTED

KINDS: dict[str, dict[str, Any]] = {
    "null": {"rows": 2000, "inputs": 4, "model": {"name": "logistic"}, "rounds": 5, "epochs": 1},
    "above": {"rows": 480, "inputs": 30, "model": {"name": "mlp", "hidden": 64}, "rounds": 5, "epochs": 40},
}
CLIENTS = 12


def table_of(kind: str, seed: int) -> pd.DataFrame:
    """The table of a federation, a third of its clients in group "small"; labels of "above" are random."""
    draw, given = np.random.default_rng(seed), KINDS[kind]
    x = draw.normal(size=(given["rows"], given["inputs"]))
    signal = x[:, 0] if kind == "null" else 0.0
    client = np.arange(len(x)) % CLIENTS
    label = np.where(signal + draw.normal(size=len(x)) > 0, "yes", "no")
    columns = {f"x{i}": column.round(4) for i, column in enumerate(x.T)}
    group = np.where(client < CLIENTS // 3, "small", "large")
    return pd.DataFrame({"client": client, "group": group, "label": label, **columns})


def answer_of(kind: str, seed: int, demand: Demand, jobs: int) -> dict[str, Any]:
    """The row of one federation."""
    given = KINDS[kind]
    with TemporaryDirectory() as folder:
        path = Path(folder, "table.csv")
        table_of(kind, seed).to_csv(path, index=False)
        columns = {"client": "client", "group": "group", "label": "label"}
        config = parse_config(
            {
                "data": {"source": "table", "path": str(path), "test_fraction": 0.5, "shadow_fraction": 0.1, **columns},
                "model": given["model"],
                "algorithm": {"name": "fedavg", "rounds": given["rounds"]},
                "local": {"epochs": given["epochs"], "batch_size": 10, "learning_rate": 0.1},
                "red_team": {"every": 0, "attack": "gap"},
                "seed": 1000 * seed,
            },
            kind,
        )
        begun = time.perf_counter()
        place = Workplace(Path(folder, "out"), Workers(jobs), None)
        if kind == "null":
            found = protect(config, place, demand)
        else:
            with patch.object(Ladder, "rungs", ()):
                found = protect(config, place, demand)
        seconds, runs = time.perf_counter() - begun, len([*Path(folder, "out", "runs").glob("*/summary.json")])
    met = found.outcome == "within the limit"
    answer = ("change nothing" if found.rung == UNPROTECTED.name else "protect") if met else found.outcome
    worst = found.findings[0].accuracy
    row = {"kind": kind, "seed": seed, "answer": answer, "protection": found.rung, "exposure": worst.value}
    row |= {"low": worst.low, "high": worst.high}
    return row | {"judging_seeds": found.seeds, "runs": runs, "seconds": round(seconds, 1)}


def main() -> None:
    """Write a row per federation, and print how often each answer was given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--null", type=int, default=20, help="federations where nothing is exposed")
    parser.add_argument("--above", type=int, default=10, help="federations above the limit")
    parser.add_argument("--limit", type=float, default=0.55)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    rows = list[dict[str, Any]]()
    for kind, count in (("null", given.null), ("above", given.above)):
        for seed in range(count):
            rows.append(answer_of(kind, seed, Demand(limit=given.limit), given.jobs))
            write_text(given.out, pd.DataFrame(rows).to_csv(index=False))
    answers = pd.DataFrame(rows)
    print(answers.groupby(["kind", "answer"]).agg(federations=("seed", "size"), seconds=("seconds", "mean")).round(1))


if __name__ == "__main__":
    main()
