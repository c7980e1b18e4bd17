"""Readers of a run's files, and hashes.json with SHA-256 hashes of the run's examples and files.

The entry ``examples`` is `shoal.data.fingerprint` of the federation: every client's inputs, labels, group and limit.
For a finished run, ``files`` contains the hash of each file that later commands read, by path. The hash of
config.toml covers the keys that decide the result, except the path of the data.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors
from torch import Tensor

from shoal.config.toml_files import read_toml
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, file_errors, require
from shoal.core.foreign_files import read_json, require_small_csv
from shoal.core.formats import from_cells
from shoal.metrics.summary import TEXT_KEYS, FlatSummary, Summary, parse_summary
from shoal.runs.updates import FOLDER

REQUIRED_KEYS = (
    "algorithm",
    "dataset",
    "seed",
    "rounds",
    "accuracy.overall",
    "violations.total",
    "seconds.total",
)
"""Keys that every summary has."""

TEXT_COLUMNS = ("group", "non_members", "attack", "name", "view", "method")
"""The columns of text; all other columns hold numbers."""

FROZEN = "frozen"
"""The prefix of tensors that all models share; other tensors have their cluster's number as prefix."""

HASHES = "hashes.json"

_UNHASHED = (
    "report.html", "run.log", "audit.json", "audit.csv", "audit.html", "scores.csv", "card.json", "card.html", HASHES,
)  # fmt: skip
"""The files without a hash: a later command changes them or does not read them."""

COMPLETE = ("round", "cluster", "clients", "present", "group", "non_members")
"""The columns without empty cells."""


def read_run(out: Path) -> FlatSummary:
    """Read the flat keys of summary.json.

    Raises:
        InputError: ``out`` is not the directory of a finished run.
    """
    path = out / "summary.json"
    if (out / "config.toml").exists():
        instead = "finish it with shoal run --resume"
    elif (out / "sweep.toml").exists():
        instead = "name a run in the folder 'runs' of the sweep"
    else:
        instead = "name the directory of a run" if out.exists() else "the directory does not exist"
        instead = "name the directory of a run, not a file" if out.is_file() else instead
    require(path.exists(), f"{out}: is not a finished run (no summary.json); {instead}")
    try:
        flat = read_json(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    require(isinstance(flat, dict), f"{path}: is damaged; the file must be a JSON object of numbers and texts")
    missing = [key for key in REQUIRED_KEYS if key not in flat]
    require(not missing, f"{path}: is damaged; missing keys: {', '.join(missing)}")
    numbers = [value for key, value in flat.items() if key not in TEXT_KEYS]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers)
    named = isinstance(flat["algorithm"], str)
    require(numeric and named, f"{path}: is damaged; the file must be a JSON object of numbers and names")
    return flat


def read_summary(out: Path) -> Summary:
    """Read summary.json.

    Raises:
        InputError: ``out`` is not the directory of a finished run.
    """
    return parse_summary(read_run(out))


def read_table(path: Path, columns: Sequence[str], *, empty: bool = False) -> pd.DataFrame:
    """Read a CSV file of a run. Only empty cells become NaN, because "NA" may be a group's name.

    Args:
        empty: whether the file may have no rows.

    Raises:
        InputError: the file is missing or damaged.
    """
    with file_errors(path, damage=(ValueError,)):
        require_small_csv(path)
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=dict.fromkeys(TEXT_COLUMNS, str))
        frame = from_cells(frame, TEXT_COLUMNS)
    missing = [name for name in columns if name not in frame]
    require(not missing, f"{path}: is damaged; missing columns: {', '.join(missing)}")
    numeric = [str(name) for name in frame if name not in TEXT_COLUMNS]
    if empty and len(frame) == 0:
        return frame.astype(dict.fromkeys(numeric, float))
    strange = [name for name in numeric if not pd.api.types.is_numeric_dtype(frame[name])]
    require(not strange, f"{path}: is damaged; columns that are not numeric: {', '.join(strange)}")
    gaps = [name for name in COMPLETE if name in frame and frame[name].isna().any()]
    require(not gaps, f"{path}: is damaged; columns with empty cells: {', '.join(gaps)}")
    require(len(frame) > 0, f"{path}: is damaged; the table has no rows")
    return frame


def read_warnings(path: Path) -> tuple[str, ...]:
    """Read the distinct warnings in a run's log; a missing log has no warnings."""
    if not path.exists():
        return ()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    matches = (re.fullmatch(r"(?:\S+ \S+ \d+ )?WARNING (.+)", line) for line in lines)
    return tuple(dict.fromkeys(match[1] for match in matches if match is not None))


def read_samples(path: Path) -> dict[str, NDArray[Any]]:
    """Read the images (B, channels, height, width) of samples.safetensors, by group.

    Raises:
        InputError: the file is missing or damaged.
    """
    require(path.exists(), f"{path}: is missing")
    with file_errors(path, damage=(OSError, SafetensorError)):
        return {group: images for group, images in load_file(path).items() if images.ndim == 4}


def read_models(path: Path) -> tuple[dict[int, dict[str, Tensor]], tuple[str, ...]]:
    """Read models.safetensors: the tensors by cluster and name, and the names of the frozen tensors.

    Raises:
        InputError: the file is missing or damaged.
    """
    require(path.exists(), f"{path}: is missing")
    models: dict[int, dict[str, Tensor]] = {}
    frozen: dict[str, Tensor] = {}
    with file_errors(path, damage=(OSError, SafetensorError, ValueError)):
        for key, tensor in load_tensors(path).items():
            cluster, _, name = key.partition(".")
            if cluster == FROZEN:
                frozen[name] = tensor
            else:
                models.setdefault(int(cluster), {})[name] = tensor
    require(sorted(models) == list(range(len(models))) and bool(models), f"{path}: is damaged; a model is missing")
    return {k: frozen | tensors for k, tensors in sorted(models.items())}, tuple(frozen)


def write_hashes(out: Path, examples: str, summary: str | None = None) -> None:
    """Write hashes.json. For a finished run, pass the text of summary.json as ``summary``."""
    about: dict[str, Any] = {"examples": examples}
    if summary is not None:
        paths = [path for folder in (out, out / FOLDER) if folder.is_dir() for path in sorted(folder.iterdir())]
        files = {str(path.relative_to(out)): path for path in paths if path.is_file() and path.name not in _UNHASHED}
        hashes = {name: _hash(path) for name, path in files.items() if not path.name.startswith(".")}
        about["files"] = hashes | {"summary.json": hashlib.sha256(summary.encode()).hexdigest()}
    write_text(out / HASHES, json.dumps(about, indent=2) + "\n")


def stored_examples(out: Path) -> str:
    """Return the stored hash of the run's examples, or "" without a hash."""
    return _read_hashes(out)["examples"]


def stored_files(out: Path) -> Mapping[str, str]:
    """Return the stored hash of each file of the finished run in ``out``, by path."""
    return _read_hashes(out).get("files", {})


def require_same_examples(out: Path, examples: str) -> None:
    """Raise `InputError` if ``examples`` differs from the hash of the run's examples."""
    before = stored_examples(out)
    require(
        before in ("", examples),
        f"{out}: the run's examples must have the hash {before[:8]} (got {examples[:8]}); restore the data, or run in "
        "another directory",
    )


def require_unchanged(out: Path) -> None:
    """Raise `InputError` if a file of the finished run in ``out`` is missing or has changed."""
    require((out / HASHES).exists(), f"{out}: has no {HASHES}, the hashes of examples and files; repeat the run")
    for name, expected in stored_files(out).items():
        path, remedy = out / name, "restore it, or run in another directory"
        require(path.exists(), f"{path}: is missing; {remedy}")
        require(_hash(path) == expected, f"{path}: has changed since the run was finished; {remedy}")


def _read_hashes(out: Path) -> dict[str, Any]:
    if not (out / HASHES).exists():
        return {"examples": ""}
    try:
        about = read_json(out / HASHES)
    except (OSError, ValueError) as error:
        raise InputError(f"{out / HASHES}: cannot be read: {error}") from error
    valid = (
        isinstance(about, dict) and isinstance(about.get("examples"), str) and isinstance(about.get("files", {}), dict)
    )
    require(valid, f"{out / HASHES}: is damaged; the keys 'examples' and 'files' are required")
    return about


def _hash(path: Path) -> str:
    if path.name == "config.toml":
        settings = decisive_settings(read_toml(path))
        settings.pop("data.path", None)
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def decisive_settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config.toml that can change the result, by dotted key.

    ``evaluation.baselines = false`` is omitted too, because files of older versions lack the key.
    """
    free = (
        "engine.threads", "record.max_megabytes", "checkpoint.every", "simulation.unnamed", "evaluation.min_clients",
    )  # fmt: skip
    flat = {key: value for key, value in _flat(table, "") if key not in free}
    return {key: value for key, value in flat.items() if (key, value) != ("evaluation.baselines", False)}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the keys that differ between two config.toml files, with both values; None means a missing value."""
    old, new = decisive_settings(before), decisive_settings(now)
    return {key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
