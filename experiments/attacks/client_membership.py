"""Did this client take part? By the number of clients in a sum, and by what the attacker sees.

    python experiments/attacks/client_membership.py docs/results/attacks

Of 2 m clients with 25 images each, of one group of `experiments/control/bar-base.toml`, m take part in FedAvg. The
attacker holds the images of all 2 m, the very ones ("held") or as many others of the same clients ("fresh"), and ranks
the clients:

    outsider, final model       by the loss
    sum, one round              by the span of one move of the model: a server's view under secure aggregation
    client, 5 and 20 rounds     by the span of the moves of all rounds together
    sums of known cohorts       in a second training half of the 2 m clients take part in each round. The server knows
                                which pseudonyms did, not whose they are; it links candidates to pseudonyms by
                                `cohort_coefficients` of the evidence of each round's sum

AUC over clients, members against those that took no part; of the last, the right pseudonym against all others. Written:
OUT/client-membership.csv, a row a size and view with the mean over seeds and its 95 % interval (Student's t), and
OUT/client-membership.svg.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from shoal.algorithms import FedAvg
from shoal.attacks import Candidates, ModelSpan, client_scores, cohort_coefficients
from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.core.atomic_files import write_bytes, write_text
from shoal.core.randomness import Stream
from shoal.data import Federation, Shards
from shoal.engine import Engine, Training
from shoal.metrics import mean_interval, roc_auc
from shoal.reports.plotting import cluster_style, figure_files
from shoal.simulation.play import move_to_engine
from shoal.simulation.simulation import Simulation

BASE = Path(__file__).resolve().parents[1] / "control" / "bar-base.toml"
SIZES = (1, 2, 5, 12, 25, 38, 50, 100, 200, 400)
ROUNDS = 20
LEAST_CANDIDATES = 50
"""Clients that take no part, at least: with one client in the sum one other says little."""


def simulation_of(clients: int, seed: int) -> Simulation:
    """Clients of one group; the smallest share that the configuration allows is of the other."""
    changes = [f"data.clients={clients}", f"seed={seed}", "evaluation.reference_federations=0"]
    changes += ["data.shadow_examples=100", "data.test_examples=500"]
    group = ["data.groups.minority.share=0.01", "data.groups.majority.share=0.99"]
    _, simulation = build(read_config(BASE, [*changes, *group]))
    return simulation


class Records:
    """Images of all candidates, and scores of each candidate by images of one kind."""

    def __init__(self, shards: Shards, engine: Engine) -> None:
        self.shards, self.engine, rows = shards, engine, shards.indices
        self.x, self.owner, self.label = shards.x[rows], shards.owners().numpy(), shards.y[rows].cpu().numpy()

    def by_loss(self, model: torch.Tensor) -> NDArray[np.float64]:
        """(C,), by the loss of one model (P,)."""
        return self._ranks(-self.engine.example_losses(model[None], self.shards)[:, 0].numpy())

    def by_span(self, models: Sequence[torch.Tensor]) -> NDArray[np.float64]:
        """(C,), by the span of the moves between models (P,)."""
        stacked = torch.stack([*models])[:, None]
        return self._ranks(ModelSpan().score(stacked, Candidates(self.x), self.engine).score[0])

    def _ranks(self, score: NDArray[np.float64]) -> NDArray[np.float64]:
        return client_scores(score, self.owner, self.label)[1]


def trained(
    simulation: Simulation, federation: Federation, engine: Engine, stream: Stream, participation: float = 1.0
) -> tuple[list[torch.Tensor], NDArray[np.bool_]]:
    """The model (P,) before the first and after each round, and who took part (T, N)."""
    training = Training(federation, FedAvg(), simulation.setup.local, engine, stream, participation=participation)
    state = training.start()
    models, cohorts = [state.models[0]], list[NDArray[np.bool_]]()
    for after, report in training.rounds(state, ROUNDS):
        models.append(after.models[0])
        cohorts.append(np.isin(np.arange(len(federation)), report.cohort.numpy()))
    return models, np.stack(cohorts)


def measured(size: int, seed: int) -> Iterator[dict]:
    """The AUC of each view and kind of images, for ``size`` clients in a sum."""
    count, stream = size + max(size, LEAST_CANDIDATES), Stream(seed)("client membership", size)
    simulation = simulation_of(max(100, count), seed)
    with Engine(simulation.setup.model, threads=1) as engine:
        federation = move_to_engine(simulation, engine).federation
        chosen = torch.from_numpy(stream("candidates").numpy().permutation(len(federation))[:count]).sort().values
        federation = federation.take(chosen)
        member = np.zeros(count, dtype=bool)
        member[stream("members").numpy().permutation(count)[:size]] = True
        models, _ = trained(
            simulation, federation.take(torch.from_numpy(np.flatnonzero(member))), engine, stream("all")
        )
        cohort_models, cohorts = None, None
        if size > 1:
            linked = federation.take(torch.arange(2 * size))
            cohort_models, cohorts = trained(simulation, linked, engine, stream("halves"), participation=0.5)
        for kind, shards in (("held", federation.clients), ("fresh", federation.holdout)):
            records = Records(shards, engine)
            scores = {
                "outsider, final model": records.by_loss(models[-1]),
                "sum, one round": records.by_span(models[:2]),
                "client, 5 rounds": records.by_span(models[:6]),
                "client, 20 rounds": records.by_span(models),
            }
            for view, score in scores.items():
                yield {"size": size, "seed": seed, "records": kind, "view": view, "auc": roc_auc(score, member)}
            if cohort_models is not None and cohorts is not None:
                asked = Records(shards.take(torch.arange(2 * size)), engine)
                evidence = np.stack([asked.by_span(cohort_models[t : t + 2]) for t in range(ROUNDS)])
                coefficients, own = cohort_coefficients(evidence, cohorts), np.eye(2 * size, dtype=bool)
                auc = roc_auc(coefficients.ravel(), own.ravel())
                yield {"size": size, "seed": seed, "records": kind, "view": "sums of known cohorts", "auc": auc}


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a size, kind of images and view: mean over seeds, with its interval within [0, 1]."""
    lines = []
    for (kind, view, size), mine in rows.groupby(["records", "view", "size"], sort=False):
        low, high = mean_interval(mine["auc"].to_numpy())
        values = {"auc": mine["auc"].mean(), "auc.low": max(0.0, low), "auc.high": min(1.0, high), "seeds": len(mine)}
        lines.append({"records": kind, "view": view, "size": size, **values})
    return pd.DataFrame(lines)


def draw(lines: pd.DataFrame, figure: Figure) -> None:
    """AUC by size, a line a view, of the images themselves."""
    axes = figure.subplots()
    held = lines[lines["records"] == "held"]
    for i, (view, mine) in enumerate(held.groupby("view", sort=False)):
        style = cluster_style(i)
        axes.plot(mine["size"], mine["auc"], color=style.color, marker=style.marker, label=view)
        axes.fill_between(mine["size"], mine["auc.low"], mine["auc.high"], color=style.color, alpha=0.15, linewidth=0)
    axes.axhline(0.5, color="0.5", linewidth=0.8)
    axes.set(xscale="log", xlabel="clients with 25 images in the sum", ylabel="AUC: did this client take part?")
    axes.set_xticks(SIZES, labels=[str(size) for size in SIZES])
    axes.set_xticks([], minor=True)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 0.12))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=[*SIZES])
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows, lines = [], pd.DataFrame()
    for size in given.sizes:
        for seed in given.seeds:
            rows += measured(size, seed)
            print(f"{size} clients, seed {seed}", flush=True)
        lines = summary(pd.DataFrame(rows))
        write_text(given.out / "client-membership.csv", lines.to_csv(index=False, float_format="%.4f"))
    alt = "AUC of five views against the number of clients in a sum, on a logarithmic axis."
    files = figure_files(alt, lambda figure: draw(lines, figure), (5.6, 3.4), name="client-membership")
    write_bytes(given.out / "client-membership.svg", files.svg)
    print(lines.to_string(index=False))


if __name__ == "__main__":
    main()
