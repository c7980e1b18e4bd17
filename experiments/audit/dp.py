"""Audits the epsilon of DP-SGD: what attackers prove by canaries, beside what the accountant promises.

    python experiments/audit/dp.py OUT
    python experiments/audit/dp.py OUT --set canaries.per_client=25

20 runs of dp-base.toml with DP-SGD as it is: noise for an epsilon of about 1, 2, 4, 8 and 16, full batches and Poisson
samples of half, two seeds. And 10 runs of a mechanism that is broken on purpose: this script lets every step draw a
tenth of the noise that the accountant is told. A run's file in OUT/runs is not computed again, so a killed audit goes
on. Written: OUT/dp.csv (a row a run) and OUT/dp.md.

What is compared. The accountant's (epsilon, delta) is about adding or removing one record (the sum of clipped gradients
moves by at most C, Opacus' accountants assume Poisson samples or the full batch), towards whoever sees all updates of a
client. A canary's fair coin decides just that: it is trained on with its wrong label, or it is in no training set at
all, neither with the right label. So `one_run_audit`, which assumes independent coins of adding or removing, bounds the
same epsilon from below; replacing a record would be another adjacency, with up to twice the sum's change. All rounds
count in both. With full batches a step divides by the client's number of examples, which the coins change: attackers
know that number here, as a server does, and the accountant's epsilon takes it for public.

Two attackers. "outsider": has the final model alone, and scores a canary by the logit of its wrong label, as
`canaries.epsilon_low` of a run does. "server": has the updates and knows all examples but the coins. In a round of one
step an update is linear in the coins, `-(learning rate / batch) * (sum of clipped gradients + noise)`, so it takes the
best linear estimate of them over all rounds, with the noise that it finds in the updates, not the one that it is told.

A bound holds with 95 % confidence each, so among 40 right ones two may be above a tight epsilon by chance. The
family-wise bounds hold all at once with 95 % (Bonferroni): one above epsilon means that the promise is broken.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor

from shoal.audit import one_run_audit
from shoal.audit.canary_audit import default_guesses, one_run_epsilon
from shoal.config.build import build
from shoal.config.schema import Config, read_config
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, require
from shoal.defenses import DPSGD
from shoal.engine import Engine, RoundUpdates
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.engine.backends.gradient_clipping import batch_of_gradients, example_gradients
from shoal.simulation.measure import measure_final
from shoal.simulation.play import initial_state, move_to_engine, run_rounds
from shoal.simulation.simulation import Simulation

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import table

BASE = Path(__file__).with_name("dp-base.toml")
NOISE = {
    "full": {1: 12.8, 2: 6.8, 4: 3.67, 8: 2.02, 16: 1.15},
    "poisson": {1: 6.72, 2: 3.72, 4: 2.14, 8: 1.29, 16: 0.81},
}
"""Noise multipliers by sampling and by the epsilon that 10 steps cost at a delta of 1e-5. With Poisson samples a batch
is
half of the client; smaller clients have larger rates, and a larger epsilon."""

BATCH = 38
"""Expected size of a Poisson sample: half of the 75 examples that a client trains on by expectation."""

SEEDS = (0, 1)
FRACTION = 0.1
"""How much of the noise that the accountant is told the broken mechanism draws."""

CONFIDENCE = 0.95
ATTACKERS = ("server", "outsider")
HONEST, BROKEN = "as told", "a tenth of what is told"


@dataclass(frozen=True)
class Case:
    """One audited run: the mechanism, how batches are drawn, the epsilon aimed at, and the seed."""

    mechanism: str
    sampling: str
    target: int
    seed: int

    def changes(self) -> list[str]:
        """Of the base configuration, as on the command line."""
        noise = f"defenses.dp_sgd.noise_multiplier={NOISE[self.sampling][self.target]}"
        batches = {
            "full": ['local.batch_size="all"', 'defenses.dp_sgd.sampling="shuffled"'],
            "poisson": [f"local.batch_size={BATCH}", 'defenses.dp_sgd.sampling="poisson"'],
        }
        return [f"seed={self.seed}", noise, *batches[self.sampling]]


CASES = tuple(
    Case(mechanism, sampling, target, seed)
    for mechanism, seeds in ((HONEST, SEEDS), (BROKEN, SEEDS[:1]))
    for sampling, noise in NOISE.items()
    for target in noise
    for seed in seeds
)

EXPECTED = sum(case.mechanism == HONEST for case in CASES)
FAMILY = 1 - (1 - CONFIDENCE) / (len(ATTACKERS) * EXPECTED)
"""The confidence of each bound with which all of the mechanism as told hold at once."""


@contextmanager
def too_little_noise(fraction: float = FRACTION) -> Iterator[None]:
    """Every private step draws this fraction of its noise; the accountant, who reads the settings, is told nothing."""
    right = BoundNetwork.private_step

    def wrong(
        self: BoundNetwork, x: Tensor, y: Tensor, expected: int, rule: DPSGD, noise: torch.Generator, copies: int = 1
    ) -> None:
        right(self, x, y, expected, replace(rule, noise_multiplier=fraction * rule.noise_multiplier), noise, copies)

    BoundNetwork.private_step = wrong
    try:
        yield
    finally:
        BoundNetwork.private_step = right


class CoinEstimates:
    """The server's attack on the canaries of one client: what its updates say of their coins, by least squares.

    Args:
        simulation: of rounds of one private step, with canaries.
        client: its id.

    Raises:
        InputError: more than one step a round.
    """

    def __init__(self, simulation: Simulation, client: int) -> None:
        canaries, shards = simulation.canaries, simulation.federation.clients
        self.local, self.rule = simulation.setup.local, simulation.setup.first_local().gradient_privacy
        position = simulation.federation.ids.tolist().index(client)
        self.own = torch.nonzero(canaries.client == client).flatten()
        self.size = len(owned := shards.indices_of(position))
        steps = self.local.steps_of(self.size)
        require(steps == 1, f"'local.steps' must be 1, for an update to be one noised sum; got {steps} steps a round")
        self.rate = self.local.batch(self.size) / self.size
        # Positions among the examples before any was left out.
        left_out = canaries.record[self.own][~canaries.member[self.own]]
        before = torch.arange(self.size + len(left_out))
        trained = before[~torch.isin(before, left_out)]
        known = owned[~torch.isin(trained, canaries.record[self.own])]
        self.x, self.y = (
            torch.cat([canaries.x[self.own], shards.x[known]]),
            torch.cat([canaries.y[self.own], shards.y[known]]),
        )
        self.seen: list[tuple[Tensor, Tensor, float, int]] = []

    def add(self, model: Tensor, update: Tensor, engine: Engine, number: int) -> None:
        """Take in a round's update (P,) of the client, from the model (P,) that it was sent in round ``number``."""
        gradients = self._clipped(engine, model)
        shown = -update[: gradients.shape[1]] * self.local.batch(self.size) / self.local.at_round(number).learning_rate
        left = shown - self.rate * gradients[len(self.own) :].sum(dim=0)
        power = float(left.double().square().sum()), left.numel()
        self.seen.append(((gradients @ gradients.T).double(), (gradients @ left).double(), *power))

    def scores(self) -> Tensor:
        """Estimate the membership bits (m,) float64 of the canaries.

        The best linear estimates if noise is N(0, s^2) in each coordinate, a bit has the mean 1/2 and the variance 1/4,
        and an example with bit 1 is in a batch with probability ``rate``.
        """
        count, examples = len(self.own), len(self.y)
        # What no batch explains is noise, however much the client says that it adds. At least a little, since gradients
        # may be alike.
        unexplained = sum(
            power - float(moment @ torch.linalg.pinv(gram) @ moment) for gram, moment, power, _ in self.seen
        )
        variance = max(unexplained / sum(max(1, numbers - examples) for *_, numbers in self.seen), 1e-6)
        chance = torch.where(torch.arange(examples) < count, 0.5, 1.0).double() * self.rate * (1 - self.rate)
        one = torch.eye(examples, dtype=torch.float64)
        system, right = 4 * torch.eye(count, dtype=torch.float64), torch.full((count,), 2.0, dtype=torch.float64)
        for gram, moment, *_ in self.seen:
            # By the inverse of the covariance of an update, from chance and noise, in the span of the gradients.
            within = torch.linalg.solve(variance * one + chance[:, None] * gram, torch.diag(chance))
            weight = (one - gram @ within)[:count] / variance
            system += self.rate**2 * (weight @ gram)[:, :count]
            right += self.rate * weight @ moment
        return torch.linalg.solve(system, right)

    def _clipped(self, engine: Engine, model: Tensor) -> Tensor:
        """(B, p), the clipped gradients at a model of the canaries, and after them of what else is trained on."""
        network, some = engine.model.network().eval(), batch_of_gradients(engine.model)
        batches = zip(self.x.split(some), self.y.split(some), strict=True)
        gradients = torch.cat([example_gradients(engine.model, network, model, x, y) for x, y in batches])
        return gradients * (self.rule.max_grad_norm / gradients.norm(dim=1, keepdim=True)).clamp(max=1)


def server_scores(rounds: Sequence[RoundUpdates], simulation: Simulation, engine: Engine) -> NDArray[np.float64]:
    """(M,) the server's estimates of all canaries' coins, in their order."""
    scores = torch.full((len(simulation.canaries),), torch.nan, dtype=torch.float64)
    for client in simulation.canaries.client.unique().tolist():
        estimates = CoinEstimates(simulation, client)
        for each in rounds:
            for i in torch.nonzero(each.clients == client).flatten().tolist():
                estimates.add(each.models[each.assignment[i]], each.updates[i], engine, each.round)
        scores[estimates.own] = estimates.scores()
    return scores.numpy()


def audited(case: Case, config: Config) -> dict[str, Any]:
    """The row of a run: what each attacker proves, and the largest that could have been proved."""
    _, simulation = build(config)
    simulation, rounds = replace(simulation, record_updates=1), []
    with Engine(simulation.setup.model, threads=config.engine.threads, backend="loop") as engine:
        simulation = move_to_engine(simulation, engine)
        now = initial_state(simulation, engine)
        with too_little_noise() if case.mechanism == BROKEN else nullcontext():
            for after, report in run_rounds(simulation, engine, now):
                now = after
                rounds.append(report.updates)
        outcome = measure_final(simulation, engine, now)
        scores = {"server": server_scores(rounds, simulation, engine)}
    scores["outsider"] = outcome.canaries["score"].to_numpy()
    included, rule = simulation.canaries.member.numpy(), simulation.setup.first_local().gradient_privacy
    of_canaries = outcome.clients["client"].isin(simulation.canaries.client.tolist())
    row = {
        **vars(case), "noise_multiplier": rule.noise_multiplier, "delta": rule.delta,
        "epsilon": float(outcome.clients.loc[of_canaries, "epsilon"].max()),
        "canaries": len(included), "largest": largest(len(included), rule.delta),
    }  # fmt: skip
    for attacker, score in scores.items():
        row[f"{attacker}.auc"] = roc_auc_score(included, score)
        for name, confidence in (("low", CONFIDENCE), ("family_low", FAMILY)):
            row[f"{attacker}.{name}"] = one_run_audit(score, included, delta=rule.delta, confidence=confidence).epsilon
    return row


def largest(canaries: int, delta: float) -> float:
    """The bound of an attacker who makes no mistake, at `CONFIDENCE`: no audit of so many canaries can prove more."""
    choices = default_guesses(canaries)
    level = 1 - (1 - CONFIDENCE) / len(choices)
    return max(one_run_epsilon(canaries, high + low, high + low, delta, level) for high, low in choices)


def report(rows: pd.DataFrame) -> str:
    """Both tables, and what they say, as Markdown."""
    parts = []
    for mechanism, mine in rows.groupby("mechanism", sort=False):
        lines = [
            [
                each["sampling"], str(each["seed"]), f"{each['noise_multiplier']:g}", f"{each['epsilon']:.2f}",
                *(f"{each[f'{name}.{figure}']:.2f}" for name in ATTACKERS for figure in ("low", "family_low", "auc")),
            ]
            for each in mine.sort_values(["sampling", "target", "seed"]).to_dict("records")
        ]  # fmt: skip
        figures = [f"{name}: {figure}" for name in ATTACKERS for figure in ("proved", "family-wise", "AUC")]
        heads = ["batches", "seed", "noise multiplier", "epsilon promised", *figures]
        parts += [table(f"Noise: {mechanism}", heads, lines), said(mine)]
    canaries = " or ".join(map(str, rows["canaries"].unique()))
    most = rows["largest"].max()
    parts.append(
        f"\n{canaries} canaries a run. An attacker without a mistake proves {most:.2f}, so no promise of more can be "
        "seen to be broken with so many. Proved: with 95 % confidence each; family-wise: with 95 % of all bounds of "
        f"the {EXPECTED} runs as told at once. AUC: of the scores, canaries trained on against those left out.\n"
    )
    return "\n".join(parts)


def said(rows: pd.DataFrame) -> str:
    """How many promises of one mechanism the bounds break, in words."""
    broken = {
        figure: rows[[f"{name}.{figure}" for name in ATTACKERS]].max(axis=1) > rows["epsilon"]
        for figure in ("low", "family_low")
    }
    caught = rows.loc[broken["low"], "epsilon"]
    most = f"; the largest of these promises is {caught.max():.2f}" if len(caught) else ""
    return (
        f"\nA bound is above the epsilon promised in {broken['low'].sum()} of {len(rows)} runs (family-wise: "
        f"{broken['family_low'].sum()}){most}."
    )


def audit(out: Path, cases: Sequence[Case] = CASES, changes: Sequence[str] = (), base: Path = BASE) -> pd.DataFrame:
    """Audit what is not there yet, and write the tables of these cases; a row a case."""
    folder, rows = out / "runs", []
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        config = read_config(base, [*case.changes(), *changes])
        key = hashlib.sha256(f"{case.mechanism}\n{config.toml()}".encode()).hexdigest()[:12]
        path = folder / f"{key}.csv"
        if not path.exists():
            write_text(path, pd.DataFrame([audited(case, config)]).to_csv(index=False))
        rows.append(pd.read_csv(path))
        shown = rows[-1].iloc[0]
        print(f"{case}: epsilon {shown['epsilon']:.2f}, server proves {shown['server.low']:.2f}", flush=True)
    joined = pd.concat(rows, ignore_index=True)
    write_text(out / "dp.csv", joined.to_csv(index=False))
    write_text(out / "dp.md", report(joined))
    return joined


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the tables are written")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    try:
        print(report(audit(given.out, changes=given.changes)))
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
