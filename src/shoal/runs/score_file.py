"""Score files: membership scores of records on an attacked model and on reference models, as a CSV table.

Columns: ``record, client, group, member, score``, and for each reference model i ``score_ref_i, member_ref_i``. Scores
are logit-scaled confidences log(p / (1 - p)), members are 1 and others 0. ``model`` says which of several attacked
models gave the score; without it there is one. A row without a client is of the population: no model trained on it.
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shoal.attacks import Population, ReferenceScores
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, require
from shoal.simulation.attacked_records import AuditRecords

COLUMNS = ("record", "client", "group", "member", "score")
"""Those that every score file has."""

_TEXT = ("record", "client", "group")
_TRUE, _FALSE = ("1", "1.0", "true", "True"), ("0", "0.0", "false", "False")


def read_scores(path: Path) -> AuditRecords:
    """The records of a score file.

    Raises:
        InputError: it cannot be read, lacks a column, or has a cell that cannot be used; the sentence names its line.
    """
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, pd.errors.ParserError) as error:
        raise InputError(f"{path}: is no table: {' '.join(str(error).split())}") from error
    missing = [name for name in COLUMNS if name not in frame]
    require(not missing, f"{path}: has no column {', '.join(missing)}; a score file has {', '.join(COLUMNS)}")
    numbers = {which: _references(frame, which) for which in ("score_ref", "member_ref")}
    alone = sorted(numbers["score_ref"] ^ numbers["member_ref"])
    require(
        not alone,
        f"{path}: reference model {alone[0] if alone else ''} has only one of the columns score_ref_i and member_ref_i",
    )
    references = sorted(numbers["score_ref"])
    of_client = frame["client"].to_numpy() != ""
    score = _numbers(path, frame, ["score"])[:, 0]
    reference = _numbers(path, frame, [f"score_ref_{i}" for i in references])
    member = _flags(path, frame, ["member"])[:, 0]
    reference_member = _flags(path, frame, [f"member_ref_{i}" for i in references])
    model = np.zeros(len(frame), dtype=np.int64)
    if "model" in frame:
        model = _numbers(path, frame, ["model"])[:, 0].astype(np.int64)
    inside, trained = ~of_client, member | reference_member.any(axis=1)
    wrong = np.flatnonzero(inside & trained)
    require(
        len(wrong) == 0,
        f"{path}, line {wrong[:1].sum() + 2}: has no client, so no model can have trained on it; member and "
        "member_ref_i must be 0",
    )
    require(bool(member.any()), f"{path}: has no member (member = 1) of a client; an attack is measured on both kinds")
    require(
        bool((of_client & ~member).any()),
        f"{path}: has no non-member (member = 0) of a client; an attack is measured on both kinds",
    )
    population = Population(score[inside], reference[inside], model[inside]) if inside.any() else None
    scores = ReferenceScores(
        score[of_client],
        member[of_client],
        reference[of_client],
        reference_member[of_client],
        model[of_client],
        population,
    )
    return AuditRecords(scores, *(frame[name].to_numpy(dtype=object)[of_client] for name in _TEXT))


def write_scores(path: Path, records: AuditRecords) -> None:
    """Write a score file of ``records``, which `read_scores` reads back, whole or not at all."""
    scores, population = records.scores, records.scores.population
    frame = pd.DataFrame(
        {
            "record": records.record,
            "client": records.client,
            "group": records.group,
            "member": scores.member.astype(int),
            "score": scores.score,
            "model": scores.model,
            **_reference_columns(scores.reference, scores.reference_member),
        }
    )
    if population is not None:
        nobody = np.zeros(population.reference.shape, dtype=bool)
        more = pd.DataFrame(
            {
                "record": [f"population-{i}" for i in range(len(population.score))],
                "client": "",
                "group": "",
                "member": 0,
                "score": population.score,
                "model": population.model,
                **_reference_columns(population.reference, nobody),
            }
        )
        frame = pd.concat([frame, more], ignore_index=True)
    write_text(path, frame.to_csv(index=False))


def _reference_columns(score: NDArray[np.float64], member: NDArray[np.bool_]) -> dict[str, NDArray]:
    columns: dict[str, NDArray] = {}
    for i in range(score.shape[1]):
        columns |= {f"score_ref_{i}": score[:, i], f"member_ref_{i}": member[:, i].astype(int)}
    return columns


def _references(frame: pd.DataFrame, which: str) -> set[int]:
    """The numbers i of the columns ``which``_i."""
    found = (re.fullmatch(rf"{which}_(\d+)", str(name)) for name in frame)
    return {int(each[1]) for each in found if each}


def _numbers(path: Path, frame: pd.DataFrame, columns: list[str]) -> NDArray[np.float64]:
    """(M, len(columns)) finite numbers."""
    values = np.empty((len(frame), len(columns)))
    for i, name in enumerate(columns):
        values[:, i] = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=float)
        wrong = np.flatnonzero(~np.isfinite(values[:, i]))
        if len(wrong):
            line, cell = wrong[0] + 2, frame[name].iloc[wrong[0]]
            raise InputError(f"{path}, line {line}: '{name}' must be a finite number; got {cell!r}")
    return values


def _flags(path: Path, frame: pd.DataFrame, columns: list[str]) -> NDArray[np.bool_]:
    """(M, len(columns)) whether a record was trained on."""
    values = np.zeros((len(frame), len(columns)), dtype=bool)
    for i, name in enumerate(columns):
        cells = frame[name]
        values[:, i] = cells.isin(_TRUE).to_numpy()
        wrong = np.flatnonzero(~cells.isin((*_TRUE, *_FALSE)).to_numpy())
        if len(wrong):
            raise InputError(f"{path}, line {wrong[0] + 2}: '{name}' must be 0 or 1; got {cells.iloc[wrong[0]]!r}")
    return values
