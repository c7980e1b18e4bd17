"""The file of `success.py`: a line a finished data set, which a kill at any moment cannot spoil."""

import csv
import os
from dataclasses import asdict
from pathlib import Path

from mixture import Setting
from success_grid import Plan

from shoal.core.atomic_files import write_bytes
from shoal.core.errors import require

NAMES = ("table", "p", "m", "n", "r", "sigma", "d", "starts", "rounds", "rates", "data_seed")
COLUMNS = (*NAMES, "rate", "start", "distance", "success")
Key = tuple[str, ...]


def key(plan: Plan, cell: Setting, seed: int) -> Key:
    """What a row is about, as it stands in the file: the values of `NAMES`."""
    rates = " ".join(f"{rate:g}" for rate in plan.rates)
    more = {"table": plan.table, "starts": plan.starts, "rounds": plan.rounds, "rates": rates, "data_seed": seed}
    values = asdict(cell) | more
    return tuple(str(values[name]) for name in NAMES)


def rows(path: Path) -> dict[Key, dict[str, str]]:
    """The rows of ``path`` by key; the file is made with its head if absent, and a torn last line is cut off."""
    head = _line(COLUMNS)
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    require(whole == b"" or whole.startswith(head), f"{path} is not a table of this script; give another path")
    if not whole or whole != content:
        write_bytes(path, whole or head)
    return {tuple(row[name] for name in NAMES): row for row in csv.DictReader(whole.decode().splitlines())}


def append(path: Path, about: Key, found: tuple[str, ...]) -> None:
    """Add a row in one write, on disk before this returns."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, _line((*about, *found)))
        os.fsync(file)
    finally:
        os.close(file)


def _line(values: tuple[str, ...]) -> bytes:
    return (",".join(values) + "\n").encode()
