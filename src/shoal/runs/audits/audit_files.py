"""The files of an audit, and the reader of score files; docs/files.md describes the formats."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shoal.attacks import Population, ReferenceAttack, ReferenceScores, UpdateAttack
from shoal.audit.attacked_records import AuditRecords
from shoal.audit.audit import Audit
from shoal.audit.finding import findings
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, file_errors, locate_errors, read_error, require
from shoal.core.foreign_files import require_small_csv
from shoal.core.formats import csv_text, from_cells, one_line
from shoal.data.names import EVERYBODY, require_unambiguous
from shoal.data.swap_pairs import Duplicates
from shoal.metrics.intervals import Bools, Floats, Ints
from shoal.runs.audits.gate import Gate

COLUMNS = ("record", "client", "group", "member", "score")
"""The columns of every score file."""

Attack = ReferenceAttack | UpdateAttack
"""A user's own attack in an audit."""

_TRUE, _FALSE = ("1", "1.0", "true", "True"), ("0", "0.0", "false", "False")


@dataclass(frozen=True, eq=False)
class AuditRequest:
    """The settings of an audit.

    Args:
        gates, attacks, references, duplicates, queries, site: see `shoal.audit_run`.
    """

    gates: Sequence[Gate] = ()
    attacks: Sequence[Attack] = ()
    references: int = 16
    duplicates: Duplicates | None = None
    queries: int = 1
    site: bool = False
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class AuditFiles:
    """An audit with its files."""

    audit: Audit
    flat: Mapping[str, Any]
    page: Path
    gates: Sequence[Gate] = ()
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class AboutAudited:
    """Facts about the audited run for the audit's files.

    Args:
        stated: the entries "epsilon", "delta" and "bound.*" of the run's summary; see `stated_guarantee`.
        seconds: wall times, by key of audit.json.
        pictures: images (channels, height, width) uint8, by record name.
        kind: a plural noun for records, such as "images".
        warnings: the warnings at the top of the audit's page.
    """

    title: str
    stated: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    pictures: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    kind: str = "examples"
    warnings: Sequence[str] = ()
    run: Path | None = None
    rounds: int | None = None
    __repr__ = one_line


def stated_guarantee(overall: Mapping[str, float]) -> dict[str, float]:
    """Return the differential-privacy entries of a run's summary."""
    return {key: value for key, value in overall.items() if key in {"epsilon", "delta"} or key.startswith("bound.")}


def make_directory(out: Path) -> None:
    """Make the directory of an audit.

    Raises:
        InputError: the directory cannot be written.
    """
    with file_errors(out, "; choose another --out", action="written"):
        out.mkdir(parents=True, exist_ok=True)
    require(os.access(out, os.W_OK), f"{out}: cannot be written; choose another --out")


def write_audit(
    out: Path, audit: Audit, about: AboutAudited, request: AuditRequest, records: AuditRecords | None = None
) -> AuditFiles:
    """Write the files of an audit into ``out``, replacing older files. Without ``records``, write no score file."""
    # Here, so that only pages load matplotlib and jinja2.
    from shoal.reports.audit.audit_page import audit_page  # noqa: PLC0415

    flat = {**audit.flat(), **about.stated, **about.seconds}
    flat |= {} if request.queries == 1 else {"queries": request.queries}
    flat |= {} if about.rounds is None else {"rounds": about.rounds}
    report = None if about.run is None else about.run / "report.html"
    page = audit_page(
        audit,
        title=about.title,
        stated=about.stated,
        pictures=about.pictures,
        kind_of_data=about.kind,
        warnings=about.warnings,
        gates=[gate.verdict(flat) for gate in request.gates],
        directory=about.run if report is not None and report.exists() else None,
        run=None if report is None or not report.exists() else Path(os.path.relpath(report, out)).as_posix(),
    )
    document = {**flat, "findings": [finding.json for finding in findings(audit.attacks)]}
    make_directory(out)
    with file_errors(out, "; choose another --out", action="written"):
        if records is not None:
            write_scores(out / "scores.csv", records)
        write_text(out / "audit.csv", csv_text(audit.attacks))
        write_text(out / "audit.json", json.dumps(document, indent=2, allow_nan=False) + "\n")
        write_text(out / "audit.html", page)
    return AuditFiles(audit, document, out / "audit.html", request.gates)


def write_scores(path: Path, records: AuditRecords) -> None:
    """Write a score file for `read_scores`."""
    scores, population = records.scores, records.scores.population
    names = {"record": records.record, "client": records.client, "group": records.group}
    pair = None if records.pair is None else records.pair.astype(str)
    frame = _frame(names, scores.member, scores, scores.reference_member, pair)
    if population is not None:
        member = np.zeros((len(population.score), 1 + scores.references), dtype=bool)
        names = {"record": [f"population-{i}" for i in range(len(member))], "client": "", "group": ""}
        more = _frame(names, member[:, 0], population, member[:, 1:], None if pair is None else "")
        frame = pd.concat([frame, more], ignore_index=True)
    write_text(path, csv_text(frame))


def _frame(
    names: Mapping[str, object],
    member: Bools,
    scores: ReferenceScores | Population,
    reference_member: Bools,
    pair: NDArray | str | None,
) -> pd.DataFrame:
    columns = {**names, "member": member.astype(int), "score": scores.score, "model": scores.model}
    columns |= {} if pair is None else {"pair": pair}
    for i in range(reference_member.shape[1]):
        columns |= {f"score_ref_{i}": scores.reference[:, i], f"member_ref_{i}": reference_member[:, i].astype(int)}
    return pd.DataFrame(columns)


def read_scores(path: Path) -> AuditRecords:
    """Read the records of a score file.

    Raises:
        InputError: the file cannot be read, lacks a column, or has an invalid cell.
    """
    try:
        require_small_csv(path)
        # Empty lines stay, so that sentences name the right line.
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig", skip_blank_lines=False)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {read_error(path, error)}") from error
    except (ValueError, pd.errors.ParserError) as error:
        raise InputError(f"{path}: is not a table: {' '.join(str(error).split())}") from error
    missing = [name for name in COLUMNS if name not in frame]
    require(not missing, f"{path}: lacks the column {', '.join(missing)}; a score file has {', '.join(COLUMNS)}")
    frame = from_cells(frame, ("record", "client", "group"))
    file = _ScoreFile(path, frame[(frame.fillna("") != "").any(axis=1)])
    scored, trained = file.references("score_ref"), file.references("member_ref")
    for i in sorted(scored ^ trained):
        raise InputError(f"{path}: reference model {i} needs both columns, score_ref_{i} and member_ref_{i}")
    owned = file.frame["client"].to_numpy() != ""
    score, member = file.numbers("score"), file.flags("member")
    reference = file.matrix([file.numbers(f"score_ref_{i}") for i in sorted(scored)])
    reference_member = file.matrix([file.flags(f"member_ref_{i}") for i in sorted(scored)]).astype(bool)
    model = file.models()
    file.check_names(owned, member, model)
    file.refuse(
        ~owned & (member | reference_member.any(axis=1)),
        "a record without a client cannot be a member; set member and every member_ref_i to 0",
    )
    for value, kind in ((1, "members"), (0, "non-members")):
        one = bool((owned & (member == value)).any())
        require(one, f"{path}: has no {kind} (member = {value}); an attack needs members and non-members")
    population = Population(score[~owned], reference[~owned], model[~owned]) if not owned.all() else None
    scores = ReferenceScores(score, member, reference, reference_member, model).take(owned)
    names = (file.frame[name].to_numpy(dtype=object)[owned] for name in ("record", "client", "group"))
    return AuditRecords(replace(scores, population=population), *names, pair=file.pairs(owned, member))


@dataclass(frozen=True, eq=False)
class _ScoreFile:
    """The cells of a score file, and methods that check the cells."""

    path: Path
    frame: pd.DataFrame

    def refuse(self, wrong: Bools, sentence: str, column: str = "") -> None:
        """Raise `InputError` for the first wrong row; ``{cell}`` in ``sentence`` stands for the wrong cell."""
        for row in np.flatnonzero(wrong)[:1]:
            cell = self.frame[column].iloc[row] if column else ""
            # The header is line 1.
            line = int(self.frame.index.to_numpy()[row]) + 2
            raise InputError(f"{self.path}, line {line}: {sentence.replace('{cell}', repr(cell))}")

    def references(self, kind: str) -> set[int]:
        """Return the numbers i of the columns ``kind``_i."""
        names = [str(name) for name in self.frame if str(name).startswith(f"{kind}_")]
        for name in names:
            fits = re.fullmatch(rf"{kind}_(0|[1-9][0-9]*)", name) is not None
            require(fits, f"{self.path}: the column '{name}' must end in a number, such as {kind}_1")
        return {int(name.removeprefix(f"{kind}_")) for name in names}

    def numbers(self, name: str) -> Floats:
        """Return a column (M,); raise `InputError` for values that are not finite."""
        values = pd.to_numeric(self.frame[name], errors="coerce").to_numpy(dtype=float)
        self.refuse(~np.isfinite(values), f"'{name}' must be a finite number (got {{cell}})", name)
        return values

    def flags(self, name: str) -> Bools:
        """Return a column of membership flags (M,)."""
        cells = self.frame[name]
        self.refuse(~cells.isin((*_TRUE, *_FALSE)).to_numpy(), f"'{name}' must be 0 or 1 (got {{cell}})", name)
        return cells.isin(_TRUE).to_numpy()

    def matrix(self, columns: list[NDArray]) -> NDArray:
        """Stack R columns into a matrix (M, R)."""
        return np.stack(columns, axis=1) if columns else np.empty((len(self.frame), 0))

    def models(self) -> Ints:
        """Return the number of each record's attacked model, (M,)."""
        if "model" not in self.frame:
            return np.zeros(len(self.frame), dtype=np.int64)
        values = self.numbers("model")
        wrong = (values % 1 != 0) | (values < 0) | (values >= 2**53)
        self.refuse(wrong, "'model' must be an integer of at least 0 (got {cell})", "model")
        return values.astype(np.int64)

    def check_names(self, owned: Bools, member: Bools, model: Ints) -> None:
        """Check that records have a group, and that no record is both a member and a non-member of the same model."""
        unnamed = owned & (self.frame["group"] == "").to_numpy()
        self.refuse(unnamed, f"'group' is empty; enter the client's group, or '{EVERYBODY}' if there are no groups")
        with locate_errors(self.path):
            require_unambiguous(set(self.frame["group"][owned]))
        kinds = self.frame[["client", "record"]].assign(model=model, member=member).drop_duplicates()
        twice = self.frame.index.isin(kinds.index[kinds.duplicated(["client", "record", "model"])])
        self.refuse(
            twice,
            "the record {cell} is a member and a non-member of the same model; remove one of the rows, or give "
            "different records different names",
            "record",
        )

    def pairs(self, owned: Bools, member: Bools) -> Ints | None:
        """Return each record's pair number; a pair has one member and one non-member of the same client."""
        if "pair" not in self.frame:
            return None
        pairs = self.frame.assign(inside=member)[owned].groupby("pair", sort=False)
        fits = (pairs["inside"].transform("sum") == 1) & (pairs["inside"].transform("size") == 2)
        fits &= pairs["client"].transform("nunique") == 1
        wrong = owned.copy()
        wrong[owned] = ~fits.to_numpy()
        self.refuse(wrong, "the pair {cell} must be one member and one non-member of the same client", "pair")
        return pairs.ngroup().to_numpy().astype(np.int64)
