"""Images trained a second by the engine: each network under each backend, on one and two threads.

Random images (speed does not depend on what they show), one local epoch a round, FedAvg; medians of rounds after as
many for warming up, in which the vmap backend may trace what it computes.

    python benchmarks/backends.py
"""

import statistics
import time

import torch
from machine import product_rate

from shoal import Engine, FedAvg, Federation, LocalSGD, Model, Shape, Stream, Training, create_model
from shoal.engine import Backend, resolve_backend

_FASHION = Shape(1, 28, 28, 10)

WORK = (
    # title, network, images, hidden neurons, clients, images of each, batch, rounds
    ("mnist-cnn, 100 clients x 50, batch 50", "mnist-cnn", _FASHION, 200, 100, 50, 50, 3),
    ("mlp 784-600-10, 100 clients x 50, batch 50", "mlp", _FASHION, 600, 100, 50, 50, 8),
    ("mlp 784-200-10, 100 clients x 50, batch 50", "mlp", _FASHION, 200, 100, 50, 50, 15),
    ("mlp 64-32-10, 100 clients x 20, batch 10", "mlp", Shape(1, 8, 8, 10), 32, 100, 20, 10, 60),
)


def seconds(
    model: Model, federation: Federation, local: LocalSGD, backend: Backend, threads: int, rounds: int
) -> float:
    """Median wall time of a round."""
    with Engine(model, threads=threads, backend=backend) as engine:
        training = Training(engine.prepare(federation), FedAvg(), local, engine, Stream(0))
        times = []
        began = time.perf_counter()
        for _ in training.rounds(training.start(), 2 * rounds):
            times.append(time.perf_counter() - began)
            began = time.perf_counter()
    return statistics.median(times[rounds:])


def main() -> None:
    """Print the table."""
    print(f"torch {torch.__version__}; bold is the rule's choice\n")
    print("| work | backend | one thread | two threads |\n|---|---|---:|---:|")
    for title, name, shape, hidden, clients, examples, batch, rounds in WORK:
        model = create_model(name, shape, hidden=hidden if name == "mlp" else None)
        draw = torch.Generator().manual_seed(0)
        x = torch.rand(clients * examples, shape.channels, shape.height, shape.width, generator=draw)
        y = torch.randint(0, shape.classes, (len(x),), generator=draw)
        pieces = list(zip(x.split(examples), y.split(examples), strict=True))
        federation = Federation.from_tensors(pieces, test=(x[:10], y[:10]), classes=shape.classes)
        local = LocalSGD(epochs=1, batch_size=batch)
        for backend in ("loop", "vmap"):
            rates = [
                f"{len(x) / seconds(model, federation, local, backend, threads, rounds):,.0f}" for threads in (1, 2)
            ]
            label = f"**{backend}**" if backend == resolve_backend(model) else backend
            print(f"| {title} | {label} | {rates[0]} | {rates[1]} |", flush=True)
    torch.set_num_threads(1)
    print(f"\na 1024 x 1024 matrix product in float32 on one thread: {product_rate(torch.float32):.0f} GFLOP/s")


if __name__ == "__main__":
    main()
