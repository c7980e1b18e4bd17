"""Checkpoints of a run, one file per round; the hash in a checkpoint's name reveals damage."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as parse, save as serialize
from torch import Tensor

from shoal.core.atomic_files import write_bytes
from shoal.core.errors import InputError, require
from shoal.engine import Departure, State, Tensors
from shoal.engine.state import ClientVectors
from shoal.simulation.play import SimulationState

LOG = logging.getLogger(__name__)

_BY_NAME = ("server", "clients", "directives", "adversary", "control")
"""The fields of a state that map names to tensors."""

_FIGURES = tuple(
    field.name for field in fields(Departure) if field.name not in ("clients", "before", "after", "cohorts")
)
"""The fields of a departure that are not tensors."""


def save_checkpoint(
    folder: Path, progress: SimulationState, observations: Mapping[int, Tensors] | None = None, frozen: str = ""
) -> None:
    """Write a checkpoint, and keep only the newest two checkpoints.

    Args:
        observations: the round attack's observations since the last checkpoint, by round. Observations are written to a
            separate file, which later checkpoints keep.
    """
    state = progress.state
    if observations:
        new = {
            f"{number}.{name}": tensor.contiguous()
            for number, tensors in observations.items()
            for name, tensor in tensors.items()
        }
        write_bytes(folder / f"observations-{state.round:06d}.safetensors", serialize(new))
    names = list(progress.rows[0]) if progress.rows else []
    tensors = {
        "models": state.models.contiguous(),
        "risks": state.risks,
        "risk_intervals": state.risk_intervals,
        "assignment": state.assignment,
        "trained": state.trained.contiguous(),
        "rows": torch.tensor([list(row.values()) for row in progress.rows], dtype=torch.float64),
    }
    tensors |= {f"memory/{name}": tensor.contiguous() for name, tensor in progress.memory.items()}
    for kind in _BY_NAME:
        tensors |= {f"{kind}/{name}": tensor.contiguous() for name, tensor in getattr(state, kind).items()}
    for left in progress.departures:
        stored = {"clients": left.clients, "before": left.before, "after": left.after}
        stored |= {f"cohort.{i:06d}": cohort for i, cohort in enumerate(left.cohorts)}
        # Copies: safetensors refuses shared memory, and a method may return the models as they are.
        tensors |= {f"departure/{left.round}/{name}": tensor.clone() for name, tensor in stored.items()}
    for name, vectors in state.personal.items():
        first, tensors[f"row/{name}"] = vectors.distinct()
        tensors[f"personal/{name}"] = vectors[first]
    about = {
        "round": str(state.round),
        "columns": json.dumps(names),
        "whole": json.dumps([name for name in names if isinstance(progress.rows[0][name], int)]),
        "seconds": json.dumps(progress.seconds),
        "by_round": json.dumps(
            {part: [round(row.get(part, 0.0), 4) for row in progress.by_round] for part in dict(*progress.by_round[:1])}
        ),
        "frozen": frozen,
        "departures": json.dumps([{name: getattr(left, name) for name in _FIGURES} for left in progress.departures]),
    }
    content = serialize(tensors, metadata=about)
    path = folder / f"round-{state.round:06d}-{_digest(content)}.safetensors"
    write_bytes(path, content)
    for twin in folder.glob(f"round-{state.round:06d}-*"):
        # A damaged checkpoint of the same round.
        if twin != path:
            twin.unlink()
    # The one before the last, in case the last is damaged.
    keep_newest_checkpoints(folder, 2)


def keep_newest_checkpoints(folder: Path, count: int) -> None:
    """Remove all but the newest ``count`` checkpoints, and keep all observations."""
    for old in _newest_first(folder)[count:]:
        old.unlink()


def stored_observations(folder: Path) -> dict[int, Tensors]:
    """Read all stored observations of a round attack, by round."""
    rounds: dict[int, dict[str, Tensor]] = {}
    for path in sorted(folder.glob("observations-*.safetensors")):
        for key, tensor in parse(path.read_bytes()).items():
            number, _, name = key.partition(".")
            rounds.setdefault(int(number), {})[name] = tensor
    return dict(sorted(rounds.items()))


def load_checkpoint(folder: Path, frozen: str | None = None) -> SimulationState | None:
    """Load the newest undamaged checkpoint in ``folder``, or return None if the folder has no checkpoint.

    A damaged checkpoint is skipped with a warning.

    Args:
        frozen: the present `Model.frozen_hash`. ``None`` skips the comparison with the stored hash.

    Raises:
        InputError: all checkpoints are damaged, or the frozen tensors have changed.
    """
    checkpoints = _newest_first(folder)
    for path in checkpoints:
        progress, before = _read(path)
        if progress is not None:
            require(
                frozen in (None, before),
                f"{path}: the network's frozen tensors must have the hash {before[:8] or 'none'} (got "
                f"{(frozen or '')[:8] or 'none'}); build the same network, or run in another directory",
            )
            _remove_observations(folder, progress.state.round)
            return progress
        LOG.warning("checkpoint %s is damaged; using the one before", path.name)
    if checkpoints:
        raise InputError(f"{folder}: every checkpoint is damaged; repeat the run in another --out")
    _remove_observations(folder, 0)
    return None


def _remove_observations(folder: Path, number: int) -> None:
    """Remove observations after round ``number``: these rounds will be repeated."""
    for path in folder.glob("observations-*.safetensors"):
        if int(path.stem.rpartition("-")[2]) > number:
            path.unlink()


def _read(path: Path) -> tuple[SimulationState | None, str]:
    """Read a checkpoint and the hash of its models' frozen tensors; return None if the checkpoint is damaged."""
    content = path.read_bytes()
    if path.stem.rpartition("-")[2] != _digest(content):
        return None, ""
    try:
        tensors = parse(content)
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
    except (SafetensorError, ValueError):
        return None, ""
    by_kind = {
        kind: {name.partition("/")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{kind}/")}
        for kind in (*_BY_NAME, "memory")
    }
    memory = by_kind.pop("memory")
    columns, integers = json.loads(about["columns"]), set(json.loads(about["whole"]))
    rows = tuple(
        {name: int(value) if name in integers else value for name, value in zip(columns, row, strict=True)}
        for row in tensors["rows"].tolist()
    )
    personal = dict[str, ClientVectors]()
    for key, number in tensors.items():
        kind, _, name = key.partition("/")
        if kind == "row":
            # Copies: a view would keep all vectors until the last one is replaced.
            distinct = [row.clone() for row in tensors[f"personal/{name}"]]
            personal[name] = ClientVectors(tuple(distinct[u] for u in number.tolist()))
    state = State(
        round=int(about["round"]),
        models=tensors["models"],
        risks=tensors["risks"],
        risk_intervals=tensors["risk_intervals"],
        assignment=tensors["assignment"],
        personal=personal,
        trained=tensors["trained"],
        **by_kind,
    )
    parts = json.loads(about["by_round"])
    by_round = tuple(dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True))
    departures = tuple(_departure(figures, tensors) for figures in json.loads(about.get("departures", "[]")))
    seconds = json.loads(about["seconds"])
    progress = SimulationState(state, rows, seconds, memory, by_round=by_round, departures=departures)
    return progress, about["frozen"]


def _departure(figures: dict[str, Any], tensors: Tensors) -> Departure:
    prefix = f"departure/{figures['round']}/"
    cohorts: dict[str, Any] = {
        name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)
    }
    models = {name: cohorts.pop(name) for name in ("clients", "before", "after")}
    return Departure(**figures, **models, cohorts=tuple(cohorts[name] for name in sorted(cohorts)))


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.safetensors"), reverse=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
