"""SHA-256 of the results of seventy small runs, to show that a change of the code changes no bit of them.

    python benchmarks/run_hashes.py before.csv          # on one commit, then on the other
    python benchmarks/run_hashes.py after.csv --against before.csv
    python benchmarks/run_hashes.py after.csv --against before.csv --only ifca references

Each run is one command line of `shoal` or several, so the comparison needs nothing of the package but its commands and
files. The two Flower federations are programs of one line, in one process, with the nodes of the tests. All runs take
about seven minutes of one core. Seconds, times, versions and folders are left out of the hash; all other bytes count.
"""

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]

HASHED = (
    "*.safetensors", "*.csv", "*.json", "protected.toml", "tables/*.csv", "updates/*.safetensors", "scores/*.csv",
    "scores/*.json", "run/*.safetensors", "run/*.csv", "run/*.json", "0/ledger.json",
)  # fmt: skip
"""Files of a run's folder. In a Flower federation `run/` is the server's and `0/` the first client's."""

SKIPPED_FILES = ("hashes.json", "timings.json")
"""Hashes of the other files, and seconds."""

SKIPPED_COLUMNS = ("time", "run")
"""The moment of an event, and a run's digest of its whole configuration. Seconds are skipped by the word."""

SKIPPED_KEYS = ("shoal", "chain", "salt")
"""The version, and the secrets of a client's ledger."""

DIGITS = (
    "data.clients=10", "data.examples_per_client=10", "data.test_examples=100", "data.shadow_examples=100",
    "model.name='logistic'", "algorithm.rounds=3", "algorithm.name='ifca'", "local.epochs=1", "red_team.every=2",
    "red_team.shadow_models=2", "evaluation.baselines=false",
)  # fmt: skip
"""What makes the demonstration small."""

PROPERTY = (
    "data.examples_per_client=20", "data.test_examples=60", "model.filters=[4,4,4]", "model.hidden=8",
    "algorithm.rounds=12", "local.batch_size=8", "property_attack.warm_up=2", "property_attack.period=2",
    "property_attack.simulate_every=2", "property_attack.trees=10", "evaluation.every=6",
)  # fmt: skip
"""What makes a property inference small."""


def options(*settings: str) -> list[str]:
    """The options of a command that change a configuration."""
    return [option for setting in settings for option in ("--set", setting)]


DEMO = [str(ROOT / "experiments" / "demo" / "digits.toml"), *options(*DIGITS)]
INFERENCE = [str(ROOT / "experiments" / "property" / "small" / "base.toml"), *options(*PROPERTY)]


def run(*settings: str, base: list[str] = DEMO, out: str = "$OUT", more: tuple[str, ...] = ()) -> list[str]:
    """The command that trains a small federation."""
    return ["run", *base, *options(*settings), "--out", out, "--quiet", *more]


INPUTS = {
    "table.csv": "client,group,colour,height,weight,label\n"
    + "".join(
        f"c{i % 6},{'ab'[i % 6 > 1]},{('red', 'green', '', 'blue')[i % 4]},{i * 7 % 31},"
        f"{'' if i % 11 == 3 else i * 5 % 17},{'yes' if (i * 7 % 31 > 15) == (i % 6 > 1) else 'no'}\n"
        for i in range(180)
    ),
    "table.toml": """
        model = {name = "mlp", hidden = 8}
        algorithm = {name = "ifca-mir", rounds = 3}
        red_team = {every = 2, shadow_models = 2}
        evaluation = {baselines = false}
        [data]
        source = "table"
        path = "$IN/table.csv"
        client = "client"
        label = "label"
        group = "group"
        one_hot = true
        impute = "median"
        test_fraction = 0.3
        holdout_fraction = 0.1
        shadow_fraction = 0.2
        """,
    "sweep.toml": f"""
        base = "{DEMO[0]}"
        seeds = [0, 1]
        grid = {{"algorithm.name" = ["ifca", "fedavg"]}}
        tables.accuracy = {{rows = ["algorithm.name"], y = ["accuracy.overall", "accuracy.minority"]}}
        [changes]
        """
    + "".join('"{}" = {}\n'.format(*setting.split("=", 1)) for setting in DIGITS if "algorithm.name" not in setting),
}
"""Files that commands read, in the folder $IN."""

NAMES = (
    "fedavg", "scaffold", "hypcluster", "fesem", "one-shot", "mr-mtl", "fedsoft", "fedem", "fedrc",
    "group-privacy", "r-dpcfl", "apfl", "per-fedavg", "server-only",
)  # fmt: skip
WRAPPERS = (
    "fedopt", "fedprox", "ditto", "fine-tuning", "one-shot-start", "median", "trimmed-mean", "multi-krum",
)  # fmt: skip

EXPOSED = ("red_team.every=1", "privacy.thresholds=[0.5, 0.51]", "algorithm.rounds=4", "local.epochs=5")
"""What makes risks exceed limits, so that clients and coordinators act on them."""

RUNS: dict[str, list[list[str]]] = {
    # Algorithms.
    **{name: [run(f"algorithm.name={name}")] for name in NAMES},
    **{name: [run(f"algorithm.name={name}", "algorithm.base.name=ifca")] for name in WRAPPERS},
    "fedrep": [run("algorithm.name=fedrep", "model.name=digits-cnn", "local.epochs=2")],
    "ifca-mir": [run("algorithm.name=ifca-mir", "privacy.beta=0.99", *EXPOSED)],
    "ifca-within-limit": [run("algorithm.name=ifca-within-limit", *EXPOSED)],
    "cfl": [run("algorithm={name='cfl', eps1=10.0, eps2=0.0, rounds=3}")],
    "pacfl": [run("algorithm={name='pacfl', threshold=5.0, rounds=3}")],
    "fedbn": [run("algorithm={name='fedbn', layers='last', rounds=3}", "model.name=digits-cnn")],
    "shared-body": [run("algorithm.name=shared-body", "model.name=digits-cnn")],
    "fedavg-start": [run("algorithm={name='fedavg-start', fedavg_rounds=1, rounds=3}")],
    "risk-aware-choice": [
        run("algorithm={name='risk-aware-choice', base={name='fedem'}, rounds=3}", "red_team.every=1")
    ],
    "early-stopping": [run("algorithm={name='early-stopping', after=2, rounds=3}")],
    "priced-choice": [run("algorithm={name='priced-choice', prices=[0.0, 0.02], rounds=3}")],
    "cluster-size-floor": [run("algorithm={name='cluster-size-floor', min_clients=4, rounds=3}")],
    "local": [run("algorithm.name=local"), ["audit", "$OUT", "--references", "4"]],
    "redraw": [run("algorithm.redraw.share=0.4")],
    "participation": [run("algorithm.participation=0.5", "algorithm.rounds=5")],
    "resumed": [run("algorithm.rounds=2"), run("algorithm.rounds=3", more=("--resume",))],
    # Data and networks.
    "dirichlet": [run("data.dirichlet_alpha=0.5")],
    "table": [run(base=["$IN/table.toml"])],
    "cnn": [run("model.name=digits-cnn")],
    "features": [run("model.features={maps=['scattering', 'pca'], dimension=8}")],
    # Red team, coordinator and views.
    "holdout": [run("data.holdout_examples=5", "red_team.estimator=federated", "red_team.attack=gap")],
    "histogram": [run("data.holdout_examples=5", "red_team.estimator=histogram", "red_team.attack=loss-threshold")],
    "coordinator": [run("coordinator={l2=0.1, target=0.0, gain=5.0}", *EXPOSED)],
    "pooling": [run("algorithm.name=pooling", "coordinator={pooling=0.5, target=0.0, gain=5.0}", *EXPOSED)],
    "canaries": [run("canaries.per_client=2")],
    "references": [run("evaluation.reference_federations=4")],
    "client-view": [run("evaluation.view=client", "evaluation.reference_federations=2")],
    "server-view": [run("evaluation.view=server", "evaluation.reference_federations=2")],
    # Defences and releases.
    "dp-sgd": [run("defenses.dp_sgd.noise_multiplier=1.0")],
    "augmentation": [run("defenses.augmentation.rotation=10.0")],
    "relaxloss": [run("defenses.relaxloss.alpha=3.0", "engine.backend=loop")],
    "laplace": [run("defenses.laplace_noise.noise_multiplier=0.1")],
    "clipping": [run("defenses.max_update_norm=0.1")],
    "noise-in-sums": [
        run(
            "algorithm={name='server-start', base={name='private-means'}, rounds=3}", "local.batch_size='all'",
            "model.features={maps=['pca'], dimension=16}", "red_team.every=0",
            "defenses.dp_sgd={noise='sum', noise_multiplier=2.0, min_clients=2}",
        ),
        ["audit", "$OUT", "--references", "2"],
        ["card", "$OUT"],
    ],
    "release": [run("release={distil='end', average=2, steps=50}")],
    "release-by-rounds": [run("release={distil='round', steps=50}")],
    # Property inference.
    "property": [run(base=INFERENCE)],
    "property-scaled": [run("algorithm.name=fedavg", "property_attack.mode=scaled", base=INFERENCE)],
    "property-texts": [
        run(
            "data.source=synthetic_reviews:generate_reviews",
            "data.task=score/author-1",
            "model={name='gru'}",
            base=INFERENCE,
        )
    ],
    # Other commands.
    "ifca": [
        run(),
        ["audit", "$OUT", "--references", "4"],
        ["card", "$OUT"],
        ["audit", "--scores", "$OUT/scores.csv", "--out", "$OUT/scores"],
    ],
    "recorded": [run("record.updates=1"), ["audit", "--trace", "$OUT"]],
    "preflight": [["preflight", *DEMO, *options("model={name='mlp', hidden=16}"), "--json"]],
    "compare": [
        run(out="$OUT/ifca"), run("algorithm.name=fedavg", out="$OUT/fedavg"),
        ["compare", "$OUT/ifca", "$OUT/fedavg", "--json"],
    ],
    "sweep": [["sweep", "$IN/sweep.toml", "--out", "$OUT", "--quiet"]],
    "protect": [
        ["protect", *DEMO, *options("red_team.every=0", "algorithm.rounds=2"), "--references", "1", "--choosing", "1",
         "--judging", "2", "--max-cost", "1", "--out", "$OUT", "--quiet"],
    ],
    # Flower: the server and its clients in one process.
    "flower": [
        ["python", """
from pathlib import Path
from wire_federation import Federation
red_team = {"every": 2, "estimator": "histogram", "attack": "loss-threshold", "histogram_epsilon": 1.0}
Federation(Path("$OUT"), changes={"algorithm": {"name": "ifca", "rounds": 3}, "red_team": red_team}).serve()
"""],
    ],
    "flower-secure-sums": [
        ["python", """
from pathlib import Path
from sums_in_process import Nodes, served
served(Path("$OUT"), Nodes(Path("$OUT")))
"""],
    ],
}  # fmt: skip
"""The commands of each run. $OUT is its folder, and what a command with --json prints is $OUT/COMMAND.json."""


def carry_out(command: list[str], out: Path, inputs: Path) -> None:
    """Run a command of the package that this interpreter imports, or a program."""
    first, *rest = (word.replace("$OUT", str(out)).replace("$IN", str(inputs)) for word in command)
    line = ["-c", *rest] if first == "python" else ["-m", "shoal", first, *rest]
    folders = [
        *(ROOT / name for name in ("tests", "packages/shoal-flower/tests", "packages/shoal-flower/src")),
        *(ROOT / "experiments" / name for name in ("federation", "property")),
        os.environ.get("PYTHONPATH", ""),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, filter(None, folders)))}
    done = subprocess.run([sys.executable, *line], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(line)}: {done.stderr.strip()}")
    if "--json" in rest:
        out.mkdir(exist_ok=True)
        (out / f"{first}.json").write_text(done.stdout)


def hashed(path: Path, folder: Path) -> str:
    """SHA-256 of a file, without what differs between two runs in two folders."""
    content = path.read_bytes()
    if path.suffix != ".safetensors":
        content = content.replace(str(folder).encode(), b"")
    if path.suffix == ".json":
        content = json.dumps(without_skipped(json.loads(content)), sort_keys=True).encode()
    elif path.suffix == ".csv":
        rows = list(csv.reader(content.decode().splitlines()))
        kept = [i for i, name in enumerate(rows[0]) if "seconds" not in name and name not in SKIPPED_COLUMNS]
        content = json.dumps([[row[i] for i in kept] for row in rows]).encode()
    return hashlib.sha256(content).hexdigest()


def without_skipped(value: object) -> object:
    """A JSON value without the keys that differ between equal runs."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if not key.startswith("seconds") and key not in SKIPPED_KEYS}
        return {key: without_skipped(each) for key, each in kept.items()}
    return [without_skipped(each) for each in value] if isinstance(value, list) else value


def results(name: str, folder: Path) -> dict[tuple[str, str], str]:
    """The hashes of a run's files by (run, file)."""
    out = folder / name
    for command in RUNS[name]:
        carry_out(command, out, folder)
    files = sorted(path for pattern in HASHED for path in out.glob(pattern) if path.name not in SKIPPED_FILES)
    return {(name, path.relative_to(out).as_posix()): hashed(path, folder) for path in files}


def main() -> None:
    """Write the hashes, and name the files that differ."""
    parser = argparse.ArgumentParser(description=f"SHA-256 of the results of {len(RUNS)} small runs.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", nargs="+", choices=[*RUNS], default=[*RUNS], metavar="RUN")
    arguments = parser.parse_args()
    hashes: dict[tuple[str, str], str] = {}
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file, text in INPUTS.items():
            (folder / file).write_text(text.replace("$IN", str(folder)))
        for number, name in enumerate(arguments.only, 1):
            print(f"{number}/{len(arguments.only)} {name}", file=sys.stderr)
            hashes |= results(name, folder)
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
