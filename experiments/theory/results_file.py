"""The file of `success_rate.py`: one line per finished data set, which a kill at any moment cannot damage."""

import csv
import os
from dataclasses import asdict
from pathlib import Path

from mixture import Setting
from success_grid import Plan

from shoal.core.atomic_files import write_bytes
from shoal.core.errors import require

KEY_COLUMNS = ("table", "p", "m", "n", "r", "sigma", "d", "starts", "rounds", "rates", "data_seed")
COLUMNS = (*KEY_COLUMNS, "rate", "start", "distance", "success")
Key = tuple[str, ...]


def row_key(plan: Plan, cell: Setting, seed: int) -> Key:
    """The values of `KEY_COLUMNS` of one data set, as they are in the file."""
    rates = " ".join(f"{rate:g}" for rate in plan.rates)
    more = {"table": plan.table, "starts": plan.starts, "rounds": plan.rounds, "rates": rates, "data_seed": seed}
    values = asdict(cell) | more
    return tuple(str(values[name]) for name in KEY_COLUMNS)


def read_rows(path: Path) -> dict[Key, dict[str, str]]:
    """The rows of ``path`` by key; an absent file is created with its header, an incomplete last line is removed."""
    header = _line(COLUMNS)
    content = path.read_bytes() if path.exists() else b""
    complete = content[: content.rfind(b"\n") + 1]
    require(complete == b"" or complete.startswith(header), f"{path} is not a table of this script; give another path")
    if not complete or complete != content:
        write_bytes(path, complete or header)
    return {tuple(row[name] for name in KEY_COLUMNS): row for row in csv.DictReader(complete.decode().splitlines())}


def append_row(path: Path, key: Key, result: tuple[str, ...]) -> None:
    """Add a row in one write, on disk before this returns."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, _line((*key, *result)))
        os.fsync(file)
    finally:
        os.close(file)


def _line(values: tuple[str, ...]) -> bytes:
    return (",".join(values) + "\n").encode()
