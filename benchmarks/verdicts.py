"""Verdicts per hour: three federations are trained and two gates on each are decided, each step a process of its own.

    python benchmarks/verdicts.py --out docs/results/performance/verdicts.csv [--jobs 2] [--only mlp]

The limits are far from the exposures, so that two to six reference federations decide: one gate holds and one is
broken. A limit near the exposure takes all of them and may stay undecided. A row has the verdict, the reference
federations that it took, wall and processor seconds of both commands, and 3,600 by the sum of each. The table needs
`pip install "shoal[tables]"`.
"""

import argparse
import csv
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
SHOAL = (sys.executable, "-m", "shoal")
LOCAL = "[local]\nepochs = 5\nbatch_size = 20\nlearning_rate = 0.1\n"
FEDAVG = '[model]\nname = "mlp"\nhidden = 64\n[algorithm]\nname = "fedavg"\nrounds = 20\n' + LOCAL
MLP = '[data]\nsource = "digits"\nclients = 40\nexamples_per_client = 20\nshadow_examples = 400\ntest_examples = 390\n'
TABLE = '[data]\nsource = "azprocedure"\ntest_fraction = 0.3\nshadow_fraction = 0.1\n'
FEDERATIONS = {
    "demo": (ROOT / "experiments" / "demo" / "digits.toml").read_text(encoding="utf-8"),
    "mlp": MLP + FEDAVG,
    "azprocedure": TABLE + FEDAVG,
}
GATES = ("views.outsider.all.accuracy <= 0.7", "views.server.all.accuracy <= 0.55")  # holds, is broken


def seconds(*arguments: str | Path) -> tuple[float, float, str]:
    """Wall and processor seconds of a command of Shoal, and what it prints; a broken gate ends with exit code 3."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([*SHOAL, *arguments, "--quiet"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3):
        sys.exit(done.returncode)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def rows(name: str, references: int, jobs: int, folder: Path) -> list[dict[str, str | float]]:
    """Train a federation once and decide each gate on a copy of the run, which has no reference federations yet."""
    config, trained, found = folder / f"{name}.toml", folder / name, list[dict[str, str | float]]()
    config.write_text(FEDERATIONS[name], encoding="utf-8")
    wall, cpu, _ = seconds("run", config, "--out", trained, "--set", "evaluation.baselines=false")
    for number, gate in enumerate(GATES):
        copy = shutil.copytree(trained, folder / f"{name}-{number}")
        options = (copy, "--gate", gate, "--references", str(references), "--jobs", str(jobs))
        audit_wall, audit_cpu, said = seconds("audit", *options)
        sentence = next(line for line in said.splitlines() if line.startswith(f"Gate {gate}: "))
        verdict = next(verdict for verdict in ("not decided", "broken", "holds", "cannot hold") if verdict in sentence)
        row: dict[str, str | float] = {
            "federation": name,
            "gate": gate,
            "verdict": verdict,
            "references": json.loads((copy / "audit.json").read_text(encoding="utf-8"))["references"],
            "most": references,
            "jobs": jobs,
        }
        for kind, train, audit in (("wall", wall, audit_wall), ("cpu", cpu, audit_cpu)):
            row |= {f"{kind}_train_s": round(train, 1), f"{kind}_audit_s": round(audit, 1)}
            row[f"{kind}_verdicts_per_hour"] = round(3600 / (train + audit), 1)
        print(row, flush=True)
        found.append(row)
    return found


def main() -> None:
    """Measure the federations that are asked for, and write the file after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=FEDERATIONS, default=[*FEDERATIONS])
    parser.add_argument("--references", type=int, default=16, help="the most of an audit (default: 16)")
    parser.add_argument("--jobs", type=int, default=1, help="reference federations at a time (default: 1)")
    parser.add_argument("--out", type=Path, required=True)
    asked, found = parser.parse_args(), list[dict[str, str | float]]()
    for name in asked.only:
        with TemporaryDirectory() as folder:
            found += rows(name, asked.references, asked.jobs, Path(folder))
        with asked.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*found[0]])
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    main()
