"""The files of a run, read back and checked, and hashes.json: SHA-256 of its examples and files.

In hashes.json ``examples`` is `shoal.data.fingerprint` of the federation: every input, label, group and limit, and who
has which. A finished run has ``files`` too: the hash of each file that later steps read, by its path in the run
directory. That of config.toml is of the keys that decide the result; where the data are is none of them, so they may
move. A checkpoint has a hash of its own in its name.
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

NEEDED = ("algorithm", "dataset", "seed", "rounds", "accuracy.overall", "violations.total", "migrated", "seconds.total")
"""Keys that every summary has."""

TEXT_COLUMNS = ("group", "non_members", "attack", "name", "view", "method")
"""Columns of text; all others hold numbers."""

FROZEN = "frozen"
"""In models.safetensors, in the place of a cluster's number, of tensors that all models share."""

HASHES = "hashes.json"

_UNHASHED = (
    "report.html",
    "run.log",
    "audit.json",
    "audit.csv",
    "audit.html",
    "scores.csv",
    "card.json",
    "card.html",
    HASHES,
)
"""Files that are written or grow after a run, or that no later step reads."""

COMPLETE = ("round", "cluster", "clients", "present", "group", "non_members")
"""Columns without gaps."""


def read_run(out: Path) -> FlatSummary:
    """The summary of a finished run, as the flat keys of its file.

    Raises:
        InputError: ``out`` is not the directory of a finished run.
    """
    path = out / "summary.json"
    if (out / "config.toml").exists():
        instead = "finish it with shoal run --resume"
    elif (out / "sweep.toml").exists():
        instead = "it is a sweep, whose runs are in its folder 'runs'"
    else:
        instead = "name the directory of a run" if out.exists() else "there is no such directory"
        instead = "it is a file; name the directory of a run" if out.is_file() else instead
    require(path.exists(), f"{out}: is not a finished run (no summary.json); {instead}")
    try:
        flat = read_json(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    require(isinstance(flat, dict), f"{path}: is damaged: it must hold numbers under flat keys")
    missing = [key for key in NEEDED if key not in flat]
    require(not missing, f"{path}: is damaged: {', '.join(missing)} missing")
    numbers = [value for key, value in flat.items() if key not in TEXT_KEYS]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers)
    require(numeric and isinstance(flat["algorithm"], str), f"{path}: is damaged: it must hold numbers under flat keys")
    return flat


def read_summary(out: Path) -> Summary:
    """The summary of a finished run.

    Raises:
        InputError: ``out`` is not the directory of a finished run.
    """
    return parse_summary(read_run(out))


def read_table(path: Path, columns: Sequence[str], *, empty: bool = False) -> pd.DataFrame:
    """A CSV file of a run, with these ``columns`` at least; only an ``empty`` one may be without rows. Only an empty
    cell is NaN: a group may be called "NA".

    Raises:
        InputError: the file is missing or damaged.
    """
    with file_errors(path, damage=(ValueError,)):
        require_small_csv(path)
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=dict.fromkeys(TEXT_COLUMNS, str))
        frame = from_cells(frame, TEXT_COLUMNS)
    missing = [name for name in columns if name not in frame]
    require(not missing, f"{path}: is damaged: no {', '.join(missing)} among its columns")
    numeric = [str(name) for name in frame if name not in TEXT_COLUMNS]
    if empty and len(frame) == 0:
        return frame.astype(dict.fromkeys(numeric, float))
    strange = [name for name in numeric if not pd.api.types.is_numeric_dtype(frame[name])]
    require(not strange, f"{path}: is damaged: not only numbers in its columns {', '.join(strange)}")
    gaps = [name for name in COMPLETE if name in frame and frame[name].isna().any()]
    require(not gaps, f"{path}: is damaged: gaps in its columns {', '.join(gaps)}")
    require(len(frame) > 0, f"{path}: is damaged: it has no rows")
    return frame


def read_warnings(path: Path) -> tuple[str, ...]:
    """The warnings in the log of a run, each once; none where there is no log."""
    if not path.exists():
        return ()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    matches = (re.fullmatch(r"(?:\S+ \S+ \d+ )?WARNING (.+)", line) for line in lines)
    return tuple(dict.fromkeys(match[1] for match in matches if match is not None))


def read_samples(path: Path) -> dict[str, NDArray[Any]]:
    """The images (B, channels, height, width) of samples.safetensors, by group.

    Raises:
        InputError: the file is missing or damaged.
    """
    require(path.exists(), f"{path}: is missing")
    with file_errors(path, damage=(OSError, SafetensorError)):
        return {group: images for group, images in load_file(path).items() if images.ndim == 4}


def read_models(path: Path) -> tuple[dict[int, dict[str, Tensor]], tuple[str, ...]]:
    """The tensors of models.safetensors by cluster and name, and the names of those that are frozen.

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
    require(sorted(models) == list(range(len(models))) and bool(models), f"{path}: is damaged: it lacks a model")
    return {k: frozen | tensors for k, tensors in sorted(models.items())}, tuple(frozen)


def write_hashes(out: Path, examples: str, summary: str | None = None) -> None:
    """Write hashes.json: of a run that has begun, or, with the text of its summary.json, of one that is finished."""
    about: dict[str, Any] = {"examples": examples}
    if summary is not None:
        there = [path for folder in (out, out / FOLDER) if folder.is_dir() for path in sorted(folder.iterdir())]
        named = {str(path.relative_to(out)): path for path in there if path.is_file() and path.name not in _UNHASHED}
        hashes = {name: _hash(path) for name, path in named.items() if not path.name.startswith(".")}
        about["files"] = hashes | {"summary.json": hashlib.sha256(summary.encode()).hexdigest()}
    write_text(out / HASHES, json.dumps(about, indent=2) + "\n")


def stored_examples(out: Path) -> str:
    """The hash of the examples that the run in ``out`` was begun with; "" where it has none."""
    return _read_hashes(out)["examples"]


def stored_files(out: Path) -> Mapping[str, str]:
    """The hashes of the files of the finished run in ``out``, by path; none where it has no hashes."""
    return _read_hashes(out).get("files", {})


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
    require((out / HASHES).exists(), f"{out}: has no {HASHES}, the hashes of its examples and files; run it anew")
    for name, expected in stored_files(out).items():
        path = out / name
        require(path.exists(), f"{path}: is missing; restore it, or run in another directory")
        require(
            _hash(path) == expected,
            f"{path}: has changed since the run was finished; restore it, or run in another directory",
        )


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
    require(valid, f"{out / HASHES}: is damaged: it must hold 'examples' and 'files'")
    return about


def _hash(path: Path) -> str:
    if path.name == "config.toml":
        settings = decisive_settings(read_toml(path))
        settings.pop("data.path", None)
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def decisive_settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config.toml by dotted key, but for the keys that change no result.

    A run without baselines is one whose file does not speak of them.
    """
    free = (
        "engine.threads", "record.max_megabytes", "checkpoint.every", "simulation.unnamed", "evaluation.min_clients",
    )  # fmt: skip
    flat = {key: value for key, value in _flat(table, "") if key not in free}
    return {key: value for key, value in flat.items() if (key, value) != ("evaluation.baselines", False)}


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
