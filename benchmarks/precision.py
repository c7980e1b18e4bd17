"""Whether bf16 learns as well as fp32: test accuracy of FedAvg, 200 clients x 50 Fashion-MNIST images, after 30 rounds.

python benchmarks/precision.py [ROUNDS [RATE]]
"""

import statistics
import sys

from shoal import Engine, FedAvg, LocalSGD, Shape, Stream, Training, create_model, load_dataset
from shoal.data import Group, Partition, draw_preferences, partition_dataset
from shoal.engine import Precision

SEEDS = (0, 1, 2)


def accuracy(precision: Precision, seed: int, rounds: int, rate: float) -> float:
    """Share of the 10,000 official test images that the model is right about after the last round."""
    split = Partition(clients=200, examples_per_client=50, shadow_examples=0, test_examples=10_000)
    stream = Stream(seed)
    nobody_asks = draw_preferences(200, (0.5, 0.5), 0.0, stream("preferences"))
    federation = partition_dataset(load_dataset("fashion-mnist"), split, (Group("all", 1.0),), nobody_asks, stream)
    model = create_model("mnist-cnn", Shape(1, 28, 28, 10))
    with Engine(model, precision=precision) as engine:
        ready = engine.prepare(federation)
        local = LocalSGD(epochs=1, batch_size=50, learning_rate=rate)
        training = Training(ready, FedAvg(), local, engine, stream)
        *_, (state, _) = training.rounds(training.start(), rounds)
        outputs = engine.outputs(state.models[0], ready.test.x)
    return float((outputs.argmax(dim=1) == ready.test.y).double().mean())


def main() -> None:
    """Print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    rate = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1
    print(
        f"| test accuracy after {rounds} rounds at rate {rate:g} | "
        + " | ".join(f"seed {seed}" for seed in SEEDS)
        + " | mean |"
    )
    print("|---" * (len(SEEDS) + 2) + "|")
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    for precision in precisions:
        found = [accuracy(precision, seed, rounds, rate) for seed in SEEDS]
        cells = [f"{each:.4f}" for each in (*found, statistics.mean(found))]
        print(f"| {precision} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
