"""The page of an audit: one self-contained, reproducible HTML file."""

from collections.abc import Callable, Mapping, Sequence
from math import inf, isinf, isnan, log, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from shoal.attacks import Stack
from shoal.audit.audit import Audit, wrong_sign
from shoal.audit.finding import (
    BY,
    FALSE_POSITIVE_RATES,
    Estimate,
    Finding,
    attack_head,
    every_attack,
    findings,
    most_exposed,
)
from shoal.audit.record_table import AGAINST_CLIENTS, SERVER
from shoal.core.formats import DASH, capitalize, count, decimal
from shoal.data.preferences import VIEWS
from shoal.reports.audit.audit_charts import (
    by_view,
    chance_exposure,
    drawn_groups,
    exposure_of_records,
)
from shoal.reports.exposure import (
    ATTACKERS,
    exposure_headlines,
    exposure_tile,
    limit_sentence,
    not_measured,
)
from shoal.reports.page import Picture, Section, findings_section, render, section_of
from shoal.reports.plotting import Figure, png
from shoal.reports.table import Cell, Column, ReportTable, TableRow, heads, metric_table, row

MOST_ROWS = 20
"""The largest number of listed groups, models, clients and records."""

GUESSED: Mapping[str, str] = {
    "source-inference": "which client owns a record",
    "source-inference-in-cluster": "which client of a cluster owns a record",
    "group-inference": "a client's group, from the client's last cluster",
    "cluster-identity": "a client's group, from the client's clusters in all recorded rounds",
    "preference-inference": "whether a client is in the stricter half of its group, from the client's clusters in all "
    "recorded rounds",
}
"""The server's guesses besides membership, by key in audit.json, in the order of the table."""

NOT_ASKED = (
    "Active attackers, who send manipulated updates or models to make members easier to recognise.",
    "Attackers with more or better reference models, which make attacks stronger.",
    "Attackers whose reference models lack a defence of the attacked models.",
    "Clients that share their received models, and attackers that keep the models of all rounds, unless listed above.",
    "Reconstruction of records, inference of their properties, and whether a client took part.",
)
"""Attackers and questions that no audit covers."""

_ACCURACY = Column("balanced accuracy", "chance: 0.500")
_RATE = Column("TPR at 1 % FPR", "chance: 0.010")
_METRICS = (Column("AUC", "chance: 0.500"), _ACCURACY, _RATE, Column("TPR at 0.1 % FPR", "chance: 0.001"))
_COUNTS = (Column("members"), Column("non-members"))


def audit_page(
    audit: Audit,
    *,
    title: str,
    stated: Mapping[str, float],
    pictures: Mapping[str, NDArray[np.uint8]],
    kind_of_data: str = "images",
    warnings: Sequence[str] = (),
    gates: Sequence[tuple[str, bool]] = (),
    run: str | None = None,
    directory: Path | None = None,
) -> str:
    """Render the page of an audit; values that were not measured are shown as dashes.

    Args:
        stated: the run's "epsilon", "delta" and "bound.*" of differential privacy, if known.
        pictures: images of records by the record's name, (channels, height, width) uint8.
        kind_of_data: the plural noun for records, such as "images".
        warnings: warnings at the top of the page, as sentences without a full stop.
        gates: for each limit set by the user, a sentence and whether the limit is met.
        run: the address of the run's page, or ``None`` if there is no such page.
        directory: the run's directory for suggested commands, or ``None`` if the run has no configuration.
    """
    found, by_name, everything = (
        findings(audit.attacks), every_attack(audit.attacks, "group"), every_attack(audit.attacks, "all")
    )  # fmt: skip
    # If no group could be measured, all records are one group.
    groups = {name: every for name, every in by_name.items() if every[0].accuracy.known} or everything
    records = audit.records
    grouped = records if set(groups) <= set(by_name) else records.assign(group=next(iter(groups), ""))
    drawn = exposure_of_records(grouped, drawn_groups(groups), audit.references)
    bounds = [limit_sentence(view, stated, [one.accuracy.value for one in found if one.view == view]) for view in VIEWS]
    lead: list[tuple[str, str]] = [("verdict" if holds else "verdict loud", sentence) for sentence, holds in gates]
    if run:
        link = Markup('<a href="{}">The report of the run</a>: its settings, accuracy and clients.')
        lead.append(("", link.format(run)))
    if exceeds_stated(audit, stated):
        lead.append(
            ("verdict loud", _CONTRADICTION.format(*map(_epsilon, (audit.empirical_epsilon, stated["epsilon"]))))
        )
    lead += [("", f"{bound}.") for bound in bounds if bound]
    lead += [("verdict loud", f"Check the scores: {wrong}.") for wrong in [*wrong_sign(audit.figures()).values()][:1]]
    lead += [("warning", f"{capitalize(warning)}.") for warning in warnings]
    scored_by = next((every[0].title for every in everything.values()), "the deciding attack")
    left_out = sum(not every[0].accuracy.known for every in by_name.values())
    omitted = [f"{attack_head(attack)}: {reason}." for attack, reason in audit.omitted.items()]
    missing = [f"{capitalize(BY[view])}: {why}" for view, why in not_measured(found, audit.omitted).items()]
    notes = [f"{note[0].upper()}{note[1:]}." for note in audit.notes]
    sections = (
        findings_section(found, by_view(found)),
        section_of("by-group", _attacks_by_group(groups, left_out), folded="with every metric"),
        section_of(
            "by-model",
            _most_exposed(
                every_attack(audit.attacks, "model"),
                "model",
                2,
                lambda one: one.accuracy.value,
                "The members of a model are the attacked records of clients that trained the model.",
            ),
            folded="by the deciding attack",
        ),
        section_of("by-client", _exposed_clients(every_attack(audit.attacks, "client")), folded="by lower end"),
        section_of("guesses", _guesses(audit.guesses), folded="clients and groups"),
        _exposed_records(audit, pictures, scored_by, drawn),
        section_of("epsilon", _epsilons(audit, stated), folded="what the attacks prove"),
        Section(
            "not-tested", "What was not tested", folded="attackers and questions",
            items=[*missing, *omitted, *NOT_ASKED, *notes],
        ),
    )  # fmt: skip
    return render(
        "audit.html.j2", title, lead, _key_metrics(audit, found, groups, stated), sections, style="audit",
        kind=kind_of_data, answers=exposure_headlines(found, directory),
        attackers={name: what for name, what in ATTACKERS.items() if (audit.attacks["view"] == name).any()},
    )  # fmt: skip


def _key_metrics(
    audit: Audit, found: Sequence[Finding], groups: Mapping[str, Sequence[Finding]], stated: Mapping[str, float]
) -> Sequence[tuple[str, str, str]]:
    """Return the key metrics, as triples of name, value and remark."""
    upper = f"stated upper bound: {_epsilon(stated['epsilon'])}" if "epsilon" in stated else "no upper bound is stated"
    lower = "lower bound from the attacks" if audit.empirical_epsilon else "the attacks prove no lower bound above 0"
    kinds = f"{count(audit.members)} members, {count(audit.non_members)} non-members"
    last = (
        ("Empirical epsilon", _epsilon(audit.empirical_epsilon), f"{lower}; {upper}"),
        ("Reference models", count(audit.references), "for comparison"),
        ("Records", count(audit.members + audit.non_members), kinds),
    )
    worst = next(iter(most_exposed(found)), None)
    if worst is None:
        return (("Deciding attack", DASH, "no attack could be measured"), *last)
    whose = f"view: {worst.view}" + (f"; on {worst.group}, the most exposed group" if len(groups) > 1 else "")
    tpr = worst.tpr[0.01]
    rate = ("TPR at 1 % FPR", tpr.text, f"95 % interval {tpr.interval}; chance: 0.010")
    return (("Deciding attack", worst.head, whose), exposure_tile(worst), *([rate] if tpr.known else []), *last)


def _exposed_records(
    audit: Audit, pictures: Mapping[str, NDArray[np.uint8]], scored_by: str, figure: Figure | None
) -> Section:
    """Create the section of the most exposed members, with pictures and a figure of all members' exposures."""
    records = audit.records[audit.records["member"].astype(bool)]
    top = records.head(MOST_ROWS)
    pictured = top["record"].astype(str).isin(list(pictures))
    if records["exposure"].notna().any():
        certain = int((records["exposure.low"] > 0.5).sum())
        models = f"{audit.references} reference {'model' if audit.references == 1 else 'models'}"
        paragraphs = (
            Markup(
                "The {} of {:,} members with the largest <em>exposure</em>: the balanced accuracy with which {} tells "
                "models trained on the record from other models. <strong>A single record's exposure is noisy.</strong> "
                "With {} and the attacked model, up to 5 % of unexposed records have {} or more by chance. <em>At "
                "least</em>: a lower bound at 95 % confidence for all records at once, above 0.5 for {:,} members."
            ).format(len(top), len(records), scored_by, models, decimal(chance_exposure(audit.references)), certain),
        )
    else:
        paragraphs = (
            f"Without reference models, a record's exposure is unknown. These are the {len(top)} of {len(records):,} "
            f"members with the highest scores by {scored_by}.",
        )
    shown = [_picture(record, pictures) for record in top[pictured].to_dict("records")]
    return Section(
        "records", "The most exposed members", paragraphs, f"{len(top)} of {len(records):,}",
        pictures=[("", "", shown)] if shown else (), table=None if pictured.all() else _records(top[~pictured]),
        figures=[] if figure is None else [figure],
    )  # fmt: skip


def _picture(record: Mapping[Any, Any], pictures: Mapping[str, NDArray[np.uint8]]) -> Picture:
    name = str(record["record"])
    remark = f"client {record['client']}, {record['group']}; score {_signed(record['score'])}"
    small = (*filter(None, [_at_least(record["exposure.low"])]), remark)
    return Picture(png(pictures[name]), f"Picture of {name}", _exposure(record["exposure"]), name, small)


_CONTRADICTION = (
    "The empirical epsilon {} is above the stated epsilon {}: either the stated guarantee is broken, or the empirical "
    "epsilon is too high by chance (at most 5 in 100 are), or the attack uses information that the guarantee does not "
    "cover, such as the choice of a model."
)


def exceeds_stated(audit: Audit, stated: Mapping[str, float]) -> bool:
    """Return whether the audit's empirical epsilon contradicts the stated epsilon.

    The result is false if the stated delta is larger than the audit's delta. A missing stated delta is assumed to equal
    the audit's delta.
    """
    return stated.get("delta", audit.delta) <= audit.delta and audit.empirical_epsilon > stated.get("epsilon", inf)


def _epsilons(audit: Audit, stated: Mapping[str, float]) -> ReportTable:
    """Create the table of the empirical, the largest provable and the stated epsilon."""
    # The bound is judged on half of the records, see `empirical_epsilon`.
    half = min(audit.members, audit.non_members) // 2
    lower = "The strongest attack's lower bound at 95 % confidence, assuming independent records. 0 proves nothing."
    upper = "An upper bound for every attack on one example, by the noise in training."
    most, delta = f"{log(max(1, half / 3.7)):.1f}", stated.get("delta", nan)
    rows = (
        row(Cell("Empirical epsilon", lower), _epsilon(audit.empirical_epsilon), f"{audit.delta:g}"),
        row(
            Cell("Largest possible", f"About the largest bound that {half:,} records of each kind can prove."),
            most,
            "",
        ),
        row(
            Cell("Stated epsilon", upper), _epsilon(stated.get("epsilon", nan)), DASH if isnan(delta) else f"{delta:g}"
        ),
    )
    note = "The two epsilons cannot be compared, because the stated delta is larger than the audit's."
    note = note if "epsilon" in stated and delta > audit.delta else ""
    return metric_table("Empirical and stated epsilon", ["epsilon", "at delta"], rows, note)


def _epsilon(value: float) -> str:
    return DASH if isnan(value) else "\N{INFINITY}" if isinf(value) else f"{value:.2f}"


def _attacks_by_group(groups: Mapping[str, Sequence[Finding]], left_out: int = 0) -> ReportTable:
    """Create the table of attacks by group: the most exposed group first, and each group's deciding attack in bold.

    ``left_out`` is the number of groups that lack members or non-members.
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
    sentences = ["Below each figure: its 95 % interval; all intervals hold at once. Bold: the deciding attack."]
    if any(finding.view == SERVER for finding in listed):
        sentences.append(
            "The server's attacks weight non-members to match the groups and labels of each client's members; "
            "members without a match are left out."
        )
    if any(finding.attack.endswith(AGAINST_CLIENTS) for finding in listed):
        sentences.append("Attacks named 'other clients' use other clients' examples as non-members.")
    if any(finding.attack.split("-")[0] == Stack.name for finding in listed):
        sentences.append("A stack combines the scores of all attacks of a view, and is fitted on reference models.")
    for rate in FALSE_POSITIVE_RATES:
        missing = [finding for finding in listed if not finding.tpr[rate].known]
        if missing:
            fewest = min(missing, key=lambda finding: finding.non_members)
            sentences.append(f"No TPR at {100 * rate:g} % FPR: {fewest.why_no_tpr(rate)}.")
    if left_out > 0:
        sentences.append(f"Groups left out, because they lack members or non-members: {left_out:,}.")
    if len(shown) < len(groups):
        sentences.append(f"The table has the {len(shown)} most exposed of {len(groups):,} groups; audit.csv has all.")
    columns = (Column("attack", "by view", number=False), *_METRICS)
    return ReportTable(columns, tuple(rows), "Every attack, by group", note=" ".join(sentences))


def _most_exposed(
    parts: Mapping[str, Sequence[Finding]], what: str, least: int, key: Callable[[Finding], float], note: str
) -> ReportTable | None:
    """Create the table of deciding attacks on models or clients, the largest ``key`` first; None for too few parts."""
    known = [found[0] for found in parts.values() if not isnan(found[0].accuracy.low)]
    if len(parts) < least or not known:
        return None
    listed = sorted(known, key=lambda one: -key(one))[:MOST_ROWS]
    rows = (row(one.group, one.head, _value(one.accuracy), _rate(one.tpr[0.01]), *_counts(one)) for one in listed)
    if len(listed) < len(known):
        note += f" The table has {len(listed)} of {len(known):,} {what}s; audit.csv has all."
    columns = (*heads((what, "deciding attack")), _ACCURACY, _RATE, *_COUNTS)
    return ReportTable(columns, tuple(rows), f"The most exposed {what}s", note=note)


def _exposed_clients(clients: Mapping[str, Sequence[Finding]]) -> ReportTable | None:
    """Sort clients by the interval's lower end, because some clients with few records have high figures by chance."""
    known = [found[0].accuracy.low for found in clients.values() if not isnan(found[0].accuracy.low)]
    above = sum(low > 0.5 for low in known)
    note = f"The 95 % interval is above 0.5 for {above:,} of {len(known):,} clients; by chance, about 1 in 40 are."
    return _most_exposed(clients, "client", 1, lambda one: one.accuracy.low, note)


def _records(records: pd.DataFrame) -> ReportTable:
    """Create a table with one row per record, from columns of `Audit.records`."""
    rows = (
        row(
            *(str(record[name]) for name in ("record", "client", "group")),
            Cell(_exposure(record["exposure"]), _at_least(record["exposure.low"])),
            _signed(record["score"]),
        )
        for record in records.to_dict("records")
    )
    return ReportTable(heads(("record", "client", "group"), ("exposure", "score")), tuple(rows))


def _guesses(guesses: Mapping[str, float]) -> ReportTable | None:
    """Create the table of the server's guesses, by the keys of `Audit.guesses`, or return None without guesses."""
    names = [name for name in GUESSED if f"{name}.accuracy" in guesses]
    if not names:
        return None
    rows = (
        row(
            attack_head(name),
            GUESSED[name],
            _value(Estimate.of(guesses, f"{name}.accuracy")),
            _exposure(guesses.get(f"{name}.chance", nan)),
        )
        for name in names
    )
    note = "Below each accuracy: its 95 % interval."
    if {"cluster-identity", "preference-inference"} & {*names}:
        note += (
            " To guess from clusters in all recorded rounds, the attacker knows the truth about half of the clients."
        )
    if "cluster-identity.last_round" in guesses:
        note += (
            f" Cluster identity from the last recorded round alone: {decimal(guesses['cluster-identity.last_round'])}."
        )
    columns = heads(("attack", "guesses"), ("accuracy", "chance"))
    return ReportTable(columns, tuple(rows), "What the server guesses besides membership", note=note)


def _exposure(exposure: float) -> str:
    """Format a record's exposure, or return a dash if unknown."""
    return DASH if isnan(exposure) else decimal(exposure)


def _at_least(low: float) -> str:
    """Format the lower end of a record's exposure, or return "" if unknown."""
    return "" if isnan(low) else f"at least {decimal(low)}"


def _signed(value: float) -> str:
    """Format a signed number, or return a dash if unknown."""
    return _minus(_exposure(value))


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def _attack(finding: Finding, style: str = "") -> TableRow:
    rates = (_rate(rate) for rate in finding.tpr.values())
    return row(Cell(finding.head, finding.view), _value(finding.auc), _value(finding.accuracy), *rates, style=style)


def _value(estimate: Estimate) -> Cell:
    return Cell(_minus(estimate.text), _minus(estimate.interval))


def _rate(rate: Estimate) -> Cell:
    return Cell(rate.text, rate.interval)


def _counts(finding: Finding) -> tuple[str, str]:
    return count(finding.members), count(finding.non_members)
