"""The options of `success_rate.py`: the tables of IFCA's section 6.1, their cells, and the command line."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixture import Setting


@dataclass(frozen=True)
class Table:
    """The cells of a table, every (m, n, r, sigma), and the learning rates that are tried in each."""

    p: int
    m: tuple[int, ...]
    n: tuple[int, ...]
    r: tuple[float, ...]
    sigma: tuple[float, ...]
    rates: tuple[float, ...]
    slack: float = 0.0


SCALES, NOISES = (0.1, 0.25, 0.5, 0.75, 1.0), (0.0, 0.1, 0.2, 0.4)
P2, P4 = (0.1, 1.0, 0.01), (1.0, 0.5, 2.0)
TABLES = {
    "p2-m-n": Table(2, (50, 70, 100, 150, 200, 300, 400), (50, 100, 200), (0.1, 0.25), (0.1,), P2),
    "p4-m-n": Table(4, (100, 200, 300, 400, 800), (50, 100, 200), (0.5, 0.75), (0.1,), P4),
    "p2-r-noise": Table(2, (100,), (100,), SCALES, NOISES, P2, slack=0.001),
    "p4-r-noise": Table(4, (400,), (100,), SCALES, NOISES, P4, slack=0.001),
}
SMALL = {
    "p2-m-n": {"m": (50, 100, 200), "n": (50, 100), "data_seeds": 3},
    "p4-m-n": {"m": (100, 200), "n": (50, 100), "data_seeds": 2},
    "p2-r-noise": {"r": (0.1, 0.25, 1.0), "sigma": (0.0, 0.1, 0.4), "data_seeds": 2},
    "p4-r-noise": {"m": (200,), "r": (0.25, 1.0), "sigma": (0.0, 0.4), "data_seeds": 2},
}
"""Cells and data sets of --small."""


@dataclass(frozen=True)
class Plan:
    """The cells to compute, the number of data sets of each, and how each data set is trained."""

    table: str
    rates: tuple[float, ...]
    slack: float
    cells: tuple[Setting, ...]
    data_seeds: int
    starts: int
    rounds: int

    def data_sets(self) -> Iterator[tuple[Setting, int]]:
        """Every cell and data seed; cells of the fewest examples come first."""
        yield from ((cell, seed) for cell in self.cells for seed in range(self.data_seeds))


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan of a command line; the defaults are the official sizes, or those of --small."""
    table = TABLES[arguments.table]
    small = SMALL[arguments.table] if arguments.small else {}

    def values(name: str) -> tuple:
        given = getattr(arguments, name)
        return tuple(given) if given else small.get(name, getattr(table, name))

    cells = [
        Setting(m, n, table.p, r, sigma, arguments.d)
        for m in values("m")
        for n in values("n")
        for r in values("r")
        for sigma in values("sigma")
    ]
    cells.sort(key=lambda cell: cell.m * cell.n)
    seeds = arguments.data_seeds or small.get("data_seeds", 40)
    return Plan(arguments.table, values("rates"), table.slack, tuple(cells), seeds, arguments.starts, arguments.rounds)


def parse_arguments(description: str | None, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", choices=tuple(TABLES), required=True)
    parser.add_argument("--small", action="store_true", help="fewer cells and data sets")
    parser.add_argument("--data-seeds", type=int, help="data sets per cell (40)")
    for name in ("m", "n"):
        parser.add_argument(f"--{name}", type=int, nargs="+", help="only these")
    for name in ("r", "sigma", "rates"):
        parser.add_argument(f"--{name}", type=float, nargs="+", help="only these")
    parser.add_argument("--d", type=int, default=1000)
    parser.add_argument("--starts", type=int, default=10, help="runs per learning rate")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args(arguments)
