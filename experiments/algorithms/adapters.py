"""Algorithms on adapters of a frozen body: accuracy and grouping over seeds, with and without DP-SGD.

    python experiments/algorithms/adapters.py plain | private [--seeds 6] [--csv FILE] [--only NAME ...]

The body is an MLP that the server trained on 400 upright public digits. Clients have digits that are turned by 0, 90,
180 or 270 degrees by group (private: 0 or 90), and train low-rank updates of its two layers of 64 and its head, by
`peft`.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import peft
import torch
from torch import nn

import shoal
from shoal.engine import Algorithm, LocalSGD

ANGLES = {"plain": (0, 90, 180, 270), "private": (0, 90)}
LOCAL = LocalSGD(epochs=5, batch_size=10, learning_rate=0.1)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def federation(what: str, seed: int, clients: int, examples: int) -> shoal.Federation:
    groups = [
        shoal.Group(f"turned {angle}", 1 / len(ANGLES[what]), rotation=(angle, angle), shadow_share=float(angle == 0))
        for angle in ANGLES[what]
    ]
    partition = shoal.Partition(clients, examples, shadow_examples=400, test_examples=400)
    return shoal.partition_dataset(shoal.load_dataset("digits"), partition, groups, stream=shoal.Stream(seed))


def adapted(of: shoal.Federation, rank: int) -> shoal.Model:
    """The model of clients, on a body that was trained on the shadow set."""
    torch.manual_seed(0)
    body, shadow = network(), of.shadow
    optimizer = torch.optim.Adam(body.parameters(), 3e-3)
    for _ in range(60):
        for batch in torch.randperm(len(shadow.y)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(body(shadow.x[batch]), shadow.y[batch]).backward()
            optimizer.step()
    weights = body.state_dict()

    def build() -> nn.Module:
        fresh = network()
        fresh.load_state_dict(weights)
        config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=["1", "3"], modules_to_save=["5"])
        return peft.get_peft_model(fresh, config)  # pyright: ignore[reportArgumentType]

    return shoal.Model(build)


def compared(what: str, rounds: int) -> dict[str, tuple[Algorithm, LocalSGD]]:
    if what == "plain":
        algorithms = {
            "FedAvg": shoal.FedAvg(),
            "local training": shoal.LocalOnly(),
            "Ditto": shoal.Ditto(strength=0.3),
            "IFCA, K = 4": shoal.IFCA(clusters=4),
            "IFCA after one-shot, K = 4": shoal.OneShotStart(shoal.IFCA(clusters=4), replace(LOCAL, epochs=20)),
        }
        return {name: (algorithm, LOCAL) for name, algorithm in algorithms.items()}
    private = replace(LOCAL, epochs=1, batch_size="all", learning_rate=0.5, gradient_privacy=shoal.DPSGD(1.0, 4.0))
    algorithms = {
        "FedAvg": shoal.FedAvg(),
        "IFCA": shoal.IFCA(clusters=2),
        "R-DPCFL": shoal.RDPCFL(2, rounds, 1),
        "private means": shoal.PrivateMeans(2, 4.0, 4.0),
    }
    return {name: (algorithm, private) for name, algorithm in algorithms.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*ANGLES])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--examples", type=int, default=60)
    parser.add_argument("--rank", type=int, default=24)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--only", nargs="*", help="names of algorithms; left out: all")
    args = parser.parse_args()
    rows = []
    for seed in range(args.seeds):
        of = federation(args.what, seed, args.clients, args.examples)
        model = adapted(of, args.rank)
        for name, (algorithm, local) in compared(args.what, args.rounds).items():
            if name not in (args.only or [name]):
                continue
            found = shoal.simulate(of, model, algorithm, local, rounds=args.rounds, seed=seed).summary.overall
            keys = ("accuracy.overall", "adjusted_rand_index", "epsilon")
            rows.append({"algorithm": name, "seed": seed} | {key: found.get(key, np.nan) for key in keys})
    table = pd.DataFrame(rows)
    if args.csv is not None:
        table.round(4).to_csv(args.csv, index=False)
    summary = table.drop(columns="seed").groupby("algorithm", sort=False).agg(["mean", "std"])
    print(summary.round(3).to_string())


if __name__ == "__main__":
    main()
