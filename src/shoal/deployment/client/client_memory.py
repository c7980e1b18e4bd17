"""What a client remembers from round to round, in files on its own disk: an algorithm's tensors, its personal model."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse, save as serialize

from shoal.core.atomic_files import write_bytes
from shoal.engine import ClientVectors, State, Tensors

_KEPT = 2
"""Rounds kept: the last, and the one before, should the server go back to it."""


@dataclass(frozen=True)
class ClientMemory:
    """The folder of one client in one run."""

    folder: Path

    @staticmethod
    def of(state_dir: Path, config: str) -> "ClientMemory":
        """The folder under ``state_dir`` of the run with this configuration."""
        return ClientMemory(state_dir / f"run-{hashlib.sha256(config.encode()).hexdigest()[:16]}")

    def before(self, number: int) -> Tensors | None:
        """What was saved last before the round ``number``; None: nothing. Damaged files are passed over."""
        for path in sorted(self.folder.glob("round-*.safetensors"), reverse=True):
            if int(path.stem.rpartition("-")[2]) < number:
                try:
                    return parse(path.read_bytes())
                except (SafetensorError, ValueError):
                    continue
        return None

    def save(self, number: int, state: State) -> None:
        """Save the client's tensors of ``state`` (N = 1) after the round ``number``, and forget what is older."""
        tensors = tensors_of(state)
        if not set(tensors) - {"assignment"}:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self.folder / f"round-{number:06d}.safetensors", serialize(tensors))
        for path in sorted(self.folder.glob("round-*.safetensors"), reverse=True)[_KEPT:]:
            path.unlink()


def tensors_of(state: State) -> dict[str, torch.Tensor]:
    """The client's own tensors in a state of one client."""
    own = {f"clients/{name}": tensor.contiguous() for name, tensor in state.clients.items()}
    own |= {f"personal/{name}": rows.tensor().contiguous() for name, rows in state.personal.items()}
    return own | {"assignment": state.assignment.contiguous()}


def remembered(state: State, tensors: Tensors | None) -> State:
    """``state`` of one client with its own tensors as they were saved."""
    if tensors is None:
        return state
    clients = {name: tensors.get(f"clients/{name}", value) for name, value in state.clients.items()}
    personal = {
        name: ClientVectors.same(tensors[f"personal/{name}"][0], 1) if f"personal/{name}" in tensors else rows
        for name, rows in state.personal.items()
    }
    return replace(state, clients=clients, personal=personal, assignment=tensors.get("assignment", state.assignment))
