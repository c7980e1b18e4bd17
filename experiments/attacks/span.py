"""How much the span attack recognises, by view, layer, defence and algorithm: a cell takes seconds.

    python experiments/attacks/span.py docs/results/attacks/span
    python experiments/attacks/span.py OUT --seeds 0 --cells dp-sgd

Fashion-MNIST, MLP 784-200-10, 25 images a client, five epochs, batches of 25, rate 0.1, one model, where a cell says
nothing else. Non-members are examples that nobody trained on; known ones give thresholds. Of the server the mean over
clients is given. Written: OUT/cells.csv, a row for each cell, view and seed; what it has already is not measured again.
While it runs it prints a dot a cell.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.attacks import Candidates, Knowledge, ModelSpan, OwnedRecords, ServerOptimizer, UpdateSpan
from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.core.atomic_files import write_text
from shoal.data import Federation
from shoal.engine import Engine, RoundUpdates, Training
from shoal.metrics import membership_metrics
from shoal.models import VectorShape, create_model
from shoal.simulation.play import initial_state, move_to_engine

KNOWN = 1_000


@dataclass(frozen=True)
class Cell:
    """A setting: changes of the configuration by table, and what the attacker knows beside local training.

    Args:
        name: in the table.
        clients, images, rounds: of the federation.
        tables: changes, by the configuration's table.
        views: "server", "client" (moves stacked), "snapshots" (first and last model alone).
        knowledge: what the attacker knows.
        attacked: clients whose updates are attacked, at most.
        asked: members and non-members of each, at most.
        components: of the principal components that inputs are reduced to; 0: none.
    """

    name: str
    clients: int = 6
    images: int = 25
    rounds: int = 1
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    views: tuple[str, ...] = ("server",)
    knowledge: dict[str, Any] = field(default_factory=dict)
    attacked: int = 6
    asked: int = 1_000
    components: int = 0

    def configuration(self, seed: int) -> dict[str, Any]:
        """The complete configuration."""
        tables: dict[str, dict[str, Any]] = {
            "data": {
                "source": "fashion-mnist", "clients": self.clients, "examples_per_client": self.images,
                "shadow_examples": KNOWN, "test_examples": 1_000,
            },
            "model": {"name": "mlp"},
            "algorithm": {"name": "fedavg", "rounds": self.rounds},
            "local": {"epochs": 5, "batch_size": 25, "learning_rate": 0.1},
            "red_team": {"every": 0, "attack": "loss-threshold"},
            "engine": {"threads": 1},
        }  # fmt: skip
        for table, changes in self.tables.items():
            tables[table] = {**tables.get(table, {}), **changes}
        return {"seed": seed, **tables}


def augmentation(rotation: float, shift: float, epochs: int) -> dict[str, dict[str, Any]]:
    """The tables of augmented training."""
    strength = {"rotation": rotation, "shift": shift}
    return {"defenses": {"augmentation": strength}, "local": {"epochs": epochs}}


def dp_sgd(noise: float) -> dict[str, dict[str, Any]]:
    """The tables of DP-SGD with C = 1."""
    return {"defenses": {"dp_sgd": {"max_grad_norm": 1.0, "noise_multiplier": noise}}}


DIGITS = {"data": {"source": "digits", "shadow_examples": 500, "test_examples": 500}, "model": {"hidden": 64}}
LOGISTIC = {"model": {"name": "logistic"}}
ADAM = ServerOptimizer("adam", 0.01, 0.9, 0.99, 1e-3)
SEARCHED: dict[str, Any] = {"clients": 2, "asked": 20}
BOTH = ("server", "client")

CELLS = [
    Cell("plain"),
    Cell("100 images", images=100),
    Cell("250 images", images=250, clients=2),
    Cell("100 images, three rounds", images=100, rounds=3),
    Cell("250 images, three rounds", images=250, clients=2, rounds=3),
    Cell("bf16", tables={"engine": {"precision": "bf16"}}),
    Cell("momentum 0.9", tables={"local": {"momentum": 0.9, "learning_rate": 0.02}}),
    Cell("weight decay 0.01", rounds=3, tables={"local": {"weight_decay": 0.01}}, views=BOTH),
    Cell("clipping of batches, 0.5", tables={"local": {"clip_norm": 0.5}}),
    Cell("clipping of examples, C = 1", tables=dp_sgd(0.0)),
    Cell("DP-SGD, noise 0.1", tables=dp_sgd(0.1), views=BOTH),
    Cell("DP-SGD, noise 0.1, five rounds", rounds=5, tables=dp_sgd(0.1), views=BOTH),
    Cell("DP-SGD, noise 1", tables=dp_sgd(1.0), views=BOTH),
    Cell("DP-SGD, noise 1, five rounds", rounds=5, tables=dp_sgd(1.0), views=BOTH),
    Cell(
        "Laplace noise, nu = 1", tables={"defenses": {"laplace_noise": {"noise_multiplier": 1.0}}}, views=BOTH,
        knowledge={"relative_noise": 1.0},
    ),
    Cell("augmentation 15 deg 2 px, 25 x 5 passes", tables=augmentation(15.0, 2.0, 5), **SEARCHED),
    Cell("augmentation 25 deg 3.2 px, 25 x 5 passes", tables=augmentation(25.0, 3.2, 5), **SEARCHED),
    Cell("augmentation 15 deg 2 px, 100 x 1 pass", images=100, tables=augmentation(15.0, 2.0, 1), **SEARCHED),
    Cell("augmentation 15 deg 2 px, 100 x 5 passes", images=100, tables=augmentation(15.0, 2.0, 5), **SEARCHED),
    *(Cell(f"augmentation 15 deg 2 px, sum of {n} clients x 25 x {e} passes, {t} rounds", clients=n, rounds=t,
           tables=augmentation(15.0, 2.0, e), views=("client",), asked=50 if n * e < 8 else 1_000)
      for n, e, t in ((3, 2, 1), (3, 5, 5), (12, 5, 1), (12, 5, 5))),
    Cell("FedProx, mu = 0.1", rounds=3, tables={"algorithm": {"name": "fedprox", "mu": 0.1}}, views=BOTH),
    Cell(
        "SCAFFOLD", rounds=3, tables={"algorithm": {"name": "scaffold"}}, views=BOTH,
        knowledge={"control_variates": True},
    ),
    Cell("FedRep", rounds=3, tables={"algorithm": {"name": "fedrep"}}, views=BOTH),
    Cell(
        "FedSoft, K = 2", rounds=3, tables={"algorithm": {"name": "fedsoft", "clusters": 2}},
        knowledge={"continued": True},
    ),
    Cell("FedOpt (Adam), inverted", rounds=3, tables={"algorithm": {"name": "fedopt"}}, views=("client",),
         knowledge={"server": ADAM}),
    Cell("FedOpt (Adam), as it is", rounds=3, tables={"algorithm": {"name": "fedopt"}}, views=("client",)),
    Cell("clients' Adam", tables={"local": {"optimizer": {"name": "Adam"}, "learning_rate": 0.001}}, views=BOTH),
    *(Cell(f"{n} clients, {t} rounds", clients=n, rounds=t, views=("client",))
      for n, t in ((5, 1), (12, 1), (12, 2), (12, 5), (38, 1), (38, 3), (38, 5), (38, 20), (100, 5))),
    *(Cell(f"{n} clients, models of rounds 0 and 40", clients=n, rounds=40, views=("snapshots",)) for n in (5, 12)),
    Cell("digits, 30 images, MLP 64", images=30, tables=DIGITS),
    Cell("FemnistCNN, one epoch", tables={"model": {"name": "femnist-cnn"}, "local": {"epochs": 1}}, clients=3),
    Cell("FemnistCNN, five epochs", tables={"model": {"name": "femnist-cnn"}}, clients=3),
    Cell("MnistCNN, five epochs", tables={"model": {"name": "mnist-cnn"}}, clients=3),
    Cell("MnistCNN, five epochs, five rounds", tables={"model": {"name": "mnist-cnn"}}, clients=3, rounds=5),
    *(Cell(f"logistic, d = {d or 784}, {n} images, {t} rounds", images=n, rounds=t, tables=LOGISTIC, components=d)
      for d, n, t in ((0, 25, 3), (64, 25, 5), (32, 25, 5), (16, 25, 20), (64, 100, 20), (32, 100, 20))),
]  # fmt: skip


def trained(cell: Cell, seed: int) -> tuple[Federation, Engine, Training, list[Tensor], list[RoundUpdates]]:
    """The federation, engine and training of a cell, its models before and after each round, and all updates."""
    config, simulation = build(parse_config(cell.configuration(seed), where=cell.name))
    if cell.components:
        federation = reduced(simulation.federation, cell.components)
        model = create_model("logistic", VectorShape(inputs=cell.components, classes=10))
        simulation = replace(simulation, federation=federation, model=model)
    engine = Engine(simulation.model, threads=1, precision=config.engine.precision)
    simulation = move_to_engine(simulation, engine)
    training, state = replace(simulation.on(engine), record_every=1), initial_state(simulation, engine).state
    models, updates = [state.models], list[RoundUpdates]()
    for after, report in training.rounds(state, cell.rounds):
        models.append(after.models)
        assert report.updates is not None
        updates.append(report.updates)
    return simulation.federation, engine, training, models, updates


def reduced(federation: Federation, components: int) -> Federation:
    """The federation with the leading principal components of its shadow set as inputs, of variance 1 on average."""
    public = federation.shadow.x.flatten(1)
    centre = public.mean(dim=0)
    axes = torch.linalg.svd(public - centre, full_matrices=False)[2][:components].T
    scale = ((public - centre) @ axes).std()

    def project(x: Tensor) -> Tensor:
        return (x.flatten(1) - centre) @ axes / scale

    parts = {name: getattr(federation, name) for name in ("clients", "holdout", "shadow", "test")}
    return replace(federation, **{name: replace(part, x=project(part.x)) for name, part in parts.items()})


def rows(cell: Cell, seed: int) -> Iterator[dict[str, Any]]:
    """What the attack of each view finds."""
    federation, engine, training, models, updates = trained(cell, seed)
    records, shadow = OwnedRecords.from_federation(federation), federation.shadow
    own, nobody = records.client.numpy(), np.flatnonzero(records.client.numpy() < 0)
    draw = np.random.default_rng(seed)
    local = training.local_of_clusters(training.start())[0]
    known = Knowledge(local, examples=cell.images, clients=cell.clients, dtype=engine.dtype, **cell.knowledge)
    for view in cell.views:
        groups = [[client] for client in range(min(cell.clients, cell.attacked))]
        if view != "server":
            groups = [list(range(cell.clients))]
        measured, seconds = [], 0.0
        for group in groups:
            members = draw.permutation(np.flatnonzero(np.isin(own, group)))[: cell.asked]
            chosen = np.r_[members, nobody[: len(members) if cell.asked < len(nobody) else None]]
            candidates = Candidates(
                records.x[chosen], shadow.x, records.y[chosen], shadow.y, y=records.y[chosen], known_y=shadow.y,
                row=torch.full((len(chosen),), group[0]),
            )  # fmt: skip
            begin = time.perf_counter()
            if view == "server":
                found = UpdateSpan().score(updates, candidates, engine, known)
            else:
                stacked = torch.stack(models if view == "client" else [models[0], models[-1]])
                found = ModelSpan().score(stacked, replace(candidates, row=None), engine, known)
            seconds += time.perf_counter() - begin
            row, member = group[0], own[chosen] >= 0
            score, threshold = found.score[row], found.threshold[row]
            figures = membership_metrics(score, member, threshold=threshold)
            measured.append({
                "auc": figures.auc, "tpr_at_fpr_0.01": at_false_positives(score, member, 0.01),
                "accuracy": figures.accuracy, "false_alarms": float((score > threshold)[~member].mean()),
                "exact": float(found.exact[row]), "rank": float(found.rank[row]),
            })  # fmt: skip
        means = {key: round(float(np.mean([one[key] for one in measured])), 4) for key in measured[0]}
        yield {
            "cell": cell.name, "view": view, "seed": seed, "layer": found.layer, "inputs": found.inputs, **means,
            "seconds": round(seconds, 2),
        }  # fmt: skip
    engine.close()


def at_false_positives(score: np.ndarray, member: np.ndarray, rate: float) -> float:
    """The true positive rate at a false positive rate, of the scores themselves."""
    return float((score[member] > np.quantile(score[~member], 1 - rate)).mean())


def main(out: Path, seeds: Sequence[int], chosen: str, report: Callable[[str], None]) -> None:
    """Measure all cells whose name contains ``chosen``."""
    path = out / "cells.csv"
    found = pd.read_csv(path).to_dict("records") if path.is_file() else []
    done = {(row["cell"], row["seed"]) for row in found}
    for cell in CELLS:
        if chosen in cell.name:
            for seed in seeds:
                found += [] if (cell.name, seed) in done else rows(cell, seed)
            out.mkdir(parents=True, exist_ok=True)
            write_text(path, pd.DataFrame(found).to_csv(index=False))
            report(".")
    report("\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cells", default="", help="those whose name contains this")
    arguments = parser.parse_args()
    main(arguments.out, arguments.seeds, arguments.cells, lambda letter: print(letter, end="", flush=True))
