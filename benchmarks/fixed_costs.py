"""Where users wait although nothing trains: processor seconds of a short run, a sweep of short runs, and many clients.

Processor time (user and system, of a command and the processes that it waits for) and not wall time, so that other work
on the machine matters less; medians over the repeats, the rows in turn. What `import torch` takes stands beside them.

    python benchmarks/fixed_costs.py [--repeats 3] [--rows run sweep clients configuration] [--clients 100000]
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from machine import commit, processor

TOY = """
seed = 3
[data]
source = "digits"
clients = 10
examples_per_client = 12
shadow_examples = 60
test_examples = 40
[data.groups.minority]
share = 0.3
rotation = [0, 20]
[data.groups.majority]
share = 0.7
rotation = [60, 90]
[model]
name = "mlp"
hidden = 16
[algorithm]
name = "ifca-mir"
rounds = 2
[local]
batch_size = 6
[red_team]
every = 2
attack = "loss-threshold"
shadow_models = 2
"""

SWEEP = """
base = "base.toml"
seeds = [0, 1, 2, 3, 4, 5]
[grid]
"algorithm.name" = ["ifca", "ifca-mir"]
"""

SHOAL = ("-c", "from shoal.cli.app import script; script()")


def processor_seconds(folder: Path, *words: str) -> float:
    """Of Python with these arguments, and of the processes that it waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], cwd=folder, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def of_many_clients(clients: int, rounds: int = 5) -> dict[str, float]:
    """Parts of a run of many clients with 10 examples each and 1 % participation, in this process."""
    import torch  # noqa: PLC0415 (the rows of commands do without)

    import shoal  # noqa: PLC0415

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(10 * clients, 20, generator=draw)
    y = (x @ torch.randn(20, 4, generator=draw)).argmax(dim=1)
    pairs = list(zip(x.split(10), y.split(10), strict=True))
    # Modules that are loaded later are not of the clients.
    _ = (
        shoal.Run,
        shoal.Simulation,
        shoal.IFCA,
        shoal.LocalSGD,
        shoal.Federation,
        shoal.Model,
        shoal.Shape,
        shoal.create_model,
    )
    marks = [time.process_time()]
    groups = ["a" if i % 3 else "b" for i in range(clients)]
    test = shoal.Examples(x[:2000], y[:2000], ["a", "b"] * 1000)
    federation = shoal.Federation.from_tensors(pairs, groups=groups, test=test)
    marks.append(time.process_time())
    ends: list[float] = []
    simulation = shoal.Simulation(
        federation,
        shoal.Model(lambda: torch.nn.Linear(20, 4)),
        shoal.IFCA(clusters=2),
        shoal.LocalSGD(epochs=1, batch_size=10),
        rounds=rounds,
        participation=0.01,
    )
    result = shoal.Run(simulation, watch=lambda *_: ends.append(time.process_time())).train()
    marks.append(time.process_time())
    with tempfile.TemporaryDirectory() as folder:
        result.save(Path(folder) / "run")
        marks.append(time.process_time())
        result.report(Path(folder) / "page.html")
        marks.append(time.process_time())
    return {
        "the federation": marks[1] - marks[0],
        "before the first round": ends[0] - marks[1],
        "a round": statistics.median(b - a for a, b in pairwise(ends)),
        "measuring at the end": marks[2] - ends[-1],
        "files": marks[3] - marks[2],
        "the page": marks[4] - marks[3],
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def by_configuration(clients: int) -> dict[str, float]:
    """Parts of a run by a configuration that deals 10 random images of 4x5 out to each of many clients."""
    import torch  # noqa: PLC0415

    from shoal.config.schema import parse_config  # noqa: PLC0415
    from shoal.data import ImageDataset  # noqa: PLC0415
    from shoal.runs.run import run  # noqa: PLC0415

    count, draw = 10 * clients + 2000, torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 17, (count, 1, 4, 5), dtype=torch.uint8, generator=draw)
    data = ImageDataset("random", pixels, 16, torch.arange(count) % 4, count, 4)
    table = {
        "data": {
            "source": "digits",  # In whose place the random images are given.
            "clients": clients,
            "examples_per_client": 10,
            "test_examples": 2000,
            "groups": {"a": {"share": 0.33}, "b": {"share": 0.67, "brightness": [0.5, 0.8]}},
        },
        "model": {"name": "logistic"},
        "algorithm": {"name": "ifca", "clusters": 2, "rounds": 1, "participation": 0.01},
        "local": {"batch_size": 10},
        "red_team": {"every": 0, "attack": "gap"},
    }
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        begun, config = time.process_time(), parse_config(table, "the benchmark")
        run(config, Path(folder, "run"), dataset=data, watch=lambda *_: ends.append(time.process_time()))
    return {
        "the federation, and all before the first round": ends[0] - begun,
        "all before it, in this process": ends[0],
    }


PARTS = {"clients": of_many_clients, "configuration": by_configuration}
"""What is measured in a process of its own for each repeat."""


def main() -> None:
    """Measure and print the tables."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--repeats", type=int, default=3)
    rows = ["run", "sweep", *PARTS]
    options.add_argument("--rows", nargs="+", choices=rows, default=rows)
    options.add_argument("--clients", type=int, default=100_000)
    options.add_argument("--one", choices=PARTS, help="measure one of these rows in this process, as JSON")
    given = options.parse_args()
    if given.one:
        print(json.dumps(PARTS[given.one](given.clients)))
        return
    print(f"Commit {commit()}, {processor()[0]}; medians of {given.repeats}.\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "base.toml").write_text(TOY)
        (folder / "sweep.toml").write_text(SWEEP)

        def command(kind: str, i: int, *words: str) -> float:
            return processor_seconds(folder, *SHOAL, kind, *words, "--out", f"{kind}-{i}", "--quiet")

        commands: dict[str, Callable[[int], float]] = {
            "`import torch`": lambda _: processor_seconds(folder, "-c", "import torch"),
            "`import shoal.sweeps`": lambda _: processor_seconds(folder, "-c", "import shoal.sweeps"),
        }
        if "run" in given.rows:
            commands["a toy run of 2 rounds"] = lambda i: command("run", i, "base.toml")
        if "sweep" in given.rows:
            commands["twelve of them, `--jobs 2`"] = lambda i: command("sweep", i, "sweep.toml", "--jobs", "2")
        found: dict[str, list[float]] = {label: [] for label in commands}
        for i in range(given.repeats):
            for label, measured in commands.items():
                found[label].append(measured(i))
        print("| | s, median | min to max |\n|---|---:|---:|")
        for label, times in found.items():
            print(f"| {label} | {statistics.median(times):.2f} | {min(times):.2f} to {max(times):.2f} |")
    for row in (row for row in PARTS if row in given.rows):
        again = [sys.executable, __file__, "--one", row, "--clients", str(given.clients)]
        parts = [
            json.loads(subprocess.run(again, check=True, capture_output=True, text=True).stdout)
            for _ in range(given.repeats)
        ]
        print(f"\n| {given.clients:,} clients x 10 examples ({row}) | s, median |\n|---|---:|")
        for label in parts[0]:
            print(f"| {label} | {statistics.median(each[label] for each in parts):.3f} |")


if __name__ == "__main__":
    main()
