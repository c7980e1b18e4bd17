"""What augmentation and DP-SGD cost a round, beside plain training and beside the time of its matrix products alone.

    python benchmarks/augmented.py [--source CHECKOUT ...] [--repeats 3] [--out augmented.csv]

Processor time of a round, one thread, random images (speed does not depend on what they show): 50 clients with 25
images of 28x28, five full batches a round; the MLP 784-200-10 under IFCA with K = 2 as on the bar
(`experiments/control/bar-base.toml`), the MNIST network under FedAvg. Rounds of the sides run in turn, and so do
processes with the code of each checkout; medians of all rounds after two for warming up.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENTS, EXAMPLES, STEPS = 50, 25, 5
INPUTS, HIDDEN, CLASSES = 784, 200, 10
WORKS = {"mlp": 7, "mnist-cnn": 5}
"""Networks, and rounds of each."""


def gflop(side: str) -> float | None:
    """Of the matrix products of the MLP's round: two for each weight of a layer, and one for the hidden outputs."""
    if side not in ("plain", "augmented"):
        return None
    head = 3 * STEPS * EXAMPLES * HIDDEN * CLASSES
    # Plain full batches train in the span of their inputs (`DenseNetwork.train_in_span`).
    span = 2 * EXAMPLES * INPUTS * HIDDEN + EXAMPLES**2 * INPUTS + STEPS * EXAMPLES**2 * HIDDEN
    first = span if side == "plain" else 2 * STEPS * EXAMPLES * INPUTS * HIDDEN
    return 2e-9 * CLIENTS * (first + head)


def measure() -> dict[str, dict[str, list[float]]]:
    """Seconds of each round, by network and side, with the package that this interpreter imports."""
    import torch  # noqa: PLC0415

    from shoal import (  # noqa: PLC0415
        DPSGD,
        IFCA,
        Augmentation,
        Engine,
        FedAvg,
        Federation,
        LocalSGD,
        Shape,
        Stream,
        Training,
        create_model,
    )  # fmt: skip

    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(CLIENTS * EXAMPLES, 1, 28, 28, generator=draw), torch.arange(CLIENTS * EXAMPLES) % CLASSES
    pieces = list(zip(x.split(EXAMPLES), y.split(EXAMPLES), strict=True))
    federation = Federation.from_tensors(pieces, test=(x[:10], y[:10]), classes=CLASSES)
    plain = LocalSGD(epochs=STEPS, batch_size=EXAMPLES, learning_rate=0.01)
    transforms = Augmentation(15.0, 2.0)
    sides = {"plain": plain, "augmented": replace(plain, augmentation=transforms)}
    private = {name: replace(local, gradient_privacy=DPSGD(1.0, 1.0)) for name, local in sides.items()}
    copies = {"augmented, 4 copies": replace(sides["augmented"], multiplicity=4)}
    dp = {f"{name}, DP-SGD": local for name, local in private.items()}
    dp["augmented, 4 copies, DP-SGD"] = replace(private["augmented"], multiplicity=4)
    seconds: dict[str, dict[str, list[float]]] = {}
    for work, rounds in WORKS.items():
        model = create_model(work, Shape(1, 28, 28, CLASSES), hidden=HIDDEN if work == "mlp" else None)
        algorithm = IFCA(clusters=2) if work == "mlp" else FedAvg()
        of_work = sides | copies | dp if work == "mlp" else sides
        engines = {name: Engine(model, threads=1) for name in of_work}
        trainings = {
            name: Training(engine.prepare(federation), algorithm, of_work[name], engine, Stream(0))
            for name, engine in engines.items()
        }
        runs = {name: training.rounds(training.start(), rounds) for name, training in trainings.items()}
        of_sides = seconds[work] = {name: [] for name in of_work}
        for _ in range(rounds):
            for name, run in runs.items():
                began = time.process_time()
                next(run)
                of_sides[name].append(time.process_time() - began)
        for engine in engines.values():
            engine.close()
    return {work: {name: times[2:] for name, times in of_work.items()} for work, of_work in seconds.items()}


def name_of(checkout: Path) -> str:
    """The commit of a checkout."""
    words = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or str(checkout)


def main() -> None:
    """Print the table, and write it as CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, nargs="+", default=[ROOT], help="checkouts whose package is measured")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "performance" / "augmented.csv")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        json.dump(measure(), sys.stdout)
        return
    import torch  # noqa: PLC0415
    from machine import processor, product  # noqa: PLC0415

    times: dict[tuple[str, str, str], list[float]] = {}
    limits = []
    torch.set_num_threads(1)
    for _ in range(given.repeats):
        for checkout in given.source:
            environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src"), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [sys.executable, __file__, "--measure"], env=environment, capture_output=True, text=True, check=True
            )
            limits.append(product(torch.float32))
            for work, sides in json.loads(done.stdout).items():
                for side, seconds in sides.items():
                    times.setdefault((name_of(checkout), work, side), []).extend(seconds)
    limit = statistics.median(limits)
    print(f"{processor()[0]}, torch {torch.__version__}, one thread; {limit:.0f} GFLOP/s in products\n")
    rows = [["commit", "network", "round", "ms", "times plain", "GFLOP", "ms of products alone"]]
    for (commit, work, side), seconds in times.items():
        median, plain = statistics.median(seconds), statistics.median(times[commit, work, "plain"])
        count = gflop(side) if work == "mlp" else None
        alone = ["", ""] if count is None else [f"{count:.2f}", f"{1000 * count / limit:.1f}"]
        rows.append([commit, work, side, f"{1000 * median:.1f}", f"{median / plain:.2f}", *alone])
    with given.out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    print("\n".join("| " + " | ".join(row) + " |" for row in rows))


if __name__ == "__main__":
    main()
