"""The tables of an audit's page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

import pandas as pd

from shoal.audit.records import SERVER
from shoal.audit.update_audit import OTHERS
from shoal.core.formats import DASH, count, decimal
from shoal.reports.audit.findings import FALSE_POSITIVE_RATES, Finding, measured
from shoal.reports.estimate import Estimate

MOST_ROWS = 20
"""The most groups, models, clients and records that are listed."""


@dataclass(frozen=True)
class Cell:
    """A cell: its text, in small type below it what belongs to it, and whether it is a number."""

    text: str
    small: str = ""
    number: bool = False


@dataclass(frozen=True)
class Row:
    """The cells of a row, and whether they are in bold."""

    cells: tuple[Cell, ...]
    strong: bool = False


@dataclass(frozen=True)
class Section:
    """Rows under a heading of their own; an empty heading is not shown."""

    heading: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Listing:
    """Sections of rows under column heads, each with what it says in small type and whether it heads numbers."""

    heads: tuple[tuple[str, str, bool], ...]
    sections: tuple[Section, ...]
    note: str


_METRICS = (
    ("AUC", "guessing: 0.500", True),
    ("balanced accuracy", "guessing: 0.500", True),
    ("TPR at 1 % FPR", "guessing: 1.0 %", True),
    ("TPR at 0.1 % FPR", "guessing: 0.1 %", True),
)


def by_group(groups: Mapping[str, Sequence[Finding]], left_out: int = 0) -> Listing:
    """Every attack on each group, the most exposed group first, the attack that decides of each first and in bold.

    ``left_out`` groups are without records of both kinds.
    """
    exposed = [each.name for each in measured(groups.values())]
    shown = [*exposed, *(name for name in groups if name not in exposed)][:MOST_ROWS]
    sections = []
    for name in shown:
        found = groups[name]
        rows = tuple(
            Row((Cell(each.head, each.attacker), *_metrics(each)), strong=i == 0 and each.accuracy.known)
            for i, each in enumerate(found)
        )
        whose = f"{count(found[0].members)} members, {count(found[0].non_members)} non-members"
        sections.append(Section(f"{name}: {whose}", rows))
    sentences = ["Below each figure its 95 % interval; in bold the attack that decides."]
    if any(each.attacker == SERVER for name in shown for each in groups[name]):
        sentences.append(
            "The server's attacks: non-members are weighted to the groups and labels of each client's members; members "
            "without such non-members are left out."
        )
    if any(each.attack.endswith(OTHERS) for name in shown for each in groups[name]):
        sentences.append("Other clients: their examples are the non-members, not records that nobody trained on.")
    sentences += _why_no_rate([each for name in shown for each in groups[name]])
    if left_out > 0:
        sentences.append(f"Without records of both kinds, and so left out: {left_out:,} of the groups.")
    if len(shown) < len(groups):
        sentences.append(f"Of {len(groups):,} groups these are the {len(shown)} most exposed; all are in audit.csv.")
    return Listing((("attack", "by attacker", False), *_METRICS), tuple(sections), " ".join(sentences))


def _why_no_rate(found: Sequence[Finding]) -> list[str]:
    """For each false positive rate, why a true positive rate is missing somewhere."""
    sentences = []
    for rate in FALSE_POSITIVE_RATES:
        missing = [each for each in found if not each.tpr[rate].known]
        if missing:
            fewest = min(missing, key=lambda each: each.non_members)
            sentences.append(f"A dash at {100 * rate:g} % FPR: {fewest.why_no_tpr(rate)}.")
    return sentences


def by_model(models: Mapping[str, Sequence[Finding]]) -> Listing | None:
    """The attack that decides on each attacked model, the most exposed first; None where there is only one model."""
    listed = measured(models.values())[:MOST_ROWS]
    if len(models) < 2 or not listed:
        return None
    rows = tuple(
        Row(
            (Cell(f"model {each.name}"), Cell(each.head), _accuracy(each), _rate(each.tpr[0.01]), *_counts(each)),
        )
        for each in listed
    )
    heads = (("model", "", False), ("attack that decides", "", False), *_METRICS[1:3], *_COUNTS)
    left_out = f" Of {len(models):,} models these are the {len(rows)} most exposed; all are in audit.csv."
    note = "The members of a model are the attacked records whose clients trained it."
    return Listing(heads, (Section("", rows),), note + left_out * (len(rows) < len(models)))


def by_client(clients: Mapping[str, Sequence[Finding]], records: pd.DataFrame) -> Listing | None:
    """The clients whose intervals begin highest; None where no client has records of both kinds.

    Args:
        clients: the findings on each, of the attack that decides.
        records: `Audit.records`, which has the group of each client.
    """
    known = [each for each in measured(clients.values()) if not isnan(each.accuracy.low)]
    if not known:
        return None
    # By the lower end: of many clients with few records each, some have a high figure by chance.
    listed = sorted(known, key=lambda each: -each.accuracy.low)[:MOST_ROWS]
    group = dict(zip(records["client"].astype(str), records["group"].astype(str), strict=True))
    rows = tuple(
        Row((Cell(each.name), Cell(group.get(each.name, DASH)), Cell(each.head), _accuracy(each), *_counts(each)))
        for each in listed
    )
    above = sum(each.accuracy.low > 0.5 for each in known)
    which = f"Of {len(known):,} clients with records of both kinds, the {len(rows)} whose 95 % interval begins highest"
    if len(rows) == len(known):
        which = "The clients with records of both kinds, by where their 95 % interval begins"
    chance = "by chance alone it would for about 1 in 40"
    note = f"{which}. It begins above 0.5 for {above:,} of all {len(known):,}; {chance}."
    heads = (("client", "", False), ("group", "", False), ("attack that decides", "", False), _METRICS[1], *_COUNTS)
    return Listing(heads, (Section("", rows),), note)


def of_records(records: pd.DataFrame) -> Listing:
    """A row for each of ``records``, which has the columns of `Audit.records`."""
    rows = tuple(
        Row(
            (
                Cell(str(each["record"])),
                Cell(str(each["client"])),
                Cell(str(each["group"])),
                Cell("yes" if each["member"] else "no"),
                Cell(exposure_text(each["exposure"]), at_least(each["exposure.low"]), number=True),
                Cell(f"{each['score']:.3f}".replace("-", "\N{MINUS SIGN}"), number=True),
            )
        )
        for each in records.to_dict("records")
    )
    words = [(head, "", False) for head in ("record", "client", "group", "member")]
    return Listing((*words, ("exposure", "", True), ("score", "", True)), (Section("", rows),), "")


def exposure_text(exposure: float) -> str:
    """The exposure of a record; a dash where it is unknown."""
    return DASH if isnan(exposure) else decimal(exposure)


def at_least(low: float) -> str:
    """The lower end of a record's exposure; empty where it is unknown."""
    return "" if isnan(low) else f"at least {decimal(low)}"


_COUNTS = (("members", "", True), ("non-members", "", True))


def _metrics(finding: Finding) -> tuple[Cell, ...]:
    auc = Cell(finding.auc.text, finding.auc.interval, number=True)
    return (auc, _accuracy(finding), *(_rate(each) for each in finding.tpr.values()))


def _accuracy(finding: Finding) -> Cell:
    return Cell(finding.accuracy.text, finding.accuracy.interval, number=True)


def _rate(tpr: Estimate) -> Cell:
    return Cell(tpr.percent, tpr.percent_interval, number=True)


def _counts(finding: Finding) -> tuple[Cell, ...]:
    return Cell(count(finding.members), number=True), Cell(count(finding.non_members), number=True)
