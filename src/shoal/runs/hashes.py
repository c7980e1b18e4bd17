"""hashes.json: SHA-256 of a run's examples and, once it is finished, of each file that later steps read.

``examples`` is `shoal.data.fingerprint` of the federation: every input, label, group and limit, and who has which.
``files`` has the hash of each file by its path in the run directory. That of config.toml is of the keys that decide
the result; where the data are is none of them, so they may move. A checkpoint has a hash of its own in its name.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.config.toml_files import read_toml
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, require
from shoal.core.foreign_files import read_json
from shoal.runs.updates import FOLDER

NAME = "hashes.json"

_UNHASHED = (
    "report.html",
    "run.log",
    "audit.json",
    "audit.csv",
    "audit.html",
    "scores.csv",
    "card.json",
    "card.html",
    NAME,
)
"""Files that are written or grow after a run, or that no later step reads."""


def write_hashes(out: Path, examples: str, summary: str | None = None) -> None:
    """Write hashes.json: of a run that has begun, or, with the text of its summary.json, of one that is finished."""
    about: dict[str, Any] = {"examples": examples}
    if summary is not None:
        there = [path for folder in (out, out / FOLDER) if folder.is_dir() for path in sorted(folder.iterdir())]
        named = {str(path.relative_to(out)): path for path in there if path.is_file() and path.name not in _UNHASHED}
        hashes = {name: _hash(path) for name, path in named.items() if not path.name.startswith(".")}
        about["files"] = hashes | {"summary.json": hashlib.sha256(summary.encode()).hexdigest()}
    write_text(out / NAME, json.dumps(about, indent=2) + "\n")


def stored_examples(out: Path) -> str:
    """The hash of the examples that the run in ``out`` was begun with; "" where it has none."""
    return _read(out).get("examples", "") if (out / NAME).exists() else ""


def stored_files(out: Path) -> Mapping[str, str]:
    """The hashes of the files of the finished run in ``out``, by path; none where it has no hashes."""
    return _read(out).get("files", {}) if (out / NAME).exists() else {}


def require_same_examples(out: Path, examples: str) -> None:
    """Raise `InputError` where the run in ``out`` was begun with other examples than those of the hash ``examples``."""
    before = stored_examples(out)
    require(
        before in ("", examples),
        f"{out}: was run on other examples than the data have now (hash {before[:8]} then, {examples[:8]} now); "
        "restore the data, or run in another directory",
    )


def require_unchanged(out: Path) -> None:
    """Raise `InputError` where a file of the finished run in ``out`` is missing or not what the run wrote."""
    require((out / NAME).exists(), f"{out}: has no {NAME}, by which a run knows its examples and files; run it anew")
    for name, expected in _read(out).get("files", {}).items():
        path = out / name
        require(path.exists(), f"{path}: is missing; restore it, or run in another directory")
        require(
            _hash(path) == expected,
            f"{path}: has changed since the run was finished; restore it, or run in another directory",
        )


def _read(out: Path) -> dict[str, Any]:
    try:
        about = read_json(out / NAME)
    except (OSError, ValueError) as error:
        raise InputError(f"{out / NAME}: cannot be read: {error}") from error
    valid = (
        isinstance(about, dict) and isinstance(about.get("examples"), str) and isinstance(about.get("files", {}), dict)
    )
    require(valid, f"{out / NAME}: is damaged: it must hold 'examples' and 'files'")
    return about


def _hash(path: Path) -> str:
    if path.name == "config.toml":
        settings = decisive_settings(read_toml(path))
        settings.pop("data.path", None)
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def decisive_settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config.toml by dotted key, but for the keys that change no result."""
    free = ("engine.threads", "record.max_megabytes", "checkpoint.every")
    return {key: value for key, value in _flat(table, "") if key not in free}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys in which two config.toml differ, with both values; None where one of them has no value."""
    old, new = decisive_settings(before), decisive_settings(now)
    return {key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
