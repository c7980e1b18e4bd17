"""The tables of an audit's page."""

from collections.abc import Mapping, Sequence
from math import isnan, nan

import pandas as pd

from shoal.attacks import Stack
from shoal.audit.finding import FALSE_POSITIVE_RATES, Estimate, Finding, attack_head, most_exposed
from shoal.audit.record_table import AGAINST_CLIENTS, SERVER
from shoal.core.formats import DASH, count, decimal
from shoal.reports.table import Cell, Column, ReportTable, TableRow, heads, row

MOST_ROWS = 20
"""The most groups, models, clients and records that are listed."""

GUESSED: Mapping[str, str] = {
    "source-inference": "whose a record is, among all clients",
    "source-inference-in-cluster": "whose a record is, among the clients of its cluster",
    "group-inference": "which group a client is of, from its last cluster",
    "cluster-identity": "which group a client is of, from its clusters in all recorded rounds",
    "preference-inference": "whether a client is of the stricter half of its group, from its clusters in all recorded "
    "rounds",
}
"""What the server guesses beside membership, by the keys in audit.json; in the order of the table."""

_ACCURACY = Column("balanced accuracy", "chance: 0.500")
_RATE = Column("TPR at 1 % FPR", "chance: 1.0 %")
_METRICS = (Column("AUC", "chance: 0.500"), _ACCURACY, _RATE, Column("TPR at 0.1 % FPR", "chance: 0.1 %"))
_COUNTS = (Column("members"), Column("non-members"))


def attacks_by_group(groups: Mapping[str, Sequence[Finding]], left_out: int = 0) -> ReportTable:
    """Every attack on each group, the most exposed group first, the attack that decides of each first and in bold.

    ``left_out`` groups are without records of both kinds.
    """
    exposed = [finding.group for finding in most_exposed(attempts[0] for attempts in groups.values())]
    shown = [*exposed, *(name for name in groups if name not in exposed)][:MOST_ROWS]
    rows = list[TableRow]()
    for name in shown:
        first, *weaker = groups[name]
        heading = f"{name}: {count(first.members)} members, {count(first.non_members)} non-members"
        rows += [row(heading, style="of"), _attack(first, "strong" if first.accuracy.known else "")]
        rows += [_attack(finding) for finding in weaker]
    listed = [finding for name in shown for finding in groups[name]]
    sentences = [
        "Below each figure its 95 % interval, which all groups and views keep at once; in bold the attack that decides."
    ]
    if any(finding.view == SERVER for finding in listed):
        sentences.append(
            "The server's attacks: non-members are weighted to the groups and labels of each client's members; members "
            "without such non-members are left out."
        )
    if any(finding.attack.endswith(AGAINST_CLIENTS) for finding in listed):
        sentences.append("Other clients: their examples are the non-members, not records that nobody trained on.")
    if any(is_stack(finding) for finding in listed):
        decides = [name for name in shown if is_stack(groups[name][0])]
        sentences.append(
            "A stack is one attacker with the scores of all attacks of a view, fitted on the reference models; "
            + (f"it decides on {', '.join(decides)}." if decides else "it is not certain to find more than its parts.")
        )
    for rate in FALSE_POSITIVE_RATES:
        missing = [finding for finding in listed if not finding.tpr[rate].known]
        if missing:
            fewest = min(missing, key=lambda finding: finding.non_members)
            sentences.append(f"A dash at {100 * rate:g} % FPR: {fewest.why_no_tpr(rate)}.")
    if left_out > 0:
        sentences.append(f"Without records of both kinds, and so left out: {left_out:,} of the groups.")
    if len(shown) < len(groups):
        sentences.append(f"Of {len(groups):,} groups these are the {len(shown)} most exposed; all are in audit.csv.")
    columns = (Column("attack", "by view", number=False), *_METRICS)
    return ReportTable(columns, tuple(rows), "Every attack, by group", note=" ".join(sentences))


def is_stack(finding: Finding) -> bool:
    """Whether a finding is of a `Stack`."""
    return finding.attack.split("-")[0] == Stack.name


def attacks_by_model(models: Mapping[str, Sequence[Finding]]) -> ReportTable | None:
    """The attack that decides on each attacked model, the most exposed first; None where there is only one model."""
    listed = most_exposed(attempts[0] for attempts in models.values())[:MOST_ROWS]
    if len(models) < 2 or not listed:
        return None
    rows = (
        row(
            f"model {finding.group}",
            finding.head,
            _value(finding.accuracy),
            _rate(finding.tpr[0.01]),
            *_counts(finding),
        )
        for finding in listed
    )
    columns = (*heads(("model", "attack that decides")), _ACCURACY, _RATE, *_COUNTS)
    note = "The members of a model are the attacked records whose clients trained it."
    left_out = f" Of {len(models):,} models these are the {len(listed)} most exposed; all are in audit.csv."
    return ReportTable(columns, tuple(rows), "By attacked model", note=note + left_out * (len(listed) < len(models)))


def exposed_clients(clients: Mapping[str, Sequence[Finding]], records: pd.DataFrame) -> ReportTable | None:
    """The clients whose intervals begin highest; None where no client has records of both kinds.

    Args:
        clients: the findings on each, of the attack that decides.
        records: `Audit.records`, which has the group of each client.
    """
    certain = [one for one in most_exposed(found[0] for found in clients.values()) if not isnan(one.accuracy.low)]
    if not certain:
        return None
    # By the lower end: of many clients with few records each, some have a high figure by chance.
    listed = sorted(certain, key=lambda finding: -finding.accuracy.low)[:MOST_ROWS]
    group = dict(zip(records["client"].astype(str), records["group"].astype(str), strict=True))
    rows = (
        row(finding.group, group.get(finding.group, DASH), finding.head, _value(finding.accuracy), *_counts(finding))
        for finding in listed
    )
    above = sum(finding.accuracy.low > 0.5 for finding in certain)
    selection = (
        f"Of {len(certain):,} clients with records of both kinds, the {len(listed)} whose 95 % interval begins highest"
    )
    if len(listed) == len(certain):
        selection = "The clients with records of both kinds, by where their 95 % interval begins"
    chance = "by chance alone it would for about 1 in 40"
    note = f"{selection}. It begins above 0.5 for {above:,} of all {len(certain):,}; {chance}."
    columns = (*heads(("client", "group", "attack that decides")), _ACCURACY, *_COUNTS)
    return ReportTable(columns, tuple(rows), "The most exposed clients", note=note)


def of_records(records: pd.DataFrame) -> ReportTable:
    """A row for each of ``records``, which has the columns of `Audit.records`."""
    rows = (
        row(
            *(str(record[name]) for name in ("record", "client", "group")),
            "yes" if record["member"] else "no",
            Cell(exposure_text(record["exposure"]), at_least(record["exposure.low"])),
            signed_number(record["score"]),
        )
        for record in records.to_dict("records")
    )
    return ReportTable(heads(("record", "client", "group", "member"), ("exposure", "score")), tuple(rows))


def guesses_table(guesses: Mapping[str, float]) -> ReportTable | None:
    """What the server guesses beside membership: ``guesses`` has the keys of `Audit.guesses`; None without any."""
    names = [name for name in GUESSED if f"{name}.accuracy" in guesses]
    if not names:
        return None
    rows = (
        row(
            attack_head(name),
            GUESSED[name],
            _value(Estimate.of(guesses, f"{name}.accuracy")),
            exposure_text(guesses.get(f"{name}.chance", nan)),
        )
        for name in names
    )
    note = "Below each accuracy its 95 % interval."
    if "cluster-identity" in names:
        note += (
            " Cluster identity: the groups of half of the clients are known; each round has a table of how often each "
            "group chose each cluster, and the groups of the others are guessed by all rounds together; balanced "
            "accuracy over groups."
        )
        if "cluster-identity.last_round" in guesses:
            last = decimal(guesses["cluster-identity.last_round"])
            note += f" From each client's last recorded round alone it would be {last}."
    if "preference-inference" in names:
        note += (
            " Preference inference: the halves of half of the clients are known, those of the others are guessed by "
            "all rounds together; stricter clients tolerate less risk. Every group has as many of both, so a client's "
            "group says nothing of its half."
        )
    columns = heads(("attack", "guesses"), ("accuracy", "chance"))
    return ReportTable(columns, tuple(rows), "What the server guesses beside membership", note=note)


def exposure_text(exposure: float) -> str:
    """The exposure of a record; a dash where it is unknown."""
    return DASH if isnan(exposure) else decimal(exposure)


def at_least(low: float) -> str:
    """The lower end of a record's exposure; empty where it is unknown."""
    return "" if isnan(low) else f"at least {decimal(low)}"


def signed_number(value: float) -> str:
    """A number of either sign; a dash where it is unknown."""
    return _minus(exposure_text(value))


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def _attack(finding: Finding, style: str = "") -> TableRow:
    rates = (_rate(rate) for rate in finding.tpr.values())
    return row(Cell(finding.head, finding.view), _value(finding.auc), _value(finding.accuracy), *rates, style=style)


def _value(estimate: Estimate) -> Cell:
    return Cell(_minus(estimate.text), _minus(estimate.interval))


def _rate(rate: Estimate) -> Cell:
    return Cell(rate.percent, rate.percent_interval)


def _counts(finding: Finding) -> tuple[str, str]:
    return count(finding.members), count(finding.non_members)
