"""An audit's report: one HTML page that holds everything it shows. The same audit gives the same bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.audit.audit import Audit
from shoal.core.errors import require
from shoal.core.formats import DASH, count, decimal
from shoal.reports.attack_titles import ATTACKERS, attack_head
from shoal.reports.audit.audit_figures import accuracy_of_attacks, chance_exposure, drawn_groups, exposure_of_records
from shoal.reports.audit.audit_tables import (
    MOST_ROWS,
    at_least,
    by_client,
    by_group,
    by_model,
    exposure_text,
    of_records,
)
from shoal.reports.audit.audit_verdict import verdict
from shoal.reports.audit.epsilon import (
    epsilon_sentences,
    epsilon_text,
    exceeds_stated,
    loud_sentence,
    stated_epsilon,
)
from shoal.reports.audit.findings import Finding, findings, judged_groups, measured
from shoal.reports.audit.guesses import guesses_table
from shoal.reports.audit.reconstruction import reconstruction_table
from shoal.reports.estimate import null_size
from shoal.reports.html import render
from shoal.reports.plotting import png

NOT_ASKED = (
    "Active attackers, who send manipulated updates or models to make members easier to tell.",
    "Attackers with more reference models, or better ones: with more of them attacks become stronger.",
    "Attackers whose reference models were trained without a defence that the attacked models were trained with.",
    "Clients who pool what they were sent, and attackers who keep the models of all rounds, unless one above does.",
    "Reconstruction of records, inference of their properties, and whether a client took part at all.",
)
"""What no audit of this kind asks."""


@dataclass(frozen=True)
class PicturedRecord:
    """An exposed record with its picture as a data URI, and what is known of it in words."""

    name: str
    picture: str
    exposure: str
    low: str
    remark: str


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
        stated: "epsilon" and "delta" of differential privacy, where the run has them.
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
    by_name, (groups, everything) = findings(audit, "group"), judged_groups(audit)
    strongest, records = next(iter(measured(groups.values())), None), audit.records
    grouped = records if set(groups) <= set(by_name) else records.assign(group=next(iter(groups), ""))
    known = bool(records["exposure"].notna().any())
    top = records.head(MOST_ROWS)
    pictured = top["record"].astype(str).isin(list(pictures))
    figures = (accuracy_of_attacks(groups), exposure_of_records(grouped, drawn_groups(groups), audit.references))
    overall = measured([everything])
    page: dict[str, Any] = {
        "title": title,
        "kind": kind_of_data,
        "verdict": verdict(groups, everything),
        "gates": gates,
        "run": run,
        "loud": loud_sentence(audit, stated),
        "key_metrics": _key_metrics(audit, strongest, groups, stated),
        "references": audit.references,
        "attackers": {name: what for name, what in ATTACKERS.items() if (audit.attacks["attacker"] == name).any()},
        "groups": by_group(groups, left_out=sum(not measured([found]) for found in by_name.values())),
        "figures": [figure for figure in figures if figure is not None],
        "models": by_model(findings(audit, "model")),
        "clients": by_client(findings(audit, "client"), records),
        "guesses": guesses_table(audit.guesses),
        "reconstruction": reconstruction_table(audit.guesses),
        "known": known,
        "shown": len(top),
        "records": len(records),
        "certain": int((records["exposure.low"] > 0.5).sum()),
        "chance": decimal(chance_exposure(audit.references)),
        "scored_by": overall[0].title if overall else "the attack that decides",
        "pictured": [_pictured(row, pictures) for row in top[pictured].to_dict("records")],
        "listed": of_records(top[~pictured]) if not pictured.all() else None,
        "epsilon": epsilon_sentences(audit, stated),
        "omitted": [(attack_head(attack), reason) for attack, reason in audit.omitted.items()],
        "not_asked": _not_asked(audit),
        "notes": audit.notes,
    }
    return render("audit.html.j2", page)


def _key_metrics(
    audit: Audit, worst: Finding | None, groups: Mapping[str, Sequence[Finding]], stated: Mapping[str, float]
) -> Sequence[tuple[str, str, str]]:
    """What to see first: name, value and a remark."""
    epsilon = ("Empirical epsilon", epsilon_text(audit.empirical_epsilon), _beside(audit, stated))
    kinds = f"{count(audit.members)} members, {count(audit.non_members)} non-members"
    counts = (
        (
            "Reference models",
            count(audit.references),
            "that attacks compare with" if audit.references else "attacks compare with nothing",
        ),
        ("Records", count(audit.members + audit.non_members), kinds),
    )
    if worst is None:
        return (("Attack that decides", DASH, "none could be measured"), epsilon, *counts)
    tpr = worst.tpr[0.01]
    whose = f"attacker: {worst.attacker}" + (f"; on {worst.name}, the most exposed group" if len(groups) > 1 else "")
    interval = f"95 % interval {worst.accuracy.interval}; " if worst.accuracy.interval else ""
    interval += f"guessing: 0.500{null_size(worst.null_high)}"
    return (
        ("Attack that decides", worst.head, whose),
        ("Balanced accuracy", worst.accuracy.text, interval),
        ("TPR at 1 % FPR", tpr.percent, _rate_remark(worst, groups[worst.name])),
        epsilon,
        *counts,
    )


def _rate_remark(worst: Finding, found: Sequence[Finding]) -> str:
    """The interval of a true positive rate, and another attack that has a larger one there."""
    tpr = worst.tpr[0.01]
    if not tpr.known:
        return worst.why_no_tpr(0.01)
    interval = f"95 % interval {tpr.percent_interval}; " if tpr.percent_interval else ""
    highest = max((each for each in found if each.tpr[0.01].known), key=lambda each: each.tpr[0.01].value)
    more = f"; more by {highest.title}: {highest.tpr[0.01].percent}" if highest.tpr[0.01].value > tpr.value else ""
    return f"{interval}guessing: 1.0 %{more}"


def _beside(audit: Audit, stated: Mapping[str, float]) -> str:
    above = ": contradicted" if exceeds_stated(audit, stated) else ""
    proven = "nothing was proven; " if audit.empirical_epsilon == 0 else ""
    return f"{proven}lower bound; {stated_epsilon(stated)}{above}"


def _pictured(row: Mapping[Any, Any], pictures: Mapping[str, NDArray[np.uint8]]) -> PicturedRecord:
    name = str(row["record"])
    score = f"{row['score']:.3f}".replace("-", "\N{MINUS SIGN}")
    kind = "member" if row["member"] else "non-member"
    return PicturedRecord(
        name=name,
        picture=png(pictures[name]),
        exposure=exposure_text(row["exposure"]),
        low=at_least(row["exposure.low"]),
        remark=f"client {row['client']}, {row['group']}; {kind}; score {score}",
    )


def _not_asked(audit: Audit) -> list[str]:
    """Attackers of whom no attack was measured, and what no audit asks."""
    asked = set(audit.attacks.loc[audit.attacks["accuracy"].notna(), "attacker"])
    missing = [f"A {name} who {what}." for name, what in ATTACKERS.items() if name not in asked]
    return [*missing, *NOT_ASKED]
