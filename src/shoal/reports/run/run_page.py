"""A run's report: one HTML page that holds everything it shows. The same run gives the same bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from shoal.audit.finding import BY, Finding, findings, most_exposed, run_findings
from shoal.config.schema import SIMULATION
from shoal.core.formats import ACCURACY, DASH, capitalized, count, name_examples
from shoal.data import Group
from shoal.metrics.metric_table import METRICS
from shoal.metrics.summary import Summary
from shoal.reports.exposure import answers, exposure_tile
from shoal.reports.page import Picture, Section, render, section_of
from shoal.reports.plotting import png
from shoal.reports.run import run_curves, run_tables
from shoal.reports.run.canary_section import canary_section
from shoal.reports.run.client_table import client_table
from shoal.reports.run.coordinator_section import coordinator_section
from shoal.reports.run.description import RecordedUpdates, RunAudit, RunDescription
from shoal.reports.run.privacy_figures import roc_curves, violations
from shoal.reports.run.run_verdict import verdict
from shoal.reports.run.run_view import RunView, strongest_attacks
from shoal.reports.run.time_section import time_section

ATTACKS = {
    "shadow": "an attack model, trained on the answers of shadow models: copies that the server trains on images of "
    "its own, so that it knows their members",
    "loss-threshold": "a threshold on the loss: images on which the model is surer are called members",
    "gap": "the gap attack: images that the model gets right are called members",
}
"""The configured attack in words."""


def run_page(
    run: RunDescription,
    summary: Summary,
    samples: Mapping[str, NDArray[np.uint8]],
    *,
    rounds: pd.DataFrame,
    clients: pd.DataFrame,
    roc: pd.DataFrame,
    updates: pd.DataFrame | None = None,
    canaries: pd.DataFrame | None = None,
    recorded: RecordedUpdates | None = None,
    audit: RunAudit | None = None,
    warnings: Sequence[str] = (),
) -> str:
    """The page, in HTML; nothing on it is fetched from elsewhere. A metric that is missing is shown as a dash.

    ``samples`` are (B, channels, height, width) images of each group, empty where the data are not images. The frames
    are rounds.csv, clients.csv, roc.csv and, with a property attack, property.csv, with canaries canaries.csv;
    ``recorded`` are the updates in the run's directory, and ``audit`` is the audit there, if there is one; ``warnings``
    are sentences that were said while it ran.
    """
    view = RunView.of(run, summary, rounds, clients)
    groups, several = view.groups, len(view.groups) > 1 or view.clusters > 1
    figures = (
        run_curves.accuracy_by_cluster(rounds, run.kind, run.metric),
        run_curves.accuracy_by_group(rounds, groups, run.kind, run.metric) if several else None,
        run_curves.risk(rounds, summary, estimated=view.estimated, estimator=run.estimator, kind=run.kind),
        run_curves.cluster_sizes(rounds, groups, view.at_end),
        violations(view.clients, groups),
        roc_curves(roc, groups, configured=bool(strongest_attacks(summary))),
    )
    found = run_findings(summary) if audit is None else findings(audit.attacks)
    sentences = verdict(summary, run.kind, run.metric, () if audit is None else found, run.algorithm_title)
    lead: list[tuple[str, str]] = []
    if audit is not None:
        lead.append(("", Markup(
            '<a href="audit.html">The audit of these models</a>: every attack, and the most exposed records.'
        )))  # fmt: skip
    lead += [("warning", f"{capitalized(warning)}.") for warning in warnings]
    listed = client_table(view)
    describe = getattr(run.property_attack, "page", None)
    sections = (
        section_of("by-group", run_tables.by_group(view)),
        section_of("by-attack", run_tables.by_attack(view)),
        section_of("by-cluster", run_tables.by_cluster(view)),
        Section("clients", "Clients", [listed.caption], table=replace(listed, caption="") if listed.rows else None),
        None if run.coordinator is None else coordinator_section(run.coordinator, rounds),
        None if describe is None or updates is None else describe(run.task, summary, updates, view.clusters),
        None if canaries is None else canary_section(summary.overall, canaries),
        None if recorded is None else _recorded(recorded),
        Section("figures", "Figures", figures=[figure for figure in figures if figure is not None]),
        _samples(run.groups, samples) if samples else None,
        section_of("overall", run_tables.overall(view)),
        time_section(summary.overall),
        Section(
            "configuration", "Configuration", code=run.settings,
            folded="Everything that decides this run, as a file that runs it again",
        ),
    )  # fmt: skip
    return render(
        "run.html.j2", run.title, lead, _key_metrics(view, found, audit), sections, style="run", kind=run.kind,
        attack=_attack(view), viewer=BY.get(summary.view, summary.view),
        answers=answers(found, audited=audit is not None, run=f"[{SIMULATION}]" not in run.settings),
        in_full=[("verdict", f"{sentences} {run_curves.drained(view.at_end)}".strip())],
    )  # fmt: skip


def _recorded(recorded: RecordedUpdates) -> Section:
    command = "What such a server finds of single records and clients in them, this command says; DIR is the directory"
    paragraph = f"{recorded.sentence} {command} of this page."
    return Section("recorded", "Recorded updates", [paragraph], code="shoal audit --trace DIR")


def _samples(groups: Mapping[str, Group], samples: Mapping[str, NDArray[np.uint8]]) -> Section:
    shown = [
        (name, _description(group), [Picture(png(image), f"A held-out image of {name}") for image in samples[name]])
        for name, group in groups.items()
        if name in samples
    ]
    return Section("samples", "Images of the groups", pictures=shown)


def _attack(view: RunView) -> str:
    """Which attack the page is about."""
    run, references = view.run, view.references
    configured = name_examples(ATTACKS[run.attack], run.kind) if run.attack in ATTACKS else f"the attack {run.attack}"
    asked = run.reference_federations
    if not references and strongest_attacks(view.summary):
        return (
            "one chosen beforehand, or one that is certain to find more, on each group and each model, of "
            f"{configured}, of attacks that need no more than it, and of those of {BY[view.summary.view]} on the rounds"
        )
    if not references and asked:
        return f"{configured} (the {asked} reference federations that were asked for have no members to be asked about)"
    if not references:
        return configured
    federations = "the whole run again," if references == 1 else "the whole run again each,"
    return (
        f"one chosen beforehand, or one that is certain to find more, on each group and each model, of {configured}; "
        f"attacks that need no more than it; and attacks that compare an answer with those of {references} reference "
        f"federation{'s' if references > 1 else ''}, {federations} with other {run.kind} in the place of half of the "
        "clients' own"
    )


def _key_metrics(view: RunView, found: Sequence[Finding], audit: RunAudit | None) -> Sequence[tuple[str, str, str]]:
    """What to see first: name, value and a remark."""
    run, overall = view.run, view.summary.overall
    exposure = ("Balanced accuracy", DASH, "no attack was measured")
    if worst := next(iter(most_exposed(found)), None):
        name, value, remark = exposure_tile(worst)
        exposure = (name, value, f"{worst.title}, view: {worst.view}, on {worst.group}; {remark}")
    everyone, point = f"of {len(view.clients)} clients", overall.get("violations.total")
    limits = f"{everyone}, at 95 % confidence; {METRICS['violations'].text(point)} by the point estimate"
    limits += "; limits drawn at random" if overall.get("thresholds_drawn") else ""
    limits += "" if audit is None else "; by the run's own attack, not the audit's"
    better = "" if run.metric == ACCURACY else "; higher is better"
    accuracy, rounds = view.metric("accuracy"), int(view.rounds["round"].max())
    mean = f"mean over clients, held-out {run.kind}{better}"
    return (
        (capitalized(accuracy.name), accuracy.text(overall.get("accuracy.overall")), mean),
        exposure,
        _tile("exceeded", overall.get("exceeded.total"), limits),
        _tile("migrated", overall.get("migrated"), everyone),
        ("Rounds", count(rounds), "of training"),
        _tile("seconds.total", overall.get("seconds.total"), "in all"),
    )


def _tile(key: str, value: float | None, remark: str) -> tuple[str, str, str]:
    return (capitalized(METRICS[key].name), METRICS[key].text(value), remark)


def _description(group: Group) -> str:
    """The share and the shift of a group, in words."""
    parts = [f"{100 * group.share:g} % of the clients" if group.share > 0 else "held-out images only, of no client"]
    if group.rotation is not None:
        parts.append(f"rotated by {group.rotation[0]:g} to {group.rotation[1]:g} degrees")
    if group.brightness is not None:
        parts.append(f"brightness times {group.brightness[0]:g} to {group.brightness[1]:g}")
    if group.label_shift:
        parts.append(f"labels shifted by {group.label_shift}")
    if group.shift_per == "client" and group.share > 0:
        parts.append("drawn for each client, and for each held-out image")
    return "; ".join(parts)
