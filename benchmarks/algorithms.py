"""The cost of each algorithm: its round, and what clients do after the last one, in multiples of FedAvg's round.

After the last round each client gets its model, trained further where the algorithm says so, and scores it on its own
examples. Processor time of one thread, which other processes disturb less than wall time. Random images (speed does not
depend on what they show); medians of rounds that the algorithms take in turn, so that a busy machine is busy for all.

    python benchmarks/algorithms.py [--rounds 5]
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from machine import commit, processor

from shoal import Engine, FedAvg, Federation, LocalSGD, Model, Shape, Stream, Training, create_model
from shoal.algorithms import ALGORITHMS as NAMED_ALGORITHMS
from shoal.engine import Algorithm

ALGORITHMS: tuple[Algorithm, ...] = (FedAvg(), *(kind() for name, kind in NAMED_ALGORITHMS.items() if name != "fedavg"))
"""Every algorithm of the house with its defaults, FedAvg first."""

LOCAL = LocalSGD(epochs=2, batch_size=20, learning_rate=0.01)
"""Two epochs, since FedRep needs one for the head and one for the body."""


def federation(model_shape: Shape, clients: int, examples: int) -> Federation:
    """Clients with random images."""
    draw = torch.Generator().manual_seed(0)
    side = (model_shape.channels, model_shape.height, model_shape.width)

    def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(count, *side, generator=draw), torch.arange(count) % model_shape.classes

    return Federation.from_tensors([images(examples) for _ in range(clients)], test=images(20))


def measured(
    model: Model, data: Federation, algorithms: Sequence[Algorithm], rounds: int
) -> list[tuple[Algorithm, float, float]]:
    """Each algorithm, the processor seconds of its round (median, after a warm-up round) and of `deployed_models`."""
    with Engine(model, threads=1) as engine:
        ready = engine.prepare(data)
        runs = [Training(ready, each, LOCAL, engine, Stream(0)) for each in algorithms]
        states = [run.round(run.start())[0] for run in runs]
        seconds: list[list[float]] = [[] for _ in runs]
        for _ in range(rounds):
            for i, run in enumerate(runs):
                began = time.process_time()
                states[i], _ = run.round(states[i])
                seconds[i].append(time.process_time() - began)
        ends = []
        for run, state in zip(runs, states, strict=True):
            began = time.process_time()
            run.deployed_models(state)
            ends.append(time.process_time() - began)
    medians = [statistics.median(each) for each in seconds]
    return list(zip(algorithms, medians, ends, strict=True))


def table(rows: Sequence[tuple[Algorithm, float, float]]) -> str:
    """In Markdown, cheapest first, beside the first algorithm, which is FedAvg."""
    unit = rows[0][1]
    lines = ["| algorithm | round | after the last round |", "|---|---:|---:|"]
    for algorithm, seconds, end in sorted(rows, key=lambda row: row[1]):
        lines.append(f"| `{algorithm.name}` | {seconds / unit:.2f} | {end / unit:.2f} |")  # pyright: ignore[reportAttributeAccessIssue]
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the tables."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--rounds", type=int, default=5, help="rounds counted, after one for warming up")
    rounds = options.parse_args().rounds
    torch.set_num_threads(1)
    print(f"Commit {commit()}, {processor()[0]}, torch {torch.__version__}.")
    shape = Shape(1, 28, 28, 10)
    for title, name, clients, examples in (
        ("mnist-cnn, 10 clients x 40", "mnist-cnn", 10, 40),
        ("mlp 784-200-10, 50 clients x 40", "mlp", 50, 40),
    ):
        model = create_model(name, shape)
        rows = measured(model, federation(shape, clients, examples), ALGORITHMS, rounds)
        print(f"\n{title}; FedAvg's round: {1000 * rows[0][1]:.0f} ms\n\n{table(rows)}", flush=True)


if __name__ == "__main__":
    main()
