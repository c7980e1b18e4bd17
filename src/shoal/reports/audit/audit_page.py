"""An audit's report: one HTML page that holds everything it shows. The same audit gives the same bytes."""

from collections.abc import Mapping, Sequence
from math import inf, isinf, isnan, log
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from shoal.audit.audit import Audit, wrong_sign
from shoal.audit.finding import BY, Finding, attack_head, every_attack, findings, most_exposed
from shoal.core.errors import require
from shoal.core.formats import DASH, capitalized, count, decimal
from shoal.reports.audit import audit_tables
from shoal.reports.audit.audit_figures import (
    accuracy_of_attacks,
    by_view,
    chance_exposure,
    drawn_groups,
    exposure_of_records,
)
from shoal.reports.exposure import ATTACKERS, exposure_headlines, exposure_lines, exposure_tile, not_asked
from shoal.reports.page import Picture, Section, render, section_of
from shoal.reports.plotting import png

NOT_ASKED = (
    "Active attackers, who send manipulated updates or models to make members easier to tell.",
    "Attackers with more reference models, or better ones: with more of them attacks become stronger.",
    "Attackers whose reference models were trained without a defence that the attacked models were trained with.",
    "Clients who pool what they were sent, and attackers who keep the models of all rounds, unless one above does.",
    "Reconstruction of records, inference of their properties, and whether a client took part at all.",
)
"""What no audit of this kind asks."""


def audit_page(
    audit: Audit,
    *,
    title: str,
    stated: Mapping[str, float],
    pictures: Mapping[str, NDArray[np.uint8]],
    kind_of_data: str = "images",
    gates: Sequence[tuple[str, bool]] = (),
    run: str | None = None,
) -> str:
    """The page, in HTML; nothing on it is fetched from elsewhere. What was not measured is shown as a dash.

    Args:
        audit: what attackers find.
        title: of the page.
        stated: "epsilon", "delta" and "bound.*" of differential privacy, where the run has them.
        pictures: (channels, height, width) of records, by their names; the others are listed without.
        kind_of_data: what a record is, in the plural.
        gates: a sentence for each limit that was set on the figures, and whether it holds.
        run: the address of the run's page; None: there is none.

    Raises:
        InputError: a picture of another shape or type.
    """
    for name, picture in pictures.items():
        require(
            picture.ndim == 3 and picture.dtype == np.uint8,
            f"pictures: that of record {name!r} must be (channels, height, width) of uint8; "
            f"got {picture.dtype} of shape {picture.shape}",
        )
    found, by_name, everything = (
        findings(audit.attacks), every_attack(audit.attacks, "group"), every_attack(audit.attacks, "all")
    )  # fmt: skip
    # Where no group could be measured, all records are one.
    groups = {name: every for name, every in by_name.items() if every[0].accuracy.known} or everything
    records = audit.records
    grouped = records if set(groups) <= set(by_name) else records.assign(group=next(iter(groups), ""))
    figures = (accuracy_of_attacks(groups), exposure_of_records(grouped, drawn_groups(groups), audit.references))
    warning = violation_warning(audit, stated)
    shape = Markup("<strong>{}:</strong> {}")
    lines = exposure_lines(found, audit.omitted, stated)
    in_full = [("view", shape.format(capitalized(BY[view]), text)) for view, text in lines]
    lead: list[tuple[str, str]] = [("verdict" if holds else "verdict loud", sentence) for sentence, holds in gates]
    if run:
        link = Markup('<a href="{}">The report of the run</a>: its settings, accuracy and clients.')
        lead.append(("", link.format(run)))
    lead += [("verdict loud", warning)] * bool(warning)
    lead += [("verdict loud", f"Check the scores: {wrong}.") for wrong in [*wrong_sign(audit.figures()).values()][:1]]
    drawn = [item for item in figures if item is not None]
    scored_by = next((every[0].title for every in everything.values()), "the attack that decides")
    left_out = sum(not every[0].accuracy.known for every in by_name.values())
    omitted = [f"{attack_head(attack)}: {reason}." for attack, reason in audit.omitted.items()]
    notes = [f"{note[0].upper()}{note[1:]}." for note in audit.notes]
    who = by_view(found)
    sections = (
        None if who is None else Section("by-view", "Who can recognise records", figures=[who]),
        section_of("by-group", audit_tables.attacks_by_group(groups, left_out)),
        Section("figures", "Figures", figures=drawn) if drawn else None,
        section_of("by-model", audit_tables.attacks_by_model(every_attack(audit.attacks, "model"))),
        section_of("by-client", audit_tables.exposed_clients(every_attack(audit.attacks, "client"), records)),
        section_of("guesses", audit_tables.guesses_table(audit.guesses)),
        _exposed_records(audit, pictures, scored_by),
        Section(
            "epsilon",
            "Empirical and stated epsilon",
            [*filter(None, [warning]), *epsilon_sentences(audit, stated)],
        ),
        Section("not-tested", "What was not tested", items=[*omitted, *not_asked(found), *NOT_ASKED, *notes]),
    )
    attackers = {name: what for name, what in ATTACKERS.items() if (audit.attacks["view"] == name).any()}
    return render(
        "audit.html.j2", title, lead, _key_metrics(audit, found, groups, stated), sections, style="audit",
        kind=kind_of_data, attackers=attackers, in_full=in_full, answers=exposure_headlines(found, run=run is not None),
    )  # fmt: skip


def _key_metrics(
    audit: Audit, found: Sequence[Finding], groups: Mapping[str, Sequence[Finding]], stated: Mapping[str, float]
) -> Sequence[tuple[str, str, str]]:
    """What to see first: name, value and a remark."""
    proven = "nothing was proven; " if audit.empirical_epsilon == 0 else ""
    above = ": contradicted" if exceeds_stated(audit, stated) else ""
    remark = f"{proven}lower bound; {stated_epsilon(stated)}{above}"
    kinds = f"{count(audit.members)} members, {count(audit.non_members)} non-members"
    compared = "that attacks compare with" if audit.references else "attacks compare with nothing"
    last = (
        ("Empirical epsilon", epsilon_text(audit.empirical_epsilon), remark),
        ("Reference models", count(audit.references), compared),
        ("Records", count(audit.members + audit.non_members), kinds),
    )
    worst = next(iter(most_exposed(found)), None)
    if worst is None:
        return (("Attack that decides", DASH, "none could be measured"), *last)
    whose = f"view: {worst.view}" + (f"; on {worst.group}, the most exposed group" if len(groups) > 1 else "")
    return (
        ("Attack that decides", worst.head, whose),
        exposure_tile(worst),
        ("TPR at 1 % FPR", worst.tpr[0.01].percent, _rate_remark(worst, groups.get(worst.group, ()))),
        *last,
    )


def _rate_remark(worst: Finding, attempts: Sequence[Finding]) -> str:
    """The interval of a true positive rate, and another attack that has a larger one there."""
    tpr = worst.tpr[0.01]
    if not tpr.known:
        return worst.why_no_tpr(0.01)
    interval = f"95 % interval {tpr.percent_interval}; " if tpr.percent_interval else ""
    rates = [finding for finding in (worst, *attempts) if finding.tpr[0.01].known]
    highest = max(rates, key=lambda finding: finding.tpr[0.01].value)
    more = f"; more by {highest.title}: {highest.tpr[0.01].percent}" if highest.tpr[0.01].value > tpr.value else ""
    return f"{interval}chance: 1.0 %{more}"


def _exposed_records(audit: Audit, pictures: Mapping[str, NDArray[np.uint8]], scored_by: str) -> Section:
    """The most exposed records, with their pictures where there are some."""
    records, top = audit.records, audit.records.head(audit_tables.MOST_ROWS)
    pictured = top["record"].astype(str).isin(list(pictures))
    if records["exposure"].notna().any():
        certain = int((records["exposure.low"] > 0.5).sum())
        models = f"{audit.references} reference {'model' if audit.references == 1 else 'models'}"
        paragraphs = (
            Markup(
                "The {} of {:,} records with the largest <em>exposure</em>: how well models that were trained on the "
                "record can be told from models that were not, as a balanced accuracy."
            ).format(len(top), len(records)),
            Markup(
                "<strong>Of one record this is noisy.</strong> It comes from {} and the attacked one: if no record "
                "were exposed, up to 5 in 100 would have {} or more by chance, and these are the largest of {:,}. "
                "<em>At least</em>: a lower end that all records keep at once with 95 % confidence; it is above 0.5 "
                "for {:,} of them. The exposure of a non-member is what it would be had it been trained on. Scores: {}."
            ).format(models, decimal(chance_exposure(audit.references)), len(records), certain, scored_by),
        )
    else:
        paragraphs = (
            "Without reference models that were and were not trained on a record its exposure is unknown. These are "
            f"the {len(top)} of {len(records):,} records with the highest scores of {scored_by}, non-members among "
            "them.",
        )
    shown = [_picture(record, pictures) for record in top[pictured].to_dict("records")]
    return Section(
        "records", "The most exposed records", paragraphs, pictures=[("", "", shown)] if shown else (),
        table=None if pictured.all() else audit_tables.of_records(top[~pictured]),
    )  # fmt: skip


def _picture(record: Mapping[Any, Any], pictures: Mapping[str, NDArray[np.uint8]]) -> Picture:
    name, kind = str(record["record"]), "member" if record["member"] else "non-member"
    remark = (
        f"client {record['client']}, {record['group']}; {kind}; score {audit_tables.signed_number(record['score'])}"
    )
    small = (*filter(None, [audit_tables.at_least(record["exposure.low"])]), remark)
    return Picture(
        png(pictures[name]), f"Picture of {name}", audit_tables.exposure_text(record["exposure"]), name, small
    )


def epsilon_text(value: float) -> str:
    """An epsilon; a dash where there is none.

    >>> epsilon_text(1.234), epsilon_text(float("inf"))
    ('1.23', '∞')
    """
    return DASH if isnan(value) else "\N{INFINITY}" if isinf(value) else f"{value:.2f}"


def stated_epsilon(stated: Mapping[str, float]) -> str:
    """The stated epsilon with its delta, or "none stated"."""
    return f"stated: {epsilon_text(stated['epsilon'])}{_at(stated)}" if "epsilon" in stated else "none stated"


def exceeds_stated(audit: Audit, stated: Mapping[str, float]) -> bool:
    """Whether the empirical epsilon contradicts the stated one.

    A guarantee at a delta holds at every larger one; where the stated delta is the larger, nothing is contradicted.
    Without a stated delta, it is taken for that of the audit.
    """
    return _comparable(audit, stated) and audit.empirical_epsilon > stated.get("epsilon", inf)


def violation_warning(audit: Audit, stated: Mapping[str, float]) -> str:
    """What a contradiction between the two means; empty where there is none."""
    if not exceeds_stated(audit, stated):
        return ""
    return (
        f"The empirical epsilon, {epsilon_text(audit.empirical_epsilon)}, is above the stated one, "
        f"{epsilon_text(stated['epsilon'])}: the stated guarantee does not hold against this attack, unless chance "
        "made the bound too high (at most 5 in 100 are) or the attack uses what the guarantee does not cover, such "
        "as the choice of a model."
    )


def epsilon_sentences(audit: Audit, stated: Mapping[str, float]) -> list[str]:
    """What each of the two means."""
    # The bound is judged on half of the records, see `empirical_epsilon`.
    half, is_at = min(audit.members, audit.non_members) // 2, f"at delta {audit.delta:g}"
    most = f"With {half:,} records of a kind to judge it on, it could not be above about {log(max(1, half / 3.7)):.1f}."
    if isnan(audit.empirical_epsilon):
        empirical = "The empirical epsilon was not measured."
    elif audit.empirical_epsilon == 0:
        empirical = (
            f"The empirical epsilon is 0.00 {is_at}: nothing was proven, neither a leak nor that there is none; a "
            f"bound above 0 takes a stronger attack or more records. {most}"
        )
    else:
        empirical = (
            f"The empirical epsilon is {epsilon_text(audit.empirical_epsilon)} {is_at}: a lower bound at 95 % "
            "confidence, since under differential privacy of one record with a smaller epsilon no attack could do what "
            f"the strongest one did here, as if records were independent. {most}"
        )
    if "epsilon" not in stated:
        return [empirical, "No epsilon is stated, so nothing limits what a stronger attack finds."]
    upper = (
        f"The stated epsilon is {epsilon_text(stated['epsilon'])}{_at(stated)}: an upper bound, by the noise that was "
        "added in training, on what any attack can find of one example of the client with the largest."
    )
    why = "The two cannot be compared: the stated delta is the larger, and a guarantee says nothing of smaller ones."
    return [empirical, upper, *([] if _comparable(audit, stated) else [why])]


def _comparable(audit: Audit, stated: Mapping[str, float]) -> bool:
    return stated.get("delta", audit.delta) <= audit.delta


def _at(stated: Mapping[str, float]) -> str:
    return f" at delta {stated['delta']:g}" if "delta" in stated else ""
