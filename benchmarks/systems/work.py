"""The works that the sides share: who trains what on which images. Needs only NumPy, as the peers have no Shoal."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

CLASSES = 10
LEARNING_RATE = 0.1


@dataclass(frozen=True)
class Work:
    """One round's work: every client trains, and the ends are averaged by cluster.

    Args:
        network: "cnn", "mlp", "lenet" or "vgg11".
        shape: channels, height, width of an image.
        clients: how many, each with as many examples.
        examples: images of each client.
        batch: images a step; None: all of a client's.
        passes: over a client's images in a round.
        hidden: hidden neurons of "mlp".
        clusters: 1 is FedAvg, more are IFCA.
        groups: of equally many clients; group g holds the same images turned by g right angles.
        fashion: Fashion-MNIST's first training images; otherwise random ones (seed 0).
    """

    network: str
    shape: tuple[int, int, int]
    clients: int
    examples: int
    batch: int | None
    passes: int = 1
    hidden: int = 0
    clusters: int = 1
    groups: int = 1
    fashion: bool = False

    @property
    def images(self) -> int:
        """Images that pass through training in a round, counted once a pass."""
        return self.clients * self.examples * self.passes

    def resized(self, clients: int | None, examples: int | None, random: bool) -> "Work":
        """The same work for other numbers of clients and images, where given; ``random``: on random images."""
        return replace(
            self,
            clients=clients or self.clients,
            examples=examples or self.examples,
            fashion=self.fashion and not random,
        )


_DIGITS = (1, 8, 8)
_FASHION = (1, 28, 28)

WORKS = {
    "fedavg-cnn": Work("cnn", _FASHION, 200, 50, 50, fashion=True),
    "small-mlp": Work("mlp", _DIGITS, 100, 20, 10, hidden=32),
    "ifca-official": Work("mlp", _FASHION, 2400, 100, None, 10, hidden=200, clusters=4, groups=4, fashion=True),
    "ifca-mir": Work("cnn", _FASHION, 200, 250, 20, 5, clusters=2, fashion=True),
    "memory-few": Work("mlp", _DIGITS, 1_000, 200, 10, hidden=32, clusters=2),
    "memory-many": Work("mlp", _DIGITS, 100_000, 2, 10, hidden=32, clusters=2),
    "clients-few": Work("mlp", _DIGITS, 100, 20, 10, hidden=32),
    "clients-many": Work("mlp", _DIGITS, 10_000, 20, 10, hidden=32),
    # That of BlazeFL's own benchmark, but for its images: CIFAR-10's size, random.
    "blazefl-cnn": Work("lenet", (3, 32, 32), 100, 500, 50, 5),
    "vgg11": Work("vgg11", (3, 32, 32), 100, 500, 50),
}


def parser(description: str, threads: int) -> argparse.ArgumentParser:
    """The arguments that every side takes; ``threads`` is the side's default, 0 what its library takes by itself."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("work", choices=WORKS)
    options.add_argument("--rounds", type=int, default=3, help="rounds counted, after one for warming up")
    options.add_argument("--threads", type=int, default=threads)
    options.add_argument("--device", default="cpu")
    options.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    options.add_argument("--data", type=Path, help="NPZ of Fashion-MNIST: x (M, 28, 28) uint8, y (M,)")
    options.add_argument("--random-data", action="store_true", help="random images instead of Fashion-MNIST")
    options.add_argument("--clients", type=int)
    options.add_argument("--examples", type=int)
    options.add_argument("--began", type=float, help="time.time() when this process was asked for")
    return options


def chosen(arguments: argparse.Namespace) -> Work:
    """The work that was named, as changed by ``--clients``, ``--examples`` and ``--random-data``."""
    return WORKS[arguments.work].resized(arguments.clients, arguments.examples, random=arguments.random_data)


def load(work: Work, data: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """The images of all clients, one client after another.

    Args:
        work: whose.
        data: the NPZ; needed where the work is on Fashion-MNIST.

    Returns:
        x (clients * examples, C, H, W) float32 in [0, 1] and y (clients * examples,) int64.
    """
    total = work.clients * work.examples
    each = -(-total // work.groups)
    draw = np.random.default_rng(0)
    if work.fashion:
        assert data is not None, "this work needs --data or --random-data"
        with np.load(data) as file:
            pixels, labels = file["x"][:each, None], file["y"][:each].astype(np.int64)
        assert len(labels) == each, f"{data} has {len(labels)} images; {each} are needed"
    else:
        pixels = draw.integers(0, 256, (each, *work.shape), dtype=np.uint8)
        labels = draw.integers(0, CLASSES, each)
    if work.groups == 1:
        return pixels * np.float32(1 / 255), labels
    # Filled in place: 240,000 images of the official IFCA setting are 720 MiB, which no side should hold twice.
    x, y = np.empty((total, *work.shape), np.float32), np.empty(total, np.int64)
    for group in range(work.groups):
        part = slice(group * each, min((group + 1) * each, total))
        order = draw.permutation(each)[: part.stop - part.start]
        np.multiply(np.rot90(pixels, group, axes=(2, 3))[order], np.float32(1 / 255), out=x[part])
        y[part] = labels[order]
    return x, y
