"""Clients' own estimates of risk beside the server's, and beside what an attacker with full knowledge finds.

    python experiments/federation/own_risks.py --seeds 0 1 2

One federation is simulated; after its last round each client estimates the risk of its model from its own examples
(`risk = "client"`), the server by shadow models, and the audit by all clients' members and as many test examples.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from shoal.attacks.queries.loss_histograms import own_risks
from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.simulation.play import initial_state, move_to_engine, run_rounds


def compared(config: Path, changes: list[str]) -> pd.DataFrame:
    """A row for each model: how many clients have it, and the estimates of its risk."""
    decided, simulation = build(read_config(config, changes))
    with decided.engine.engine(simulation.setup.model) as engine:
        simulation = move_to_engine(simulation, engine)
        (*_, (now, _)) = run_rounds(simulation, engine, initial_state(simulation, engine))
        training, state = simulation.on(engine), now.state
        federation, local = training.federation, training.local_of_clusters(state)
        stream = training.stream("compared")
        server = simulation.red_team.estimate(state, federation, engine, local, stream).risks
        all_knowing = replace(simulation.red_team, estimator="audit")
        audit = all_knowing.estimate(state, federation, engine, local, stream).risks
        rows = []
        for k in range(len(state.models)):
            users = torch.nonzero(state.assignment == k).flatten().tolist()
            alone = [federation.take(torch.tensor([i])) for i in users]
            own = [float(own_risks(state.models[[k]], each.clients, each.holdout, engine)) for each in alone]
            spread = pd.Series(own, dtype=float)
            rows.append(
                {
                    "seed": decided.seed, "model": k, "clients": len(users), "own, mean": spread.mean(),
                    "own, deviation": spread.std(), "server": float(server[k]), "audit": float(audit[k]),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("experiments/demo/digits.toml"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    changes = ["data.clients=20", "data.examples_per_client=30", "data.holdout_examples=15", "data.shadow_examples=300"]
    tables = [compared(given.config, [*changes, "data.test_examples=390", f"seed={seed}"]) for seed in given.seeds]
    print(pd.concat(tables).to_markdown(index=False, floatfmt=".3f"))
