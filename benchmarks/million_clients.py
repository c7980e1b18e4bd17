"""What a million clients cost: set-up, a round, the measuring at the end, files, and the most memory.

Clients of 10 examples of 64 features, in memory-mapped files that are made first, in parts: labels are the largest
of 10 random linear functions, others for every third client. Logistic regression, 0.1 % of the clients in a round,
one epoch of one batch. Each row is measured in a process of its own, since memory that a process once had counts
for its peak.

Seconds are processor time (user and system, all threads), so that other work on the machine matters less. Memory
is told twice: the process's own (`RssAnon`, looked at every 10 ms), and all that is resident (`ru_maxrss`), which
counts the pages of the mapped files that were read. These are the operating system's cache, which it takes back
where memory is short.

    python benchmarks/million_clients.py [--clients 1000000] [--algorithms fedavg ifca] [--rounds 10] [--folder DIR]
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from machine import commit, processor

import shoal

EXAMPLES, FEATURES, CLASSES, TEST = 10, 64, 10, 2000
ALGORITHMS = {"fedavg": shoal.FedAvg(), "ifca": shoal.IFCA(clusters=2)}
TEACHERS = torch.randn(2, FEATURES, CLASSES, generator=torch.Generator().manual_seed(0))
"""The linear functions of each group."""


def labels_of(x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """The class (m,) of inputs (m, features) in ``group`` (m,)."""
    classes = torch.einsum("mf,gfc->gmc", x, TEACHERS).argmax(dim=2)
    return classes[group, torch.arange(len(x))]


def group_of(clients: torch.Tensor) -> torch.Tensor:
    """The group of clients by number: every third is of the first."""
    return (clients % 3 != 0).long()


def make_files(folder: Path, clients: int) -> None:
    """x.npy and y.npy, 10,000 clients at a time."""
    draw = torch.Generator().manual_seed(1)
    arrays = np.lib.format.open_memmap
    x = arrays(folder / "x.npy", mode="w+", dtype=np.float32, shape=(clients * EXAMPLES, FEATURES))
    y = arrays(folder / "y.npy", mode="w+", dtype=np.int64, shape=(clients * EXAMPLES,))
    for some in torch.arange(clients).split(10_000):
        inputs = torch.randn(len(some) * EXAMPLES, FEATURES, generator=draw)
        where = slice(int(some[0]) * EXAMPLES, (int(some[-1]) + 1) * EXAMPLES)
        x[where] = inputs.numpy()
        y[where] = labels_of(inputs, group_of(some).repeat_interleave(EXAMPLES)).numpy()
    x.flush()
    y.flush()


class OwnMemory:
    """The most memory of its own, in MiB, that this process has had since it was last asked."""

    def __init__(self) -> None:
        self._most = 0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            self._most = max(self._most, self._now())
            time.sleep(0.01)

    def _now(self) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    def since(self) -> float:
        """See the class."""
        most, self._most = max(self._most, self._now()), 0
        return most / 1024


def measured(folder: Path, clients: int, algorithm: str, rounds: int) -> dict[str, float]:
    """Of one simulation in a directory, with a checkpoint after each round, and of its page."""
    draw = torch.Generator().manual_seed(2)
    x, group = torch.randn(TEST, FEATURES, generator=draw), group_of(torch.arange(TEST))
    test = shoal.Examples(x, labels_of(x, group), ["b" if each else "a" for each in group.tolist()])
    names = ["b" if i % 3 else "a" for i in range(clients)]
    # Modules that are loaded later are not of the clients.
    _ = (shoal.Run, shoal.Simulation, shoal.IFCA, shoal.LocalSGD, shoal.Federation)
    memory, marks, most = OwnMemory(), [time.process_time()], {"before": 0.0}
    most["before"] = memory.since()
    federation = shoal.Federation.from_tensors(
        shoal.ClientArrays(folder / "x.npy", folder / "y.npy", EXAMPLES), groups=names, test=test, classes=CLASSES
    )
    marks.append(time.process_time())
    most["federation"] = memory.since()
    ends: list[float] = []

    def watch(*_: object) -> None:
        ends.append(time.process_time())
        if len(ends) == rounds + 1:
            most["rounds"] = memory.since()

    with tempfile.TemporaryDirectory(dir=folder) as runs:
        out = Path(runs, "run")
        simulation = shoal.Simulation(
            federation,
            shoal.create_model("logistic", shoal.VectorShape(FEATURES, CLASSES)),
            ALGORITHMS[algorithm],
            shoal.LocalSGD(epochs=1, batch_size=EXAMPLES),
            rounds=rounds,
            participation=0.001,
        )
        result = shoal.Run(simulation, out, watch=watch).train()
        marks.append(time.process_time())
        most["end"] = memory.since()
        result.report(out / "report.html")
        marks.append(time.process_time())
        most["page"] = memory.since()
        sizes = {path.name: path.stat().st_size / 2**20 for path in out.iterdir() if path.is_file()}
        (checkpoint,) = (out / "checkpoint").iterdir()
        sizes["checkpoint"] = checkpoint.stat().st_size / 2**20
    every = [after - before for before, after in pairwise(ends)]
    return {
        "the federation": marks[1] - marks[0],
        "before the first round": ends[0] - marks[1],
        "a round, with its checkpoint": statistics.median(every),
        "the longest of them": max(every),
        "measuring at the end, and files": marks[2] - ends[-1],
        "the page": marks[3] - marks[2],
        **{f"own MiB, {name}": each for name, each in most.items()},
        "ru_maxrss MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **{f"MiB of {name}": sizes[name] for name in ("checkpoint", "clients.csv", "report.html")},
    }


def main() -> None:
    """Make the files, measure, each row in a process of its own, and print the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--clients", type=int, default=1_000_000)
    options.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--folder", type=Path, help="where the files are made; left out: one that is removed")
    options.add_argument("--one", action="store_true", help="measure the first algorithm in this process, as JSON")
    given = options.parse_args()
    if given.one:
        print(json.dumps(measured(given.folder, given.clients, given.algorithms[0], given.rounds)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = given.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        make_files(folder, given.clients)
        size = (folder / "x.npy").stat().st_size / 2**20
        print(f"Commit {commit()}, {processor()[0]}, torch {torch.__version__}; x.npy has {size:,.0f} MiB.\n")
        found = {}
        for algorithm in given.algorithms:
            command = [sys.executable, __file__, "--one", "--folder", str(folder), "--algorithms", algorithm]
            command += ["--clients", str(given.clients), "--rounds", str(given.rounds)]
            found[algorithm] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"| {given.clients:,} clients x {EXAMPLES} examples | " + " | ".join(found) + " |")
    print("|---|" + "---:|" * len(found))
    for label in next(iter(found.values())):
        cells = (f"{each[label]:,.{0 if 'MiB' in label else 3}f}" for each in found.values())
        print(f"| {label} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
