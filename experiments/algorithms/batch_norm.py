"""Batch norms that are averaged, or that stay with their clients, where clients' pictures differ in contrast.

python experiments/algorithms/batch_norm.py
"""

from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import nn

import shoal

CLIENTS, IMAGES, SEEDS = 20, 30, range(5)


def network(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A small network with a norm of 40 channels."""
    return lambda: nn.Sequential(nn.Linear(64, 40), norm(), nn.ReLU(), nn.Linear(40, 10))


def federation(seed: int) -> shoal.Federation:
    """Clients whose devices scale and shift all pixels, each in its own way, in training and test examples."""
    draw = torch.Generator().manual_seed(seed)
    x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    order, places = torch.randperm(len(y), generator=draw), range(0, CLIENTS * 2 * IMAGES, 2 * IMAGES)
    scale, shift = 0.2 + 3 * torch.rand(CLIENTS, generator=draw), 4 * torch.rand(CLIENTS, generator=draw) - 2
    rows = [order[first : first + 2 * IMAGES] for first in places]
    seen = [((x[r] / 16 * scale[i] + shift[i]).float(), y[r]) for i, r in enumerate(rows)]
    names = [f"device {i}" for i in range(CLIENTS)]
    tests = torch.cat([x[IMAGES:] for x, _ in seen]), torch.cat([y[IMAGES:] for _, y in seen])
    test = shoal.Examples(*tests, [name for name in names for _ in range(IMAGES)])
    return shoal.Federation.from_tensors([(x[:IMAGES], y[:IMAGES]) for x, y in seen], groups=names, test=test)


if __name__ == "__main__":
    batch, group = network(lambda: nn.BatchNorm1d(40)), network(lambda: nn.GroupNorm(8, 40))
    ways = {
        "FedAvg, batch norm": (shoal.FedAvg(), batch),
        "FedBN": (shoal.FedBN(), batch),
        "FedAvg, group norm": (shoal.FedAvg(), group),
        "local training, batch norm": (shoal.LocalOnly(), batch),
    }
    for name, (algorithm, build) in ways.items():
        accuracies = []
        for seed in SEEDS:
            local = shoal.LocalSGD(epochs=5, batch_size=10, learning_rate=0.1)
            result = shoal.simulate(federation(seed), shoal.Model(build), algorithm, local, rounds=20, seed=seed)
            accuracies.append(result.summary["accuracy.overall"])
        mean, spread = torch.tensor(accuracies).mean(), torch.tensor(accuracies).std()
        print(f"{name}: {mean:.3f} ± {spread:.3f}")
