"""What reference federations cost by the clock, beside the run that they are of: whole commands, each a process.

    python benchmarks/references.py CONFIG [KEY=VALUE ...] --references 16 --jobs 1 2 [--within] --out CSV

A row for each number of references and of jobs: seconds of `shoal run`, of its rounds alone, and of `shoal audit` of
that run; with `--within` of `shoal run` with the references in it, and nothing is audited. `--source` is the `src` of
another checkout, whose commands may not know `--jobs` (give `--jobs 1`). Rows are appended.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory


def seconds(source: Path, *arguments: str) -> tuple[float, float]:
    """The wall time of a `shoal` command, and the processor's of all its processes."""
    paths = os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])
    began, before = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "shoal", *arguments, "--quiet"]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.DEVNULL)
    after = getrusage(RUSAGE_CHILDREN)
    return time.perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("changes", nargs="*")
    parser.add_argument("--references", type=int, nargs="+", default=[16])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1])
    parser.add_argument("--within", action="store_true")
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows = []
    with TemporaryDirectory() as folder:
        changes = [part for change in given.changes for part in ("--set", change)]
        plain, out = ("run", str(given.config), *changes), f"{folder}/run"
        run, _ = seconds(given.source, *plain, "--set", "evaluation.reference_federations=0", "--out", out)
        rounds = json.loads(Path(out, "summary.json").read_text(encoding="utf-8"))["seconds.total"]
        for references in given.references:
            for jobs in given.jobs:
                # Commands of before have no such option.
                side = () if jobs == 1 else ("--jobs", str(jobs))
                where = ("--out", f"{folder}/{references}-{jobs}")
                if given.within:
                    changed = "--set", f"evaluation.reference_federations={references}"
                    took = seconds(given.source, *plain, *changed, *side, *where)
                else:
                    # Elsewhere, since what is in the run's directory would be read.
                    shutil.copytree(out, where[1])
                    took = seconds(given.source, "audit", where[1], "--references", str(references), *side)
                rows.append([given.config.name, references, jobs, *(f"{part:.2f}" for part in (run, rounds, *took))])
    new = not given.out.exists()
    with given.out.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(
                [
                    "config",
                    "references",
                    "jobs",
                    "run_seconds",
                    "rounds_seconds",
                    "with_references_seconds",
                    "processor_seconds",
                ]
            )
        writer.writerows(rows)


if __name__ == "__main__":
    main()
