"""Audits the epsilon of noise in the sum by canaries: 20 runs as they are, 10 with a quarter of the noise.

    python experiments/protection/canaries.py OUT [--per-client 20] [--components 600]

Each run is `protected` of bar.toml on components of pixels, which take less time than those of wavelets, with as many
`min_clients` as there are clients, so that sums have no more noise than is stated. Half of a client's canaries, by fair
coins, are trained on with a wrong label. The more components, the less canaries hide each other. Two attackers guess
the coins. "outsider": by the logit of the wrong label in the final model. "client": has the models of all rounds and
knows every example but the coins, and takes the best linear estimate of these from the moves, each of them one
noised sum of clipped gradients; so it has more than a client, and no update of any. A run's file in OUT is not computed
again. Written: OUT/canaries.csv (a row a run); printed: how many bounds are above the epsilon stated. Bounds hold with
95 % confidence each.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pandas as pd
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from shoal.audit import one_run_audit
from shoal.config.build import build
from shoal.config.schema import Config, parse_config
from shoal.core.atomic_files import write_text
from shoal.defenses.dp_sgd import NoiseShare
from shoal.engine import Engine
from shoal.engine.backends.gradient_clipping import example_gradients
from shoal.simulation.measure import measure_final
from shoal.simulation.play import initial_state, move_to_engine, run_rounds
from shoal.simulation.simulation import Simulation
from shoal.sweeps import read_sweep

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "audit"))
from dp import largest

BAR = Path(__file__).with_name("bar.toml")
FRACTION = 0.25
RUNS = [*((FRACTION, seed) for seed in range(10)), *((1.0, seed) for seed in range(20))]
"""Shares of the noise that the accountant is told, and seeds."""


@contextmanager
def share_of_noise(fraction: float) -> Iterator[None]:
    """Every client adds this fraction of its share of the noise; the accountant reads the settings, and is not told."""
    right = NoiseShare.noise_multiplier
    NoiseShare.noise_multiplier = property(lambda self: fraction * right.fget(self))  # pyright: ignore
    try:
        yield
    finally:
        NoiseShare.noise_multiplier = right


class CoinsOfSums:
    """Least-squares estimates of all clients' membership bits from the moves of one model.

    A move is ``-(learning rate / n) (sum of clipped gradients + noise)`` over the n examples of all clients; all but
    the canaries are known. The estimates are the best linear ones if a bit has the mean 1/2 and the variance 1/4, and
    the noise has the variance that the moves leave unexplained.
    """

    def __init__(self, simulation: Simulation) -> None:
        canaries, shards = simulation.canaries, simulation.federation.clients
        self.local, self.limit = simulation.setup.local, simulation.setup.first_local().gradient_privacy.max_grad_norm
        known = shards.indices[~torch.isin(shards.indices, trained_canaries(simulation))]
        self.x, self.y = torch.cat([canaries.x, shards.x[known]]), torch.cat([canaries.y, shards.y[known]])
        self.count, self.size = len(canaries), len(shards.indices)
        self.grams, self.moments, self.unexplained, self.freedom = 0.0, 0.0, 0.0, 0

    def add(self, model: Tensor, move: Tensor, engine: Engine, number: int) -> None:
        """Take in the move (P,) of round ``number`` from the model (P,)."""
        gradients = example_gradients(engine.model, engine.model.network().eval(), model, self.x, self.y)
        gradients = gradients * (self.limit / gradients.norm(dim=1, keepdim=True)).clamp(max=1)
        own = gradients[: self.count]
        noised = -move * self.size / self.local.at_round(number).learning_rate
        left = noised.double() - gradients[self.count :].double().sum(dim=0)
        gram, moment = (own @ own.T).double(), (own @ left.float()).double()
        explained = moment @ torch.linalg.solve(gram + 1e-6 * torch.eye(self.count), moment)
        self.grams, self.moments = self.grams + gram, self.moments + moment
        self.unexplained += float(left @ left - explained)
        self.freedom += left.numel() - self.count

    def scores(self) -> Tensor:
        """(M,) float64: the estimates of the coins."""
        variance = self.unexplained / self.freedom
        system = 4 * torch.eye(self.count, dtype=torch.float64) + self.grams / variance
        return torch.linalg.solve(system, 2 + self.moments / variance)


def trained_canaries(simulation: Simulation) -> Tensor:
    """The rows of the clients' examples that are canaries trained on."""
    canaries, federation = simulation.canaries, simulation.federation
    rows = []
    for position, client in enumerate(federation.ids.tolist()):
        own = canaries.client == client
        records, member = canaries.record[own], canaries.member[own]
        owned, left_out = federation.clients.indices_of(position), records[~member]
        before = torch.arange(len(owned) + len(left_out))
        rows.append(owned[torch.isin(before[~torch.isin(before, left_out)], records[member])])
    return torch.cat(rows)


def audited(config: Config, fraction: float) -> dict[str, float]:
    """The row of a run."""
    _, simulation = build(config)
    with Engine(simulation.setup.model, threads=1, backend="loop") as engine:
        simulation = move_to_engine(simulation, engine)
        now, estimates = initial_state(simulation, engine), CoinsOfSums(simulation)
        with nullcontext() if fraction == 1 else share_of_noise(fraction):
            for after, _ in run_rounds(simulation, engine, now):
                before, moved = now.state.models[0], after.state.models[0]
                estimates.add(before, moved - before, engine, after.state.round)
                now = after
        outcome = measure_final(simulation, engine, now)
        scores = {"client": estimates.scores().numpy(), "outsider": outcome.canaries["score"].to_numpy()}
    included, delta = simulation.canaries.member.numpy(), 1e-5
    overall = outcome.summary.overall
    row = {"share of the noise": fraction, "seed": config.seed, "canaries": len(included)}
    row |= {key: overall[key] for key in ("epsilon", "epsilon.outsider", "accuracy.overall")}
    for name, score in scores.items():
        row[f"{name}.auc"] = roc_auc_score(included, score)
        row[f"{name}.low"] = one_run_audit(score, included, delta=delta).epsilon
    return row | {"largest": largest(len(included), delta)}


def config_of(seed: int, per_client: int, components: int) -> Config:
    """`protected` of the bar with canaries, on components of pixels, with no more noise than is stated."""
    (case,) = [run for run in read_sweep(BAR).runs if run.settings["setting"] == "protected" and run.seed == 0]
    table = case.config.table() | {"seed": seed}
    table["evaluation"]["reference_federations"] = 0
    table["red_team"]["attack"] = "gap"
    table["defenses"]["dp_sgd"]["min_clients"] = table["data"]["clients"]
    table["model"]["features"] = {"maps": ["pca"], "dimension": components}
    return parse_config(table | {"canaries": {"per_client": per_client}}, "bar.toml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--per-client", type=int, default=20)
    parser.add_argument("--components", type=int, default=600)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for fraction, seed in RUNS:
        path = given.out / f"{fraction:g}-{seed}-{given.per_client}-{given.components}.csv"
        if not path.exists():
            row = audited(config_of(seed, given.per_client, given.components), fraction)
            write_text(path, pd.DataFrame([row]).round(4).to_csv(index=False))
        rows.append(pd.read_csv(path))
        print(rows[-1].iloc[0].to_dict(), flush=True)
    runs = pd.concat(rows, ignore_index=True)
    write_text(given.out / "canaries.csv", runs.to_csv(index=False))
    for fraction, some in runs.groupby("share of the noise"):
        above = {name: int((some[f"{name}.low"] > some["epsilon"]).sum()) for name in ("client", "outsider")}
        print(f"{fraction:g} of the noise: a bound above the epsilon stated in {above} of {len(some)} runs")


if __name__ == "__main__":
    main()
