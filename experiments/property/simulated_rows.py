"""Why an attacker that simulates in every round is not better: how many updates its forest learns from, or which?

    python experiments/property/simulated_rows.py OUT.csv [SEEDS]

Each seed trains one federation (small/simulations.toml) whose attacker simulates in every round, and classifies its
updates by forests that learn from all simulated updates; from as many as every tenth round has, drawn from all rounds;
and from those of every tenth round, beginning with the first that is attacked (as the sweep does), the second and so
on. A seed's rows are written when it is done; a file that is there goes on.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from shoal.config.build import build
from shoal.core.atomic_files import write_text
from shoal.core.randomness import Stream
from shoal.property import PropertyAttack, RoundObservation
from shoal.property.update_table import property_summary, updates_table
from shoal.simulation.play import initial_state, move_to_engine, run_rounds
from shoal.sweeps import read_sweep

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import differences, spread, table

SWEEP = Path(__file__).parent / "small/simulations.toml"
PERIOD = 10
AFTER = ("every tenth from 1", "every tenth from 6")
"""Those that simulate right after a round in which the victim trained on the property, which is every fifth."""
FIGURES = ("property.auc_counterfactual", "property.auc_rounds", "property.auc_within")


def learning_from(observation: RoundObservation, rows: torch.Tensor) -> RoundObservation:
    """The observation with those of its simulated updates that ``rows`` (S,) says."""
    return replace(
        observation,
        simulated_features=observation.simulated_features[rows],
        simulated_has_property=observation.simulated_has_property[rows],
        simulated_clusters=observation.simulated_clusters[rows],
    )


def subsets(observations: Sequence[RoundObservation], stream: Stream) -> dict[str, list[RoundObservation]]:
    """The observations by what the forest learns from."""
    counts = [len(each.simulated_clusters) for each in observations]
    first, total = next(i for i, count in enumerate(counts) if count), sum(counts)
    chosen = torch.zeros(total, dtype=torch.bool)
    chosen[torch.randperm(total, generator=stream.generator())[: total // PERIOD]] = True
    parts = {
        "every round": [torch.ones(count, dtype=torch.bool) for count in counts],
        "as many, of all rounds": list(chosen.split(counts)),
    }
    for begin in range(PERIOD):
        used = [(i - first) % PERIOD == begin for i in range(len(counts))]
        parts[f"every tenth from {begin + 1}"] = [
            torch.full((count,), use) for count, use in zip(counts, used, strict=True)
        ]
    return {
        name: [learning_from(each, some) for each, some in zip(observations, rows, strict=True)]
        for name, rows in parts.items()
    }


def rows_of(seed: int) -> list[dict[str, object]]:
    """A row for each subset."""
    given = next(run.config for run in read_sweep(SWEEP).runs if run.settings["property_attack.simulate_every"] == 1)
    config, simulation = build(replace(given, seed=seed))
    observations = list[RoundObservation]()
    with config.engine.engine(simulation.setup.model) as engine:
        simulation = move_to_engine(simulation, engine)
        for now, _ in run_rounds(simulation, engine, initial_state(simulation, engine)):
            assert now.observation is not None
            observations.append(RoundObservation(round=now.state.round, **now.observation))
    attack = simulation.round_attack
    assert isinstance(attack, PropertyAttack)
    rows = []
    # The stream of `measure_final`, so that the figures are those of a run.
    stream = Stream(seed)("final")("property attack")
    for name, some in subsets(observations, Stream(seed)("subset")).items():
        updates = updates_table(some, stream, forests=attack.forests, trees=attack.trees, maps=False)
        found = property_summary(updates).overall
        learned = sum(len(each.simulated_clusters) for each in some)
        rows.append({"learns from": name, "seed": seed, "updates": learned, **{key: found[key] for key in FIGURES}})
    return rows


def main() -> None:
    """Run what is missing, and print the table."""
    out, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10
    done = pd.read_csv(out) if out.exists() else pd.DataFrame({"seed": []})
    for seed in sorted(set(range(count)) - set(done["seed"])):
        done = pd.concat([done, pd.DataFrame(rows_of(seed))]) if len(done) else pd.DataFrame(rows_of(seed))
        write_text(out, done.to_csv(index=False))
        print(f"seed {seed} is done", flush=True)
    of_figure = {key: done.pivot_table(index="seed", columns="learns from", values=key, sort=False) for key in FIGURES}
    for by in of_figure.values():
        tenths = [name for name in by if name.startswith("every tenth")]
        by["right after the property"] = by[list(AFTER)].mean(axis=1)
        by["in other phases"] = by[[name for name in tenths if name not in AFTER]].mean(axis=1)
    first = of_figure[FIGURES[0]]
    learned = done.groupby("learns from")["updates"].mean()
    lines = [
        [str(name), f"{learned.get(name, learned[AFTER[0]]):,.0f}", *(spread(by[name]) for by in of_figure.values())]
        + (differences(first[name] - first["every round"])[:2] if name != "every round" else ["", ""])
        for name in first
    ]
    heads = ("learns from", "updates", *FIGURES, "against every round", "95 % interval")
    print(table(f"{len(first)} seeds", heads, lines))
    apart = differences(first["right after the property"] - first["in other phases"])
    print(f"\nright after the property, less other phases: {', '.join(apart)}")


if __name__ == "__main__":
    main()
