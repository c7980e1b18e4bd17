"""How near an IFCA-MIR run at the paper's MNIST size comes to the time of its matrix products alone.

    python benchmarks/products.py [--clients 200] [--rounds 5]

Operations are PyTorch's own count of those in convolutions and matrix products, forward and backward, for one image,
times the images that are trained on and scored. What the machine can do is 1024 x 1024 matrix products on both threads
at the same time, measured before, between and after.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from machine import product
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from shoal import Engine, Shape, create_model

sys.path.insert(0, str(Path(__file__).resolve().parent / "systems"))
from shoal_side import network, with_red_team
from work import WORKS

THREADS = 2


def operations() -> tuple[int, int]:
    """Of one image: those of a step, and those of scoring it."""
    module = create_model("mnist-cnn", Shape(1, 28, 28, 10)).network()
    image, label = torch.rand(1, 1, 28, 28), torch.zeros(1, dtype=torch.int64)
    with FlopCounterMode(display=False) as step:
        functional.cross_entropy(module(image), label).backward()
    with FlopCounterMode(display=False) as score, torch.no_grad():
        module(image)
    return step.get_total_flops(), score.get_total_flops()


def main() -> None:
    """Print a Markdown table: training and choosing beside their products alone, and the red team."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    work = WORKS["ifca-mir"].resized(given.clients, None, random=False)
    limits = [product(torch.float32, THREADS)]
    with Engine(network(work), threads=THREADS) as engine:
        training = with_red_team(work, engine, None)
        parts, used = {"train": 0.0, "choose": 0.0, "red_team": 0.0}, time.process_time()
        for _, report in training.rounds(training.start(), given.rounds):
            parts = {part: seconds + report.seconds[part] for part, seconds in parts.items()}
            limits.append(product(torch.float32, THREADS))
        used = time.process_time() - used
    step, score = operations()
    trained = given.rounds * work.images
    scored = given.rounds * work.clients * work.examples * work.clusters
    rows = {"train": trained * step, "choose": scored * score}
    limit = statistics.median(limits)
    print(
        f"{limit:.0f} GFLOP/s in products (from {min(limits):.0f} to {max(limits):.0f}); {used:.0f} s of processor time"
    )
    print("| part | GFLOP | s | products alone | times |\n|---|---:|---:|---:|---:|")
    for part, count in rows.items():
        alone = count / limit / 1e9
        print(f"| {part} | {count / 1e9:,.0f} | {parts[part]:.1f} | {alone:.1f} | {parts[part] / alone:.2f} |")
    print(f"| red team | | {parts['red_team']:.1f} | | |")


if __name__ == "__main__":
    main()
