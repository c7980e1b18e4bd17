"""Recorded updates of clients in RUN/updates, one file per recorded round.

round-0007.safetensors has the fields of `RoundUpdates` for round 7: ``clients`` (n,) int64, ``assignment`` (n,) int64,
``models`` (K, P) float32 and ``updates`` (n, P) float32.
"""

import re
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as parse, save as serialize

from shoal.core.atomic_files import write_bytes
from shoal.core.errors import file_errors, require
from shoal.engine import RoundUpdates
from shoal.reports.run.description import RecordedUpdates
from shoal.simulation.simulation import Simulation

FOLDER = "updates"
"""The folder of updates in a run directory."""

MAX_MEGABYTES = 1000
"""The default limit on the size of a run's updates."""

_FIELDS = ("clients", "assignment", "models", "updates")


def megabytes(simulation: Simulation) -> float:
    """Return the size of a simulation's recorded updates in 10^6 bytes, excluding the models before each round."""
    every = simulation.record_updates
    rounds = 0 if every == 0 else simulation.last_round // every - (simulation.first_round - 1) // every
    clients = simulation.federation.cohort_size(simulation.participation)
    return rounds * clients * simulation.setup.model.layout.size * 4 / 1e6


def write_updates(out: Path, updates: RoundUpdates) -> None:
    """Write a round's updates into the run directory ``out``."""
    folder = out / FOLDER
    folder.mkdir(exist_ok=True)
    tensors = {name: getattr(updates, name).contiguous() for name in _FIELDS}
    write_bytes(folder / f"round-{updates.round:04d}.safetensors", serialize(tensors))


def read_updates(path: Path) -> RoundUpdates:
    """Read a round's file of updates.

    Raises:
        InputError: the file is missing or damaged.
    """
    with file_errors(path, damage=(SafetensorError,)):
        tensors = parse(path.read_bytes())
    missing = [name for name in _FIELDS if name not in tensors]
    require(not missing, f"{path}: is damaged; missing tensors: {', '.join(missing)}")
    return RoundUpdates(round_of(path), **{name: tensors[name] for name in _FIELDS})


def find_updates(out: Path) -> RecordedUpdates | None:
    """Return the recorded rounds and the size of all updates in the run directory ``out``, or None if no round was
    recorded.
    """
    folder = out / FOLDER
    if not any(round_of(path) for path in folder.glob("round-*.safetensors")):
        return None
    files = round_files(folder, ".safetensors")
    return RecordedUpdates(tuple(round_of(path) for path in files), sum(path.stat().st_size for path in files))


def round_files(folder: Path, *suffixes: str) -> list[Path]:
    """List the files round-N in ``folder`` that have one of ``suffixes``, ordered by round.

    Raises:
        InputError: the folder has no such file, or two files of the same round.
    """
    paths = [path for path in folder.glob("round-*") if path.suffix in suffixes and round_of(path) > 0]
    require(bool(paths), f"{folder}: has no rounds; add files such as round-0001{suffixes[0]}")
    by_round: dict[int, Path] = {}
    for path in sorted(paths):
        other = by_round.setdefault(round_of(path), path)
        require(other == path, f"{path}: has the same round as {other.name}; remove one of the two files")
    return [by_round[number] for number in sorted(by_round)]


def round_of(path: Path) -> int:
    """Return the round in a file's name, or 0 if the name has no round."""
    match = re.fullmatch(r"round-(\d+)", path.stem)
    return int(match[1]) if match else 0
