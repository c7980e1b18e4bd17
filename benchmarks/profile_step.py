"""Where the time of one training step goes, against the machine's own limit; one thread, random images.

    python benchmarks/profile_step.py [fp32 | bf16] [BATCH]

The MNIST network needs 23.1 MFLOP an image, forward and backward: 0.45 + 7.23 + 0.06 forward (a multiplication and
an addition for each weight and output pixel), as much again for the gradients of the weights, and 7.23 + 0.06 for those
of the second convolution's and the linear layer's inputs.
"""

import statistics
import sys
import time

import torch
from machine import product_rate
from torch.profiler import ProfilerActivity, profile

from shoal import LocalSGD, Shape, Stream, create_model
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.engine.worker_pool import keep_freed_memory

MFLOP = 23.1
STEPS = 40


def main() -> None:
    """Print the table."""
    precision = sys.argv[1] if len(sys.argv) > 1 else "fp32"
    batch = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    torch.set_num_threads(1)
    keep_freed_memory()
    seat = BoundNetwork(create_model("mnist-cnn", Shape(1, 28, 28, 10)), torch.device("cpu"), dtype)
    seat.begin(seat.model.init(Stream(0)), LocalSGD(epochs=1, batch_size=batch, learning_rate=0.01), None, 0)
    x = torch.rand(batch, 28, 28, 1, generator=Stream(1).generator()).to(dtype).movedim(-1, 1)
    y = torch.arange(batch) % 10
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        seat.step(x, y)
        times.append(time.perf_counter() - began)
    step = statistics.median(times)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(STEPS):
            seat.step(x, y)
    operations = sorted(profiled.key_averages(), key=lambda each: -each.self_cpu_time_total)
    total = sum(each.self_cpu_time_total for each in operations)
    print(f"{precision}, batch {batch}: {1000 * step:.2f} ms a step, {batch / step:,.0f} images/s")
    print(f"{MFLOP * batch / step / 1000:.0f} GFLOP/s, of {product_rate(dtype):.0f} in a 1024 x 1024 matrix product")
    alone = step * sum(each.self_cpu_time_total for each in operations if "convolution" in each.key) / total
    print(f"convolutions alone: {1000 * alone:.2f} ms a step, so at most {batch / alone:,.0f} images/s\n")
    print("| operation | share of the step |\n|---|---:|")
    for each in operations[:12]:
        print(f"| {each.key} | {each.self_cpu_time_total / total:.1%} |")


if __name__ == "__main__":
    main()
