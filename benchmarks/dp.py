"""What DP-SGD costs: training images/s of the MNIST network, plain and private, batches of 50, one thread.

python benchmarks/dp.py [ROUNDS]
"""

import statistics
import sys
import time

import torch

from shoal import LocalSGD, Shape, Stream, create_model
from shoal.defenses import DPSGD
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.engine.worker_pool import keep_freed_memory

BATCH, STEPS = 50, 10


def main() -> None:
    """Print the medians of alternating measurements, and their ratio."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    torch.set_num_threads(1)
    keep_freed_memory()
    model = create_model("mnist-cnn", Shape(1, 28, 28, 10))
    seat = BoundNetwork(model, torch.device("cpu"), torch.float32)
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(BATCH, 28, 28, 1, generator=draw).movedim(-1, 1)
    y = torch.randint(0, 10, (BATCH,), generator=draw)
    rule = DPSGD(1.0, 0.5)
    local = LocalSGD(epochs=1, batch_size=BATCH, learning_rate=0.01, gradient_privacy=rule)
    seat.begin(model.init(Stream(0)), local, None, 0)
    noise = Stream(2).generator()

    def plain() -> None:
        seat.step(x, y)

    def private() -> None:
        seat.private_step(x, y, BATCH, rule, noise)

    rates: dict[str, list[float]] = {"plain": [], "DP-SGD": []}
    for number in range(rounds + 1):
        for name, step in (("plain", plain), ("DP-SGD", private)):
            began = time.perf_counter()
            for _ in range(STEPS):
                step()
            if number > 0:
                rates[name].append(BATCH * STEPS / (time.perf_counter() - began))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    for name, each in rates.items():
        print(f"{name:8} {medians[name]:7,.0f} images/s   ({min(each):,.0f} to {max(each):,.0f})")
    print(f"DP-SGD costs {medians['plain'] / medians['DP-SGD']:.2f} times plain SGD")


if __name__ == "__main__":
    main()
