"""What a model for each of N clients costs: peak memory, time and bytes written, per round and checkpoint.

Clients of 10 random images (8 x 8) train an MLP of 50,185 parameters; 1 % of them take part in a round, and there is a
checkpoint after each. Before that each client's row is made another than all others', as after many rounds. After the
last round every client's model is evaluated on the client's own examples, and then measured as at the end of a run: all
membership attacks on all models, on their members and on all test examples. Each row is measured in a process of its
own, since memory that a process once had counts for its peak.

    python benchmarks/personal_models.py [--clients 1000 10000] [--algorithms local mr-mtl] [--test-examples 2000]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from machine import commit, processor

from shoal import Engine, Federation, LocalSGD, RedTeam, Shape, Simulation, create_model
from shoal.algorithms import ALGORITHMS as NAMED_ALGORITHMS
from shoal.engine import ClientVectors
from shoal.runs.checkpoint import save_checkpoint
from shoal.simulation.measure import measure_models
from shoal.simulation.play import SimulationState

NAMED = {kind().name: kind() for kind in NAMED_ALGORITHMS.values()}
SHAPE = Shape(1, 8, 8, 10)
MIB = 1024**2


def federation(clients: int, test_examples: int, examples: int = 10) -> Federation:
    """Clients with random images, and as many for the shadow models of the attacks as there are test examples."""
    draw = torch.Generator().manual_seed(0)

    def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(count, 1, 8, 8, generator=draw), torch.arange(count) % SHAPE.classes

    own = [images(examples) for _ in range(clients)]
    return Federation.from_tensors(own, test=images(test_examples), shadow=images(test_examples))


def peak() -> float:
    """The most memory that this process has had so far, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def written() -> float:
    """What this process has given to the operating system to write so far, in MiB."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar")) / MIB


def with_own_rows(rows: ClientVectors) -> ClientVectors:
    """Change each of ``rows`` a little, so that no two clients share one."""
    for some in torch.arange(len(rows)).split(64):
        rows = rows.add_rows(some, torch.full((len(some), rows.shape[1]), 1e-6))
    return rows


def measured(algorithm: str, clients: int, rounds: int, test_examples: int) -> dict[str, Any]:
    """Medians over the rounds after the first, and peaks of all."""
    seconds: dict[str, list[float]] = {"round": [], "checkpoint": [], "written": []}
    model = create_model("mlp", SHAPE, hidden=669)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, Engine(model) as engine:
        data, path = engine.prepare(federation(clients, test_examples)), Path(folder)
        before, team = peak(), RedTeam(every=0)
        asked = {"participation": 0.01, "red_team": team, "member_rounds": rounds + 1}
        simulation = Simulation(data, model, NAMED[algorithm], LocalSGD(epochs=2), rounds + 1, **asked)
        run = simulation.on(engine)
        state = run.start()
        state = replace(state, personal={name: with_own_rows(rows) for name, rows in state.personal.items()})
        for _ in range(rounds + 1):
            bytes_before, began = written(), time.perf_counter()
            state, _ = run.round(state)
            trained = time.perf_counter()
            save_checkpoint(path, SimulationState(state))
            seconds["round"].append(trained - began)
            seconds["checkpoint"].append(time.perf_counter() - trained)
            seconds["written"].append(written() - bytes_before)
        at_rounds, began = peak(), time.perf_counter()
        run.deployed_models(state)
        medians = {name: statistics.median(each[1:]) for name, each in seconds.items()}
        found = medians | {"data": before, "rounds": at_rounds, "end": peak(), "ending": time.perf_counter() - began}
        began = time.process_time()
        measure_models(simulation, run, state, [])
        return found | {"attacks": peak(), "attacking": time.process_time() - began}


def main() -> None:
    """Measure, each row in a process of its own, and print the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--clients", type=int, nargs="+", default=[1000, 10_000])
    options.add_argument("--algorithms", nargs="+", default=["local", "mr-mtl", "ditto", "apfl"], choices=NAMED)
    options.add_argument("--rounds", type=int, default=4, help="rounds counted, after one for warming up")
    options.add_argument("--test-examples", type=int, default=2000, help="on which all models are attacked at the end")
    options.add_argument("--one", action="store_true", help="measure the first of each in this process, as JSON")
    given = options.parse_args()
    if given.one:
        asked = given.algorithms[0], given.clients[0], given.rounds, given.test_examples
        print(json.dumps(measured(*asked)))
        return
    print(f"Commit {commit()}, {processor()[0]}, torch {torch.__version__}.\n")
    print(
        "| algorithm | clients | peak MiB, rounds | peak MiB, with the end | peak MiB, with the attacks "
        "| s a round | s a checkpoint | MiB written | s at the end | processor s, attacks |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for clients in given.clients:
        for algorithm in given.algorithms:
            command = [sys.executable, __file__, "--one", "--rounds", str(given.rounds)]
            command += ["--clients", str(clients), "--algorithms", algorithm]
            command += ["--test-examples", str(given.test_examples)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            one = json.loads(done.stdout)
            print(
                f"| `{algorithm}` | {clients:,} | {one['rounds']:,.0f} | {one['end']:,.0f} "
                f"| {one['attacks']:,.0f} | {one['round']:.3f} | {one['checkpoint']:.3f} "
                f"| {one['written']:,.1f} | {one['ending']:.1f} | {one['attacking']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
