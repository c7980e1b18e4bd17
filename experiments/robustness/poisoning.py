"""The effect of robust merging on a minority of twelve clients with two or three poisoners: 60 clients of digits.

`python experiments/robustness/poisoning.py --out docs/results/robustness/poisoning.csv`; a run that the file has is not
made again.

The minority's pictures are upright, the majority's upside down. A malicious client is one of the twelve: "label flip"
trains on the labels 9 - y, "scaled" sends its honest update times -10. It chooses a model as the others do. In the
first round it is honest: k-means of first updates, the start of the two models, gives one scaled update a model.
"""

import argparse
import csv
import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import shoal
from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.core.atomic_files import write_text
from shoal.core.randomness import Stream
from shoal.engine import Algorithm, MaliciousTraining, State, Tensors

ROUNDS = 15
TABLE: dict[str, Any] = {
    "data": {
        "source": "digits", "clients": 60, "examples_per_client": 20, "test_examples": 390, "shadow_examples": 0,
        "groups": {"minority": {"share": 0.2, "rotation": [0, 0]}, "majority": {"share": 0.8, "rotation": [180, 180]}},
    },
    "model": {"name": "mlp", "hidden": 64},
    "algorithm": {"name": "fedavg", "rounds": ROUNDS},
    "local": {"epochs": 5, "batch_size": 10, "learning_rate": 0.1},
    "red_team": {"every": 0, "attack": "gap"},
}  # fmt: skip
BASES: dict[str, Algorithm] = {"one model": shoal.FedAvg(), "clusters": shoal.IFCA(clusters=2)}
RULES = ("mean", "median", "trimmed mean", "multi-krum")
FOR_TWELVE = ("trimmed mean for 12", "multi-krum for 12")
"""Set for as many liars as the minority has clients, in one model of all 60."""
ATTACKS: list[tuple[str, int]] = [("none", 0), *itertools.product(("label flip", "scaled"), (2, 3))]
COLUMNS = ["base", "merging", "attack", "malicious", "seed", "minority", "majority", "minority_alone"]


@dataclass(frozen=True, eq=False)
class Poisoners:
    """Clients that poison their updates; implements `shoal.engine.MaliciousClients`."""

    clients: Tensor
    attack: Literal["label flip", "scaled"]
    classes: int = 10

    def start(self, state: State, stream: Stream) -> Tensors:
        """They remember nothing."""
        del state, stream
        return {}

    def train(self, request: MaliciousTraining) -> tuple[Tensor, Tensors]:
        """The parameters that one of them sends."""
        shards, engine, honest = request.shards, request.engine, request.state.round == 0
        if self.attack == "label flip" and not honest:
            shards = replace(shards, y=self.classes - 1 - shards.y)
        end = engine.train_other_model(engine.model, request.start, shards, request.randomness, request.local)
        return end if honest or self.attack == "label flip" else request.start - 10 * (end - request.start), {}


def merging(rule: str, base: Algorithm, malicious: int) -> Algorithm:
    """``base`` by a rule that is told how many of twelve lie, if any do, and else is set for three."""
    expected, of = malicious or 3, 12
    if rule in FOR_TWELVE:
        rule, expected, of = rule.removesuffix(" for 12"), 12, 60
    if rule == "median":
        return shoal.CoordinateMedian(base)
    if rule == "trimmed mean":
        return shoal.TrimmedMean(base, trim=expected / of)
    return shoal.MultiKrum(base, byzantine=expected) if rule == "multi-krum" else base


def measured(base: str, rule: str, attack: str, malicious: int, seed: int) -> dict[str, object]:
    """One run's row: the accuracy of each group's honest clients, and whether the minority has a model of its own."""
    _, simulation = build(parse_config({**TABLE, "seed": seed}, "poisoning"))
    minority = torch.nonzero(simulation.federation.group == simulation.federation.groups.index("minority")).flatten()
    liars = simulation.federation.ids[minority[:malicious]]
    poisoners = Poisoners(liars, attack) if attack == "label flip" or attack == "scaled" else None  # noqa: PLR1714
    algorithm = merging(rule, BASES[base], malicious)
    algorithm = shoal.OneShotStart(algorithm) if base == "clusters" else algorithm
    run = replace(simulation, algorithm=algorithm, malicious_clients=poisoners, evaluate_every=ROUNDS)
    frame = shoal.Run(run).train().clients
    honest = frame[~frame["client"].isin(liars.tolist())]
    accuracy = honest.groupby("group")["accuracy"].mean()
    own, other = (set(honest.loc[honest["group"] == name, "cluster"]) for name in ("minority", "majority"))
    return {
        "base": base, "merging": rule, "attack": attack, "malicious": malicious, "seed": seed,
        "minority": f"{accuracy['minority']:.4f}", "majority": f"{accuracy['majority']:.4f}",
        "minority_alone": int(not own & other),
    }  # fmt: skip


def main() -> None:
    """Make the runs that the file does not have."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    rows = list(csv.DictReader(given.out.read_text().splitlines())) if given.out.exists() else []
    done = {tuple(row[name] for name in COLUMNS[:5]) for row in rows}
    runs = [*itertools.product(BASES, RULES, ATTACKS), *(("one model", rule, ("none", 0)) for rule in FOR_TWELVE)]
    for seed, (base, rule, (attack, malicious)) in itertools.product(range(given.seeds), runs):
        if (base, rule, attack, str(malicious), str(seed)) in done:
            continue
        rows.append({name: str(value) for name, value in measured(base, rule, attack, malicious, seed).items()})
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(given.out, "\n".join(",".join(row) for row in [COLUMNS, *(row.values() for row in rows)]) + "\n")


if __name__ == "__main__":
    main()
