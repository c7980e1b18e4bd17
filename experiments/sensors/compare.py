"""Compares what a server can know of its models' risk with what a simulator knows, on the same models.

    python experiments/sensors/compare.py OUT --seeds 0 1 2
    python experiments/sensors/compare.py OUT --seeds 3 4 --set data.examples_per_client=50
    python experiments/sensors/compare.py OUT --set evaluation.reference_federations=4

A run of base.toml for each seed; whenever its red team is due, every sensor judges the models of that round. Written:
OUT/runs/<settings>-seed-<n>.csv when a run has ended (one that is there is not run again), and from all of them
OUT/estimates.csv (a row a run, round, model and sensor), OUT/sensors.csv and OUT/sensors.md (a line a sensor). Seconds
mean little on a machine that does other work too.

With reference federations, trained after the last round, the last estimates are also judged by the strongest attack
that they make possible, on the same models; and OUT/factors.csv and .md give the ratio of that attack's advantage to
the advantage that a sensor sees.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

from shoal.attacks import Gap, LossThreshold, ShadowModels
from shoal.audit import RedTeam
from shoal.audit.audit import audit_records
from shoal.config.build import build
from shoal.config.schema import Config, read_config
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError
from shoal.data import Federation, Shards
from shoal.engine import Engine, State, Training
from shoal.replay.attack_inputs import records_of_run
from shoal.replay.reference_federations import AttackedRun
from shoal.simulation.play import initial_state, move_to_engine
from shoal.simulation.simulation import Simulation

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import fieller

BASE = Path(__file__).with_name("base.toml")
HOLDOUTS = (1, 5, 25)
"""Hold-out images a client for the histograms."""

REFERENCES = "reference federations"
"""Not a sensor, but the balanced accuracy of the strongest attack with reference federations, on the final models."""

TRUTHS = ("audit", "strongest", REFERENCES)
"""What sensors are judged by: the audit of the configured attack, of the strongest of several attacks without
reference federations, and the strongest attack with them.
"""

MODEL = ["run", "seed", "round", "cluster"]


def with_holdouts(federation: Federation, most: int) -> Federation:
    """The federation whose clients have their first hold-out examples only, ``most`` each."""
    held = federation.holdout
    kept = [held.indices_of(i)[:most] for i in range(len(held))]
    sizes = torch.tensor([len(each) for each in kept])
    return replace(federation, holdout=Shards.from_indices(held.x, held.y, torch.cat(kept), sizes))


def sensors_of(team: RedTeam) -> dict[str, tuple[RedTeam, int | None]]:
    """By name, a red team, and how many hold-out examples a client it may use (None: all)."""
    federated = replace(team, shadow_models=replace(team.shadow_models, training="federated"))
    pooled = replace(team, shadow_models=replace(team.shadow_models, training="pooled"))
    sensors: dict[str, tuple[RedTeam, int | None]] = {
        "shadow, pooled": (replace(pooled, estimator="shadow"), None),
        "shadow, federated": (replace(federated, estimator="shadow"), None),
        "federated": (replace(pooled, estimator="federated"), None),
        "federated, shadow models too": (replace(federated, estimator="federated"), None),
    }
    sensors |= {f"histogram, {most} hold-out": (replace(team, estimator="histogram"), most) for most in HOLDOUTS}
    audit = replace(pooled, estimator="audit")
    return sensors | {
        "audit": (audit, None),
        "audit, shadow models federated": (replace(federated, estimator="audit"), None),
        "audit, loss threshold": (replace(audit, attack=LossThreshold()), None),
        "audit, gap": (replace(audit, attack=Gap(), shadow_models=ShadowModels(number=1)), None),
    }


def estimates(team: RedTeam, state: State, training: Training) -> Iterator[dict]:
    """A row for each sensor and each model that has clients."""
    federation, engine = training.federation, training.engine
    local, stream = training.local_of_clusters(state), training.stream("sensors", state.round)
    for sensor, (each, most) in sensors_of(team).items():
        seen = federation if most is None else with_holdouts(federation, most)
        began = time.perf_counter()
        # One stream for all: the same shadow models, where they are trained in the same way.
        risks = each.estimate(state, seen, engine, local, stream).risks
        seconds = time.perf_counter() - began
        for k in state.assignment[state.assignment >= 0].unique().tolist():
            clients = int((state.assignment == k).sum())
            yield {
                "round": state.round, "cluster": k, "clients": clients, "sensor": sensor, "risk": float(risks[k]),
                "seconds": seconds,
            }  # fmt: skip


def by_references(simulation: Simulation, state: State, engine: Engine) -> Iterator[dict]:
    """A row for each model that is attacked after the last round: what the strongest attack finds.

    The simulation's algorithm heeds no risk, so that the reference federations need none of the run's.
    """
    began = time.perf_counter()
    attacked = AttackedRun.from_run(simulation, state, [], engine)
    trained = [attacked.train_reference(i, engine) for i in range(simulation.reference_federations)]
    records = records_of_run(attacked, attacked.scores(engine), trained, engine)
    audit = audit_records(records, attacked.stream("thresholds"))
    decides = audit.attacks[(audit.attacks["scope"] == "model") & audit.attacks["strongest"]]
    strongest = decides.set_index("name")["accuracy"]
    seconds = time.perf_counter() - began
    for name, accuracy in strongest.dropna().items():
        yield {
            "round": state.round, "cluster": int(str(name)), "clients": int((state.assignment == int(str(name))).sum()),
            "sensor": REFERENCES, "risk": accuracy, "seconds": seconds,
        }  # fmt: skip


def run(config: Config) -> pd.DataFrame:
    """The rows of one run."""
    rows = []
    _, simulation = build(config)
    with Engine(simulation.setup.model, threads=config.engine.threads) as engine:
        simulation = move_to_engine(simulation, engine)
        training = replace(simulation.on(engine), risk_estimator=None)
        state = initial_state(simulation, engine).state
        for after, _ in training.rounds(state, simulation.rounds):
            state = after
            if state.round % config.red_team.every == 0:
                rows += estimates(config.red_team, state, training)
                print(f"seed {config.seed}: round {state.round}", flush=True)
        if simulation.reference_federations:
            rows += by_references(simulation, state, engine)
    return pd.DataFrame(rows).assign(seed=config.seed)


def judged(rows: pd.DataFrame, truth: str) -> pd.DataFrame:
    """A line a sensor: how far from the truth, how well it ranks models, and what it costs.

    Args:
        rows: of all runs, with the columns of `MODEL`, sensor, risk and seconds.
        truth: one of `TRUTHS`.

    Returns:
        error: mean absolute; bias: mean difference; rank_correlation: Spearman's, over runs and clusters, the mean over
        rounds; safer_right: the share of runs and rounds with two models where the safer one is named rightly (a tie
        counts half); seconds: median of an estimate of all models of a round; models: how many risks were compared.
    """
    wide = rows.pivot_table(index=MODEL, columns="sensor", values="risk")
    audits = [name for name in wide if str(name).startswith("audit")]
    true = wide[audits].max(axis=1) if truth == "strongest" else wide[truth]
    lines = []
    for sensor in [each for each in dict.fromkeys(rows["sensor"]) if each != REFERENCES]:
        told = pd.DataFrame({"told": wide[sensor], "true": true}).dropna()
        ranks = [
            spearmanr(mine["told"], mine["true"]).statistic
            for _, mine in told.groupby("round")
            if mine["told"].nunique() > 1 and mine["true"].nunique() > 1
        ]
        right = []
        for _, mine in told.groupby(["run", "seed", "round"]):
            if len(mine) == 2 and mine["true"].nunique() == 2:
                signs = np.sign([mine[name].iloc[0] - mine[name].iloc[1] for name in ("told", "true")])
                right.append(0.5 + 0.5 * signs[0] * signs[1])
        error, seconds = told["told"] - told["true"], rows.loc[rows["sensor"] == sensor, "seconds"]
        lines.append({
            "truth": truth, "sensor": sensor, "error": error.abs().mean(), "bias": error.mean(),
            "rank_correlation": np.mean(ranks) if ranks else np.nan,
            "safer_right": np.mean(right) if right else np.nan, "seconds": seconds.median(), "models": len(told),
        })  # fmt: skip
    return pd.DataFrame(lines)


def factors(rows: pd.DataFrame) -> pd.DataFrame:
    """A line a sensor: how many times the advantage that it sees the strongest attack with reference federations has.

    Args:
        rows: as of `judged`, with those of `REFERENCES`.

    Returns:
        factor: mean of (true - 0.5) over mean of (told - 0.5), over seeds and models; low, high: its 95 % interval over
        seeds (`fieller`); NaN where the mean told cannot be told from 0.5, and so no factor can be excluded; error:
        mean absolute, of 0.5 + factor (told - 0.5) with the factor of the other seeds; seeds: how many.
    """
    wide = rows.pivot_table(index=MODEL, columns="sensor", values="risk").dropna(subset=REFERENCES)
    lines = []
    for sensor in [each for each in dict.fromkeys(rows["sensor"]) if each != REFERENCES]:
        pairs = wide[[REFERENCES, sensor]].dropna() - 0.5
        of_seeds = pairs.groupby("seed")
        # Sums, not means: a run in which only one model is left counts for one.
        true, told = of_seeds.sum().to_numpy().T
        low, high = fieller(true, told)
        errors = [
            (mine[REFERENCES] - mine[sensor] * (true.sum() - true[i]) / (told.sum() - told[i])).abs()
            for i, (_, mine) in enumerate(of_seeds)
        ]
        lines.append({
            "sensor": sensor, "factor": true.sum() / told.sum(), "low": low, "high": high,
            "error": pd.concat(errors).mean() if len(true) > 1 else np.nan, "seeds": len(true),
        })  # fmt: skip
    return pd.DataFrame(lines)


def table_of_factors(lines: pd.DataFrame) -> str:
    """The factors as Markdown."""
    heads = ["sensor", "factor", "95 % interval", "mean absolute error with the factor of the other seeds"]
    parts = [f"| {' | '.join(heads)} |", "|---|---:|---:|---:|"]
    for each in lines.itertuples():
        interval = "unbounded" if np.isnan(each.low) else f"{each.low:.1f} to {each.high:.1f}"
        parts.append(f"| {each.sensor} | {each.factor:.1f} | {interval} | {each.error:.3f} |")
    return "\n".join(parts) + "\n"


def table(lines: pd.DataFrame) -> str:
    """The judged sensors as Markdown, a table a truth."""
    heads = [
        "sensor",
        "mean absolute error",
        "bias",
        "rank correlation",
        "says rightly which model is safer",
        "seconds",
    ]
    parts = []
    for truth, mine in lines.groupby("truth", sort=False):
        parts += [f"\n**Against {truth}**\n", f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
        for each in mine.itertuples():
            figures = f"{each.error:.3f} | {each.bias:+.3f} | {each.rank_correlation:.2f} | {each.safer_right:.0%}"
            parts.append(f"| {each.sensor} | {figures} | {each.seconds:.2f} |")
    return "\n".join(parts) + "\n"


def compare(out: Path, seeds: Sequence[int], changes: Sequence[str], base: Path = BASE) -> pd.DataFrame:
    """Run what is not there yet, and judge all that is; the judged sensors."""
    folder = out / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        config = read_config(base, [*changes, f"seed={seed}"])
        # The seed apart, what is run; files of other settings stay beside it.
        settings = hashlib.sha256(replace(config, seed=0).toml().encode()).hexdigest()[:8]
        path = folder / f"{settings}-seed-{seed}.csv"
        if not path.exists():
            write_text(path, run(config).assign(run=settings).to_csv(index=False))
    # The settings may look like numbers.
    rows = pd.concat([pd.read_csv(path, dtype={"run": str}) for path in sorted(folder.glob("*.csv"))])
    known = [truth for truth in TRUTHS if truth != REFERENCES or (rows["sensor"] == REFERENCES).any()]
    lines = pd.concat([judged(rows, truth) for truth in known])
    if REFERENCES in known:
        of_sensors = factors(rows)
        write_text(out / "factors.csv", of_sensors.to_csv(index=False))
        write_text(out / "factors.md", table_of_factors(of_sensors))
    write_text(out / "estimates.csv", rows.to_csv(index=False))
    write_text(out / "sensors.csv", lines.to_csv(index=False))
    write_text(out / "sensors.md", table(lines))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    try:
        print(table(compare(given.out, given.seeds, given.changes)))
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
