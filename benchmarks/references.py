"""What reference federations cost, in processor seconds: beside a run's bare training, and beside the whole run.

    python benchmarks/references.py [CONFIG.toml] [KEY=VALUE ...] [--references 16]

Bare training is the run's rounds without a red team and without evaluations. The whole run is from the configuration to
what `shoal run` measures at the end, without its files.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

from shoal.config.build import build
from shoal.config.schema import Config, read_config
from shoal.replay.reference_federations import AttackedRun
from shoal.simulation.simulation import initial_state, measure_final, move_to_engine, run_rounds

DEMO = Path(__file__).parents[1] / "experiments" / "demo" / "digits.toml"


def measured(config: Config, references: int) -> str:
    """A Markdown row: parameters, and the seconds of each part."""
    began = time.process_time()
    decided, simulation = build(config)
    with decided.engine.engine(simulation.setup.model) as engine:
        simulation = move_to_engine(simulation, engine)
        *_, (now, _) = run_rounds(simulation, engine, initial_state(simulation, engine))
        measure_final(simulation, engine, now)
        run = time.process_time() - began
        attacked = AttackedRun.from_run(simulation, now.state, now.rows, engine)
        began = time.process_time()
        for number in range(references):
            attacked.train_reference(number, engine)
        trained = time.process_time() - began
        bare = replace(simulation.on(engine), risk_estimator=attacked.risks, coordinator=attacked.directives)
        began = time.process_time()
        for _ in bare.rounds(initial_state(simulation, engine).state, simulation.rounds):
            pass
        training = time.process_time() - began
    shares = f"{trained / training / references:.2f} | {trained / run:.2f}"
    parameters = simulation.setup.model.parameters
    return f"| {parameters:,} | {training:.2f} | {run:.2f} | {trained:.2f} | {shares} |"


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, nargs="?", default=DEMO)
    parser.add_argument("changes", nargs="*")
    parser.add_argument("--references", type=int, default=16)
    given = parser.parse_args()
    print(
        f"| parameters | bare training | whole run | {given.references} references | a reference / bare | all / run |"
    )
    print("|---:|---:|---:|---:|---:|---:|")
    print(measured(read_config(given.config, given.changes), given.references))


if __name__ == "__main__":
    main()
