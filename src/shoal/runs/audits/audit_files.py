"""The files of an audit; score files, of any framework.

audit.json   the figures, under flat keys; see `Audit.flat`
audit.csv    a row for each attack on all records, on each group and on each model, and for each client
scores.csv   the scores that all figures are computed from: a score file
references/  the scores of each reference federation
audit.html   all of it, to look at

A score file has membership scores of records on an attacked model and on reference models, as a CSV table. Columns:
``record, client, group, member, score``, and for each reference model i ``score_ref_i, member_ref_i``. Scores are
logit-scaled confidences log(p / (1 - p)), members are 1 and others 0. ``model`` says which of several attacked models
gave the score; without it there is one. A row without a client is of the population: no model trained on it. ``pair``
names the pair of a client's member and a non-member in its place, where records were drawn so.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shoal.attacks import Population, ReferenceScores
from shoal.audit.audit import Audit, Gate
from shoal.audit.reference_records import AuditRecords
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, require
from shoal.core.representation import one_line
from shoal.data.names import EVERYBODY, require_unambiguous

COLUMNS = ("record", "client", "group", "member", "score")
"""Those that every score file has."""

_TEXT = ("record", "client", "group")
_TRUE, _FALSE = ("1", "1.0", "true", "True"), ("0", "0.0", "false", "False")


@dataclass(frozen=True, eq=False)
class AuditFiles:
    """An audit that was written.

    Args:
        audit: what attackers find.
        flat: the keys and values of audit.json.
        page: the path of audit.html.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import pandas as pd
        >>> import shoal
        >>> table = pd.DataFrame({"record": range(40), "client": "a", "group": "all", "member": [1, 0] * 20})
        >>> table["score"] = 2.0 * table["member"]
        >>> with TemporaryDirectory() as folder:
        ...     table.to_csv(Path(folder, "scores.csv"), index=False)
        ...     found = shoal.audit_scores(Path(folder, "scores.csv"))
        ...     found.page.exists(), found.flat == found.audit.flat()
        ...
        (True, True)
    """

    audit: Audit
    flat: Mapping[str, float | str]
    page: Path
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class AboutAudited:
    """What an audit's files say of what was audited, beside what attackers find.

    Args:
        title: of the page.
        stated: "epsilon" and "delta" that the run states, where it does.
        seconds: wall times, by key of audit.json.
        pictures: images (channels, height, width) uint8 of some records, by their names.
        kind: what a record is, in the plural.
        gates: limits on the figures, of which the page says whether they hold.
        run: directory of the run that was audited; None: none.
        rounds: of the training that made the attacked models; None: unknown.
    """

    title: str
    stated: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    pictures: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    kind: str = "examples"
    gates: Sequence[Gate] = ()
    run: Path | None = None
    rounds: int | None = None
    __repr__ = one_line


def make_directory(out: Path) -> None:
    """Make the directory of an audit, before anything is trained for it.

    Raises:
        InputError: it cannot be made or written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    require(os.access(out, os.W_OK), f"{out}: cannot be written; choose another --out")


def write_audit(out: Path, audit: Audit, about: AboutAudited, records: AuditRecords | None = None) -> AuditFiles:
    """Write the files of an audit into ``out``, which is made where it is missing; each whole or not at all.

    Args:
        out: the directory; files of an earlier audit in it are replaced.
        audit: what attackers find.
        about: what was audited.
        records: whose scores are written too; None: they are in a score file already.

    Raises:
        InputError: ``out`` cannot be written.
    """
    # Here, so that what writes no page does not load matplotlib and jinja2.
    from shoal.reports.audit.audit_page import audit_page  # noqa: PLC0415

    flat = {**audit.flat(), **about.stated, **about.seconds}
    flat |= {} if about.rounds is None else {"rounds": about.rounds}
    report = None if about.run is None else about.run / "report.html"
    page = audit_page(
        audit,
        title=about.title,
        stated=about.stated,
        pictures=about.pictures,
        kind_of_data=about.kind,
        gates=[each.judged(flat) for each in about.gates],
        run=None if report is None or not report.exists() else Path(os.path.relpath(report, out)).as_posix(),
    )
    try:
        make_directory(out)
        if records is not None:
            write_scores(out / "scores.csv", records)
        write_text(out / "audit.csv", audit.attacks.to_csv(index=False))
        write_text(out / "audit.json", json.dumps(flat, indent=2, allow_nan=False) + "\n")
        write_text(out / "audit.html", page)
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    return AuditFiles(audit, flat, out / "audit.html")


def read_scores(path: Path) -> AuditRecords:
    """The records of a score file.

    Raises:
        InputError: it cannot be read, lacks a column, or has a cell that cannot be used; the sentence names its line.
    """
    try:
        # Empty lines are kept until lines are counted, since sentences name them.
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig", skip_blank_lines=False)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, pd.errors.ParserError) as error:
        raise InputError(f"{path}: is no table: {' '.join(str(error).split())}") from error
    missing = [name for name in COLUMNS if name not in frame]
    require(not missing, f"{path}: has no column {', '.join(missing)}; a score file has {', '.join(COLUMNS)}")
    frame = frame[(frame.fillna("") != "").any(axis=1)]
    numbers = {which: _references(path, frame, which) for which in ("score_ref", "member_ref")}
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
        model = _models(path, frame)
    _require_groups(path, frame["group"][of_client])
    _require_one_membership(path, frame, member, model)
    inside, trained = ~of_client, member | reference_member.any(axis=1)
    wrong = np.flatnonzero(inside & trained)
    require(
        len(wrong) == 0,
        f"{path}, line {_line(frame, wrong)}: has no client, so no model can have trained on it; member and "
        "member_ref_i must be 0",
    )
    require(bool(member.any()), f"{path}: has no member (member = 1) of a client; an attack is measured on both kinds")
    require(
        bool((of_client & ~member).any()),
        f"{path}: has no non-member (member = 0) of a client; an attack is measured on both kinds",
    )
    population = Population(score[inside], reference[inside], model[inside]) if inside.any() else None
    pair = _pairs(path, frame[of_client], member[of_client]) if "pair" in frame else None
    scores = ReferenceScores(
        score[of_client],
        member[of_client],
        reference[of_client],
        reference_member[of_client],
        model[of_client],
        population,
    )
    return AuditRecords(scores, *(frame[name].to_numpy(dtype=object)[of_client] for name in _TEXT), pair=pair)


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
            **({} if records.pair is None else {"pair": records.pair.astype(str)}),
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
                **({} if records.pair is None else {"pair": ""}),
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


def _references(path: Path, frame: pd.DataFrame, which: str) -> set[int]:
    """The numbers i of the columns ``which``_i."""
    numbers = set()
    for name in (str(each) for each in frame if str(each).startswith(f"{which}_")):
        found = re.fullmatch(rf"{which}_(0|[1-9][0-9]*)", name)
        require(found is not None, f"{path}: the column '{name}' must end in a reference model's number, as {which}_1")
        assert found is not None
        numbers.add(int(found[1]))
    return numbers


def _line(frame: pd.DataFrame, wrong: NDArray[np.int64]) -> int:
    """The line in the file of the first of the rows ``wrong``; the header is line 1."""
    return int(frame.index.to_numpy()[wrong[0]]) + 2 if len(wrong) else 0


def _models(path: Path, frame: pd.DataFrame) -> NDArray[np.int64]:
    """(M,) numbers of the attacked models."""
    given = _numbers(path, frame, ["model"])[:, 0]
    wrong = np.flatnonzero((given % 1 != 0) | (given < 0) | (given >= 2**53))
    cell = frame["model"].iloc[wrong[0]] if len(wrong) else ""
    require(
        len(wrong) == 0, f"{path}, line {_line(frame, wrong)}: 'model' must be a whole number, at least 0; got {cell!r}"
    )
    return given.astype(np.int64)


def _pairs(path: Path, frame: pd.DataFrame, member: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(M,) numbers of the pairs; each must have a member and a non-member of one client."""
    number, names = pd.factorize(frame["pair"])
    sizes = [np.bincount(number[which], minlength=len(names)) for which in (member, ~member)]
    clients = frame["client"].groupby(frame["pair"]).nunique()
    wrong = np.flatnonzero((sizes[0] != 1) | (sizes[1] != 1) | (clients.reindex(names).to_numpy() != 1))
    rows = np.flatnonzero(number == wrong[0]) if len(wrong) else wrong
    require(
        len(wrong) == 0,
        f"{path}, line {_line(frame, rows)}: the pair {names[wrong[0]] if len(wrong) else ''!r} must be a member and a "
        f"non-member of one client; got {len(rows)} record{'' if len(rows) == 1 else 's'}"
        f"{f' of which {int(member[rows].sum())} are members' if len(rows) else ''}",
    )
    return number.astype(np.int64)


def _require_groups(path: Path, groups: pd.Series) -> None:
    """Raise `InputError` where a record has no group, or a group cannot be told from all of them."""
    wrong = np.flatnonzero((groups == "").to_numpy())
    require(
        len(wrong) == 0,
        f"{path}, line {_line(groups.to_frame(), wrong)}: 'group' is empty; name the client's group, or call the only "
        f"one '{EVERYBODY}'",
    )
    try:
        require_unambiguous(set(groups))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _require_one_membership(
    path: Path, frame: pd.DataFrame, member: NDArray[np.bool_], model: NDArray[np.int64]
) -> None:
    """Raise `InputError` where a model both trained and did not train on a record, by its and its client's name."""
    kinds = frame[["client", "record"]].assign(model=model, member=member).drop_duplicates()
    wrong = np.flatnonzero(kinds.duplicated(["client", "record", "model"]).to_numpy())
    record = kinds["record"].iloc[wrong[0]] if len(wrong) else ""
    require(
        len(wrong) == 0,
        f"{path}, line {_line(kinds, wrong)}: the record '{record}' is a member and a non-member of one model; it must "
        "be one of them, and different records of a client must have different names",
    )


def _numbers(path: Path, frame: pd.DataFrame, columns: list[str]) -> NDArray[np.float64]:
    """(M, len(columns)) finite numbers."""
    values = np.empty((len(frame), len(columns)))
    for i, name in enumerate(columns):
        values[:, i] = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=float)
        wrong = np.flatnonzero(~np.isfinite(values[:, i]))
        if len(wrong):
            cell = frame[name].iloc[wrong[0]]
            raise InputError(f"{path}, line {_line(frame, wrong)}: '{name}' must be a finite number; got {cell!r}")
    return values


def _flags(path: Path, frame: pd.DataFrame, columns: list[str]) -> NDArray[np.bool_]:
    """(M, len(columns)) whether a record was trained on."""
    values = np.zeros((len(frame), len(columns)), dtype=bool)
    for i, name in enumerate(columns):
        cells = frame[name]
        values[:, i] = cells.isin(_TRUE).to_numpy()
        wrong = np.flatnonzero(~cells.isin((*_TRUE, *_FALSE)).to_numpy())
        if len(wrong):
            cell = cells.iloc[wrong[0]]
            raise InputError(f"{path}, line {_line(frame, wrong)}: '{name}' must be 0 or 1; got {cell!r}")
    return values
