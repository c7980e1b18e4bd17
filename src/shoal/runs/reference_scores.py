"""Scores of reference federations in a folder of the run: one file each, so that an audit can be killed and resumed."""

import hashlib
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from shoal.core.atomic_files import write_bytes
from shoal.engine import State
from shoal.simulation.reference_federations import FederationScores

_FIELDS = ("score", "member", "model", "population")


def digest_of(state: State, seed: int) -> str:
    """A name for the attacked models: scores of reference federations of others are of no use."""
    content = state.models.numpy().tobytes() + state.assignment.numpy().tobytes()
    return hashlib.sha256(content + f"{state.round} {seed}".encode()).hexdigest()[:16]


def write_reference(folder: Path, number: int, attacked: str, scores: FederationScores, seconds: float) -> None:
    """Write the scores of reference federation ``number``, whole or not at all.

    Args:
        folder: of the run's reference federations.
        number: from 0.
        attacked: `digest_of` the attacked run.
        scores: of the federation.
        seconds: that its training took.
    """
    tensors = {name: getattr(scores, name).contiguous() for name in _FIELDS}
    write_bytes(_path(folder, number), save(tensors, {"attacked": attacked, "seconds": f"{seconds:.3f}"}))


def read_reference(folder: Path, number: int, attacked: str) -> tuple[FederationScores, float] | None:
    """The scores and seconds of reference federation ``number``; None where they are missing, damaged, or of other
    attacked models, as after a run was prolonged.
    """
    path = _path(folder, number)
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
        if about.get("attacked") != attacked:
            return None
        tensors = load_file(path)
        return FederationScores(**{name: tensors[name] for name in _FIELDS}), float(about["seconds"])
    except (SafetensorError, OSError, KeyError, ValueError):
        return None


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:03d}.safetensors"
