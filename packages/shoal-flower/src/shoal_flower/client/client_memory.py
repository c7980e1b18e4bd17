"""A client's memory from round to round, on its own disk: an algorithm's tensors, its personal model, its choice."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as parse, save as serialize

from shoal.core.atomic_files import PRIVATE, private_folder, write_bytes, write_text
from shoal.engine import ClientVectors, State, Tensors

_KEPT = 2
"""Rounds kept: the last, and the one before, should the server go back to it."""


@dataclass(frozen=True)
class ClientMemory:
    """The folder of one client in one run; its states have one client (N = 1)."""

    folder: Path

    @staticmethod
    def open(state_dir: Path, config: str) -> "ClientMemory":
        """The folder under ``state_dir`` of the run with this configuration."""
        return ClientMemory(state_dir / f"run-{hashlib.sha256(config.encode()).hexdigest()[:16]}")

    def restore(self, state: State) -> State:
        """``state`` with the client's own tensors as they were last saved in an earlier or the same round."""
        tensors = self._last(state.round)
        clients = {name: tensors.get(f"clients/{name}", value) for name, value in state.clients.items()}
        personal = {
            name: ClientVectors.same(tensors[f"personal/{name}"][0], 1) if f"personal/{name}" in tensors else rows
            for name, rows in state.personal.items()
        }
        return replace(
            state, clients=clients, personal=personal, assignment=tensors.get("assignment", state.assignment)
        )

    def save(self, state: State) -> None:
        """Save the client's own tensors after a round, and remove those of older rounds."""
        tensors = {f"clients/{name}": tensor.contiguous() for name, tensor in state.clients.items()}
        tensors |= {f"personal/{name}": rows.tensor().contiguous() for name, rows in state.personal.items()}
        if not tensors:
            return
        tensors["assignment"] = state.assignment.contiguous()
        private_folder(self.folder)
        write_bytes(self.folder / f"round-{state.round:06d}.safetensors", serialize(tensors), mode=PRIVATE)
        for path in self._files()[_KEPT:]:
            path.unlink()

    def last_choice(self, since: int, models: int) -> int | None:
        """The model that the client chose in this run with ``since`` or more rounds in its ledger, one of so many."""
        path = self.folder / "choice.json"
        rounds, chosen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else (-1, 0)
        return chosen if rounds >= since and chosen < models else None

    def save_choice(self, rounds: int, chosen: int) -> None:
        """Save a choice that was made with so many ``rounds`` in the ledger before it."""
        private_folder(self.folder)
        write_text(self.folder / "choice.json", json.dumps([rounds, chosen]), mode=PRIVATE)

    def _files(self) -> list[Path]:
        """The files of the client's tensors, those of the last round first."""
        return sorted(self.folder.glob("round-*.safetensors"), reverse=True)

    def _last(self, number: int) -> Tensors:
        """The tensors of the last round until ``number`` whose file is not damaged; none where there is no such."""
        for path in self._files():
            if int(path.stem.rpartition("-")[2]) <= number:
                try:
                    return parse(path.read_bytes())
                except (SafetensorError, ValueError):
                    continue
        return {}
