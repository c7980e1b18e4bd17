"""What a property attack costs, by rounds and by clients: seconds of training, choosing and attacking, task A small.

python benchmarks/property.py [REPEATS]
"""

import statistics
import sys
from dataclasses import replace
from pathlib import Path

from shoal.config.build import build
from shoal.config.schema import Config, read_config
from shoal.engine import Engine
from shoal.simulation.play import initial_state, move_to_engine, run_rounds

FOLDER = Path(__file__).resolve().parents[1] / "experiments/property"
BASE = FOLDER / "small/base.toml"
ROUNDS, CLIENTS = (10, 20, 40), (5, 10, 20)
PARTS = ("train", "choose", "property_attack")


def main() -> None:
    """Print a Markdown row for each algorithm, number of clients and of rounds: medians in seconds of one thread."""
    sys.path.insert(0, str(FOLDER))  # where the source of the faces is
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    cases = [(10, rounds) for rounds in ROUNDS] + [(clients, 20) for clients in CLIENTS if clients != 10]
    print("| algorithm | clients | rounds | train | choose | attack | all |\n|---|---:|---:|---:|---:|---:|---:|")
    for algorithm in ("fedavg", "ifca"):
        for clients, rounds in cases:
            each = 3_000 // clients
            changes = [f"algorithm.name={algorithm}", f"data.clients={clients}", f"data.examples_per_client={each}"]
            # From the first round on, so that a short training is attacked at all.
            changes += ["property_attack.warm_up=0", "property_attack.simulate_every=2"]
            config = read_config(
                BASE, [*changes, f"algorithm.rounds={rounds}", "evaluation.every=1000", "engine.threads=1"]
            )
            spent = [seconds(config) for _ in range(repeats)]
            medians = [statistics.median(parts) for parts in zip(*spent, strict=True)]
            name = "FL" if algorithm == "fedavg" else "CFL"
            print(f"| {name} | {clients} | {rounds} | {' | '.join(f'{value:.2f}' for value in medians)} |", flush=True)


def seconds(config: Config) -> list[float]:
    """Wall time of each part and of all rounds, after two rounds to warm up."""
    decided, simulation = build(config)
    with Engine(simulation.setup.model, threads=decided.engine.threads) as engine:
        ready = move_to_engine(replace(simulation, rounds=simulation.rounds + 2), engine)
        rounds = run_rounds(ready, engine, initial_state(ready, engine))
        warm = [next(rounds)[0] for _ in range(2)][-1].seconds
        *_, (last, _) = rounds
    return [last.seconds[part] - warm[part] for part in (*PARTS, "total")]


if __name__ == "__main__":
    main()
