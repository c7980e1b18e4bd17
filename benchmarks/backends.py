"""Images trained a second by the engine: each network under each backend, on one and two threads.

Random images (speed does not depend on what they show), one local epoch a round, FedAvg; medians of the rounds after
a warm-up round. The last line is the machine's own limit: a matrix product in float32 on one thread.

    python benchmarks/backends.py [ROUNDS]
"""

import statistics
import sys
import time

import torch

from shoal import Engine, FedAvg, Federation, LocalSGD, Model, Shape, Stream, Training, named_model
from shoal.engine import resolve_backend

WORK = {
    "mnist-cnn, 100 clients x 50, batch 50": ("mnist-cnn", Shape(1, 28, 28, 10), 100, 50, 50, 200),
    "mlp 784-200-10, 100 clients x 50, batch 50": ("mlp", Shape(1, 28, 28, 10), 100, 50, 50, 200),
    "mlp 64-32-10, 100 clients x 20, batch 10": ("mlp", Shape(1, 8, 8, 10), 100, 20, 10, 32),
}


def seconds(model: Model, federation: Federation, local: LocalSGD, backend: str, threads: int, rounds: int) -> float:
    """Median wall time of a round."""
    with Engine(model, threads=threads, backend="loop" if backend == "loop" else "vmap") as engine:
        training = Training(engine.prepare(federation), FedAvg(), local, engine, Stream(0))
        times = []
        began = time.perf_counter()
        for _ in training.rounds(training.start(), rounds + 1):
            times.append(time.perf_counter() - began)
            began = time.perf_counter()
    return statistics.median(times[1:])


def product() -> float:
    """GFLOP/s of a float32 matrix product on one thread."""
    torch.set_num_threads(1)
    a = torch.rand(1024, 1024)
    times = []
    for _ in range(8):
        began = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - began)
    return 2 * 1024**3 / statistics.median(times[1:]) / 1e9


def main() -> None:
    """Print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"torch {torch.__version__}; images trained a second, medians of {rounds} rounds")
    for title, (name, shape, clients, examples, batch, hidden) in WORK.items():
        model = named_model(name, shape, hidden=hidden)
        draw = torch.Generator().manual_seed(0)
        x = torch.rand(clients * examples, shape.channels, shape.height, shape.width, generator=draw)
        y = torch.randint(0, shape.classes, (len(x),), generator=draw)
        pieces = list(zip(x.split(examples), y.split(examples), strict=True))
        federation = Federation.of(pieces, test=(x[:10], y[:10]), classes=shape.classes)
        print(f"{title} (rule: {resolve_backend(model)})")
        for backend in ("loop", "vmap"):
            rates = [
                len(x) / seconds(model, federation, LocalSGD(epochs=1, batch_size=batch), backend, threads, rounds)
                for threads in (1, 2)
            ]
            print(f"  {backend}: {rates[0]:>9,.0f} on one thread, {rates[1]:>9,.0f} on two")
    print(f"matrix product, float32, one thread: {product():.0f} GFLOP/s")


if __name__ == "__main__":
    main()
