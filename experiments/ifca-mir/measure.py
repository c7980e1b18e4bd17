"""Measures finished runs again with today's code, from their models, and prints what changed.

    python experiments/ifca-mir/measure.py OUT RUN...

Each run's summary, with the new figures, goes to OUT/<run>/summary.json; the run itself is left as it is.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from shoal import Engine, read_config
from shoal.config.build import build
from shoal.core.atomic_files import write_text
from shoal.engine import State
from shoal.metrics.summary import flatten
from shoal.simulation.measure import measure_models
from shoal.simulation.play import move_to_engine


def again(run: Path) -> dict:
    """The run's summary with every figure of the final models measured anew."""
    before = json.loads((run / "summary.json").read_text())
    config, simulation = build(read_config(run / "config.toml"))
    named = load_file(run / "models.safetensors")
    layout, clusters = simulation.setup.model.layout, len({name.partition(".")[0] for name in named})
    rows = [layout.pack({slot.name: named[f"{k}.{slot.name}"] for slot in layout.slots}) for k in range(clusters)]
    risks = torch.tensor([before[f"clusters.{k}.risk"] for k in range(clusters)], dtype=torch.float64)
    state = State(before["rounds"], torch.stack(rows), risks, torch.full((config.data.partition.clients,), -1))
    with Engine(simulation.setup.model, threads=config.engine.threads) as engine:
        simulation = move_to_engine(simulation, engine)
        result = measure_models(simulation, simulation.on(engine), state, [])
    return before | flatten(result.summary)


def main() -> None:
    out, runs = Path(sys.argv[1]), map(Path, sys.argv[2:])
    for run in runs:
        summary = again(run)
        (out / run.name).mkdir(parents=True, exist_ok=True)
        write_text(out / run.name / "summary.json", json.dumps(summary, indent=2) + "\n")
        before = json.loads((run / "summary.json").read_text())
        moved = {key: (before[key], summary[key]) for key in before if before[key] != summary[key]}
        print(f"{run.name}: " + "; ".join(f"{key} {old} -> {new}" for key, (old, new) in moved.items()), flush=True)


if __name__ == "__main__":
    main()
