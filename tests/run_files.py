"""What a run's directory holds apart from wall times, for the tests that compare runs."""

import json
from pathlib import Path

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
