"""Runs that are stopped, and what their directories hold apart from wall times, for the tests that compare runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.replay.reference_federations import AttackedRun

TRAIN_REFERENCE = AttackedRun.train_reference
TABLES = ("config.toml", "rounds.csv", "clients.csv", "roc.csv", "property.csv")
TENSORS = ("models.safetensors", "samples.safetensors")


def metrics(out: Path) -> dict:
    """The summary without wall times."""
    summary = json.loads((out / "summary.json").read_text())
    return {key: value for key, value in summary.items() if not key.startswith("seconds.")}


def content(out: Path) -> dict[str, bytes]:
    """Every file whose bytes the clock does not change, and the summary without wall times."""
    paths = [out / name for name in (*TABLES, *TENSORS) if (out / name).exists()]
    return {path.name: path.read_bytes() for path in paths} | {"summary": json.dumps(metrics(out)).encode()}


def stop_after(number: int) -> Callable[..., None]:
    """A watch that interrupts a run after a round."""

    def watch(simulation: Any, progress: Any, report: Any) -> None:
        if report is not None and progress.state.round == number:
            raise KeyboardInterrupt

    return watch


def count_references(monkeypatch: Any, stop_at: int | None = None) -> list[int]:
    """The numbers of reference federations as they are trained; number ``stop_at`` is interrupted instead."""
    trained: list[int] = []

    def counted(self: AttackedRun, number: int, engine: Any, **spans: Any) -> Any:
        if number == stop_at:
            raise KeyboardInterrupt
        trained.append(number)
        return TRAIN_REFERENCE(self, number, engine, **spans)

    monkeypatch.setattr(AttackedRun, "train_reference", counted)
    return trained
