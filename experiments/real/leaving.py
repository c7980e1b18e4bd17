"""Is a client that left forgotten? One CSV row per federation, method and seed; finished rows are skipped.

    python experiments/real/leaving.py OUT [--seeds 0 1 2] [--data digits star hsb82] [--methods exact ...]
    python experiments/real/leaving.py OUT --cost

``digits`` is docs/examples/leaving.toml. The others need `pip install 'shoal[tables]'`. In ``star`` schools leave and
join as they did between kindergarten and grade 3: a grade is a quarter of the 20 rounds, and the school that left last
is audited. A school's rows of all grades are there from its first round to its last; they do not change in between. In
``hsb82`` a Catholic school leaves before round 16 of 20. ``never`` is the null: the client leaves before round 1, so it
never was there. OUT/leaving.csv gets the figures of `audit.json` by view, the cost in client-rounds, and seconds;
OUT/table.csv means over seeds with 95 % intervals (Student's t). ``--cost`` writes OUT/cost.csv instead: what `exact`
takes with 1, 2, 4 and 8 clusters of as many groups, without audits.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

import shoal
from shoal.config.schema import parse_config
from shoal.config.toml_files import read_toml
from shoal.metrics import mean_interval
from shoal.runs.run import run

sys.path.insert(0, str(Path(__file__).parent))
from missing_rows import add_missing_rows
from real_tables import TABLES, frame, write_table

ROOT = Path(__file__).resolve().parents[2]

DATA = ("digits", "star", "hsb82")
METHODS = ("never", "continue", "exact", "fed-eraser", "gradient-ascent")
VIEWS = ("before", "outsider", "client", "pair")
NEVER = "never"

GRADES = ("K", "1", "2", "3")
ROUNDS_PER_GRADE = 5

Event = dict[str, Any]


def configuration(data: str, method: str, seed: int, out: Path) -> tuple[dict[str, Any], str | int]:
    """The configuration of a run, and who leaves."""
    leaver: str | int = 0
    table = read_toml(ROOT / "docs" / "examples" / "leaving.toml")
    if data != "digits":
        if data == "star":
            path, leaver, events = star(out / "star-grades.csv")
        else:
            path = write_table(data, out / f"{data}.csv")
            rows = pd.read_csv(path, dtype={"client": str})
            minority = rows.groupby("group")["client"].nunique().idxmin()
            leaver = str(rows.loc[rows["group"] == minority, "client"].value_counts().index[0])
            events = [{"round": 16, "leave": [leaver]}]
        table = {
            "data": {
                "source": "table", "path": str(path), "client": "client", "group": "group", "label": "label",
                "one_hot": True, "test_fraction": 0.3, "shadow_fraction": 0.1,
            },
            "model": {"name": "mlp", "hidden": 64},
            "algorithm": {"name": "ifca", "clusters": 2, "rounds": 20},
            "local": {"epochs": 2 if data == "star" else 5, "batch_size": 20, "learning_rate": 0.1},
            "red_team": {"every": 20},
            "evaluation": {"every": 20, "baselines": False},
            "events": events,
        }  # fmt: skip
    if method == NEVER:
        without = [event | {"leave": [name for name in event["leave"] if name != leaver]} for event in table["events"]]
        without = [event for event in without if event["leave"] or event.get("join")]
        table["events"] = [{"round": 1, "leave": [leaver]}, *without]
    table["forgetting"] = {"method": "continue" if method == NEVER else method}
    return table | {"seed": seed}, leaver


def star(path: Path) -> tuple[Path, str, list[Event]]:
    """The file of all pupils of all grades, the school that left last, and all events.

    A school with a gap, as of one grade, neither leaves nor joins.
    """
    about = replace(TABLES["star"], rows=None)
    if not path.exists():
        frame("star", about).to_csv(path, index=False)
    table, _ = about.read("star")
    leave, join, last = defaultdict[int, list[str]](list), defaultdict[int, list[str]](list), dict[str, int]()
    for school, grades in table.groupby(table[about.client].astype(str))["gr"]:
        there = sorted(GRADES.index(str(grade)) for grade in grades.unique())
        if there[-1] < len(GRADES) - 1:
            last[str(school)] = ROUNDS_PER_GRADE * (there[-1] + 1) + 1
            leave[last[str(school)]].append(str(school))
        if there[0] > 0:
            join[ROUNDS_PER_GRADE * there[0] + 1].append(str(school))
    events = [{"round": r, "leave": leave[r], "join": join[r]} for r in sorted({*leave, *join})]
    return path, max(last, key=lambda school: last[school]), events


def row_of(data: str, method: str, seed: int, references: int, out: Path) -> dict[str, Any]:
    """Train and audit; the row of leaving.csv."""
    began = time.perf_counter()
    table, leaver = configuration(data, method, seed, out)
    with TemporaryDirectory() as scratch:
        directory = run(parse_config(table, "leaving.py"), Path(scratch, "run"))
        summary = json.loads((directory / "summary.json").read_text())
        trained = time.perf_counter()
        shoal.audit_leaver(directory, leaver, references=references)
        (found,) = directory.glob("left-*/audit.json")
        audit = json.loads(found.read_text())
    row: dict[str, Any] = {"data": data, "method": method, "seed": seed, "references": references}
    for view in VIEWS:
        for key in ("attack", "auc", "auc.low", "auc.high", "verdict"):
            row[f"{view}.{key}"] = audit.get(f"views.{view}.leaver.{key}")
    wanted = ("worst.", "others.", "leaver.p", "leaver.re", "control.", "client-membership.")
    row |= {key: value for key, value in audit.items() if key.startswith(wanted)}
    row |= {key: value for key, value in audit.items() if key.startswith("attacks.") and key.endswith(".leaver.auc")}
    row |= {key: value for key, value in summary.items() if key.startswith("forgetting.")}
    return row | {"seconds.run": round(trained - began, 1), "seconds.audit": round(time.perf_counter() - trained, 1)}


def cost_of(clusters: int, seed: int) -> dict[str, Any]:
    """What `exact` takes with that many clusters, each for a group of digits rotated by an angle of its own."""
    table: dict[str, Any] = read_toml(ROOT / "docs" / "examples" / "leaving.toml")
    angles = {f"by {360 * k // clusters}": 360 * k // clusters for k in range(clusters)}
    table["data"] |= {
        "clients": 24, "groups": {name: {"share": 1 / clusters, "rotation": [at, at]} for name, at in angles.items()},
    }  # fmt: skip
    table["seed"] = seed
    table["algorithm"] = {"name": "ifca", "clusters": clusters, "rounds": 12}
    if clusters == 1:
        table["algorithm"] = {"name": "fedavg", "rounds": 12}
    with TemporaryDirectory() as scratch:
        directory = run(parse_config(table, "leaving.py"), Path(scratch, "run"))
        summary = json.loads((directory / "summary.json").read_text())
    own = {key: value for key, value in summary.items() if key.startswith("forgetting.")}
    return {"clusters": clusters, "seed": seed, "accuracy": summary["accuracy.overall"]} | own


def summary_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, by federation and method, with intervals over three or more seeds."""
    numbers = [name for name in rows.select_dtypes("number").columns if name not in ("seed", "references")]
    table = list[Mapping[str, Any]]()
    for (data, method), own in rows.groupby(["data", "method"], sort=False):
        for name in numbers:
            values = own[name].dropna().to_numpy(dtype=float)
            if not len(values):
                continue
            low, high = mean_interval(values, 0.95) if len(values) > 2 else (nan, nan)
            table.append({"data": data, "method": method, "figure": name, "seeds": len(values),
                          "mean": values.mean(), "low": low, "high": high})  # fmt: skip
    return pd.DataFrame(table).round(4)


def main() -> None:
    """Run what is missing, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--references", type=int, default=16)
    parser.add_argument("--cost", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.cost:
        costs = [cost_of(clusters, seed) for clusters in (1, 2, 4, 8) for seed in asked.seeds]
        pd.DataFrame(costs).to_csv(asked.out / "cost.csv", index=False)
        return
    row = partial(row_of, references=asked.references, out=asked.out)
    places = [(data, method, seed) for data in asked.data for seed in asked.seeds for method in asked.methods]
    rows = add_missing_rows(asked.out / "leaving.csv", ("data", "method", "seed"), places, row)
    summary_of(rows).to_csv(asked.out / "table.csv", index=False)


if __name__ == "__main__":
    main()
