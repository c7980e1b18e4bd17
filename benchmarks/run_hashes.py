"""SHA-256 of the results of forty small runs, to show that a change of the code changes no bit of them.

    python benchmarks/run_hashes.py before.csv          # on one commit, then on the other
    python benchmarks/run_hashes.py after.csv --against before.csv
    python benchmarks/run_hashes.py after.csv --against before.csv --only ifca references

Each run is a command line of `shoal`, so the comparison needs nothing of the package but its commands and files. It
takes about four minutes of one core. Seconds are left out of the hash; all other bytes count.
"""

import argparse
import csv
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

BASE = Path(__file__).parents[1] / "experiments" / "demo" / "digits.toml"
SMALL = (
    "data.clients=10", "data.examples_per_client=10", "data.test_examples=100", "data.shadow_examples=100",
    "model.name=logistic", "algorithm.rounds=3", "algorithm.name=ifca", "local.epochs=1", "red_team.every=2",
    "red_team.shadow_models=2",
)  # fmt: skip
"""What each run sets, before its own settings."""

NAMES = (
    "fedavg", "ifca", "ifca-mir", "scaffold", "ifca-within-limit", "hypcluster", "cfl", "pacfl", "fesem", "one-shot",
    "local", "mr-mtl", "fedsoft", "fedem", "fedrc", "group-privacy", "r-dpcfl", "fedrep", "apfl", "per-fedavg",
)  # fmt: skip
WRAPPERS = ("fedopt", "fedprox", "ditto", "fine-tuning")
SETTINGS = {
    "redraw": ["algorithm.redraw.share=0.2"],
    "participation": ["algorithm.participation=0.5", "algorithm.rounds=5"],
    "dirichlet": ["data.dirichlet_alpha=0.5"],
    "holdout": ["data.holdout_examples=5", "red_team.estimator=federated", "red_team.attack=gap"],
    "histogram": ["data.holdout_examples=5", "red_team.estimator=histogram", "red_team.attack=loss-threshold"],
    "cnn": ["model.name=digits-cnn"],
    "dp-sgd": ["defenses.dp_sgd.noise_multiplier=1.0"],
    "augmentation": ["defenses.augmentation.rotation=10.0"],
    "relaxloss": ["defenses.relaxloss.alpha=1.0", "engine.backend=loop"],
    "laplace": ["defenses.laplace_noise.noise_multiplier=0.1"],
    "clipping": ["defenses.max_update_norm=0.1"],
    "canaries": ["canaries.per_client=2"],
    "coordinator": ["coordinator.l2=0.1", "red_team.every=1"],
    "recorded": ["record.updates=1"],
    "references": ["evaluation.reference_federations=4"],
}
RUNS = {
    **{name: [f"algorithm.name={name}"] for name in NAMES},
    **{name: [f"algorithm.name={name}", "algorithm.base.name=ifca"] for name in WRAPPERS},
    **SETTINGS,
    "fedrep": ["algorithm.name=fedrep", "model.name=digits-cnn", "local.epochs=2"],
}
AUDITED = {"ifca": ["--references", "4"], "local": ["--references", "4"]}
"""Runs that an audit follows, with its options."""


def shoal(*arguments: str) -> None:
    """Run a command of the package that this interpreter imports."""
    done = subprocess.run([sys.executable, "-m", "shoal", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"shoal {' '.join(arguments)}: {done.stderr.strip()}")


def hashed(path: Path) -> str:
    """SHA-256 of a file; of a JSON file without its seconds, of a table without its columns of seconds."""
    content = path.read_bytes()
    if path.suffix == ".json":
        flat = {key: value for key, value in json.loads(content).items() if not key.startswith("seconds")}
        content = json.dumps(flat, sort_keys=True).encode()
    elif path.suffix == ".csv":
        rows = list(csv.reader(content.decode().splitlines()))
        kept = [i for i, name in enumerate(rows[0]) if "seconds" not in name]
        content = json.dumps([[row[i] for i in kept] for row in rows]).encode()
    return hashlib.sha256(content).hexdigest()


def results(name: str, out: Path) -> dict[tuple[str, str], str]:
    """The hashes of a run's files by (run, file)."""
    options = [option for setting in (*SMALL, *RUNS[name]) for option in ("--set", setting)]
    shoal("run", str(BASE), *options, "--out", str(out), "--quiet")
    if name in AUDITED:
        shoal("audit", str(out), *AUDITED[name])
    files = ("models.safetensors", "summary.json", "clients.csv", "rounds.csv", "audit.json")
    return {(name, file): hashed(out / file) for file in files if (out / file).exists()}


def resumed(folder: Path) -> dict[tuple[str, str], str]:
    """The hashes of a run of two rounds that is resumed up to the third."""
    options = [option for setting in SMALL for option in ("--set", setting)]
    for rounds, more in ((2, ()), (3, ("--resume",))):
        rounds_set = ("--set", f"algorithm.rounds={rounds}")
        shoal("run", str(BASE), *options, *rounds_set, "--out", str(folder), "--quiet", *more)
    return {("resumed", file): hashed(folder / file) for file in ("models.safetensors", "summary.json", "clients.csv")}


def main() -> None:
    """Write the hashes, and name the files that differ."""
    parser = argparse.ArgumentParser(description="SHA-256 of the results of forty small runs.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", nargs="+", choices=[*RUNS, "resumed"], default=[*RUNS, "resumed"], metavar="RUN")
    arguments = parser.parse_args()
    hashes: dict[tuple[str, str], str] = {}
    with TemporaryDirectory() as folder:
        for number, name in enumerate(arguments.only, 1):
            print(f"{number}/{len(arguments.only)} {name}", file=sys.stderr)
            out = Path(folder, name)
            hashes |= resumed(out) if name == "resumed" else results(name, out)
    with arguments.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "file", "sha256"])
        writer.writerows([*key, value] for key, value in hashes.items())
    if arguments.against is not None:
        with arguments.against.open(newline="") as file:
            before = {(row["run"], row["file"]): row["sha256"] for row in csv.DictReader(file)}
        before = {key: value for key, value in before.items() if key[0] in arguments.only}
        differing = [key for key in {**before, **hashes} if before.get(key) != hashes.get(key)]
        print(f"{len(hashes)} files, {len(differing)} differ", *(" ".join(key) for key in differing), sep="\n  ")
        sys.exit(bool(differing))


if __name__ == "__main__":
    main()
