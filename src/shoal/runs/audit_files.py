"""The files of an audit.

audit.json   the figures, under flat keys; see `Audit.flat`
audit.csv    a row for each attack on all records, on each group and on each model, and for each client
scores.csv   the scores that all figures are computed from: a score file
references/  the scores of each reference federation
audit.html   all of it, to look at
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.audit.audit import Audit
from shoal.audit.gate import Gate
from shoal.audit.reference_records import AuditRecords
from shoal.audit.score_file import write_scores
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, require
from shoal.core.representation import one_line


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
