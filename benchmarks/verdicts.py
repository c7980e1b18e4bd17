"""Verdicts of audits per hour: each federation is trained, and a gate on it is decided, each a process.

    python benchmarks/verdicts.py CONFIG... --gate "views.outsider.all.accuracy <= 0.6" --out CSV

A row for each federation: what the gate says, the reference federations that it took and could have taken, seconds of
`shoal run` and of `shoal audit`, and verdicts per hour of the audit alone; 0 where the gate is not decided.
"""

import argparse
import csv
import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

SHOAL = (sys.executable, "-m", "shoal")


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", type=Path, nargs="+")
    parser.add_argument("--gate", default="views.outsider.all.accuracy <= 0.6")
    parser.add_argument("--references", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    asked, rows = parser.parse_args(), []
    for config in asked.configs:
        with TemporaryDirectory() as folder:
            run, times = Path(folder, "run"), [time.perf_counter()]
            subprocess.run([*SHOAL, "run", config, "--out", run, "--quiet"], check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter())
            options = ["--gate", asked.gate, "--references", str(asked.references), "--jobs", str(asked.jobs)]
            said = subprocess.run(
                [*SHOAL, "audit", run, *options, "--quiet"], capture_output=True, text=True, check=False
            )
            times.append(time.perf_counter())
            sentence = next(line for line in said.stdout.splitlines() if line.startswith("Gate"))
            took = json.loads((run / "audit.json").read_text())["references"]
        seconds = [round(after - before, 1) for before, after in pairwise(times)]
        decided = "not decided" not in sentence
        rows.append(
            {
                "federation": config.stem,
                "gate": sentence.removeprefix("Gate "),
                "references": took,
                "most": asked.references,
                "run_s": seconds[0],
                "audit_s": seconds[1],
                "verdicts_per_hour": round(3600 / seconds[1], 1) if decided else 0,
            }
        )
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        with asked.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
