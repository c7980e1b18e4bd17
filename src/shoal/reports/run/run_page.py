"""A run's report: one HTML page that holds everything it shows. The same run gives the same bytes."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shoal.core.formats import (
    ACCURACY,
    DASH,
    capitalized,
    count,
    decimal,
    format_duration,
    metric_format,
    name_examples,
)
from shoal.data import Group
from shoal.metrics.summary import Summary
from shoal.reports.attack_titles import attack_title
from shoal.reports.estimate import null_size
from shoal.reports.html import render
from shoal.reports.plotting import png
from shoal.reports.run import privacy_figures, run_curves, run_tables
from shoal.reports.run.canary_section import canary_section
from shoal.reports.run.client_table import client_table
from shoal.reports.run.coordinator_section import coordinator_section
from shoal.reports.run.description import RunDescription
from shoal.reports.run.limits import with_limits
from shoal.reports.run.recorded_updates import RecordedUpdates, recorded_sentence
from shoal.reports.run.run_audit import RunAudit
from shoal.reports.run.run_tables import cell
from shoal.reports.run.run_verdict import of_groups, verdict
from shoal.reports.strongest import reference_federations, strongest_attacks

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
    references = reference_federations(summary)
    if references:
        clients = clients.assign(attack=clients["attack"].map(attack_title))
    listed = client_table(clients, run.attack, run.kind, run.metric)
    clients = with_limits(clients, run.attack)
    groups = [name for name in run.groups if (clients["group"] == name).any()]
    others = [name for name in run.groups if name not in groups]
    estimated = bool((rounds["risk"].fillna(0.5) != 0.5).any())
    clusters = int(rounds["cluster"].max()) + 1
    at_end = {k: int((clients["cluster"] == k).sum()) for k in range(clusters)}
    non_members = {name: summary.by_group.get(name, {}).get("non_members", run.test_examples) for name in groups}
    describe = getattr(run.property_attack, "page", None)
    section = None if describe is None or updates is None else describe(run.task, summary, updates, clusters)
    figures = (
        run_curves.accuracy_by_cluster(rounds, run.kind, run.metric),
        run_curves.accuracy_by_group(rounds, groups, run.kind, run.metric) if len(groups) > 1 or clusters > 1 else None,
        run_curves.risk(rounds, summary, estimated=estimated, estimator=run.estimator, kind=run.kind),
        run_curves.cluster_sizes(rounds, groups, at_end),
        privacy_figures.violations(clients, groups),
        privacy_figures.roc_curves(roc, groups, configured=references > 0),
    )
    # A regression has no fairness between groups; a classification without it is shown dashes.
    fair = run.metric == ACCURACY or any(key.startswith("fairness.") for key in summary.overall)
    own = {each.key: each for each in run.metrics}
    page: dict[str, Any] = {
        "title": run.title,
        "kind": run.kind,
        "verdict": verdict(summary, run.kind, run.metric, "" if audit is None else audit.verdict),
        "audited": audit is not None,
        "warnings": [capitalized(each) for each in warnings],
        "drained": run_curves.drained(at_end),
        "key_metrics": _key_metrics(summary, run, rounds=int(rounds["round"].max()), clients=len(clients), audit=audit),
        "attack": _attack(run, references),
        "references": references,
        "attacks": run_tables.by_attack(summary, groups),
        "groups": run_tables.by_group(summary, clients, groups, others, non_members, run.kind, run.metric, own=own),
        "clusters": run_tables.by_cluster(
            summary,
            clients,
            groups,
            clusters,
            non_members,
            estimated=estimated,
            kind=run.kind,
            metric=run.metric,
            own=own,
        ),
        "round_attack": section,
        "canaries": None if canaries is None else canary_section(summary.overall, canaries),
        "coordinator": None if run.coordinator is None else coordinator_section(run.coordinator, rounds),
        "recorded": None if recorded is None else recorded_sentence(recorded),
        "clients": listed,
        "figures": [figure for figure in figures if figure is not None],
        "samples": [
            (name, _description(group), [png(image) for image in samples[name]])
            for name, group in run.groups.items()
            if name in samples
        ],
        "overall": run_tables.overall(summary.overall, run.kind, fair=fair, own=own),
        "fair": fair,
        "seconds": run_tables.seconds(summary.overall),
        "config": run.settings,
    }
    return render("run.html.j2", page)


def _attack(run: RunDescription, references: int) -> str:
    """Which attack the page is about."""
    configured = name_examples(ATTACKS[run.attack], run.kind) if run.attack in ATTACKS else f"the attack {run.attack}"
    asked = run.reference_federations
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


def _key_metrics(
    summary: Summary, run: RunDescription, *, rounds: int, clients: int, audit: RunAudit | None
) -> Sequence[tuple[str, str, str]]:
    """What to see first: name, value and a remark."""
    overall, mia = summary.overall, of_groups(summary, "mia")
    worst = max(mia, key=lambda group: mia[group], default=None)
    better = "" if run.metric == ACCURACY else "; higher is better"
    whose = f"highest of the groups: {worst}; " if len(mia) > 1 else ""
    attack = strongest_attacks(summary).get(worst or "")
    whose += f"by {attack}; " if attack else ""
    whose += f"guessing: 0.500{null_size(summary.by_group.get(worst or '', {}).get('mia_null_high', nan))}"
    everyone, point = f"of {clients} clients", "violations.total"
    drawn = "; limits drawn at random" if overall.get("thresholds_drawn") else ""
    certain = "exceeded.total" if "exceeded.total" in overall else point
    by_point = f"{everyone}, certain by the 95 % interval; {cell(overall, point, count)} by the point estimate"
    exceeded = (everyone if certain == point else by_point) + drawn
    return (
        (
            capitalized(run.metric),
            cell(overall, "accuracy.overall", metric_format(run.metric)),
            f"mean over clients, held-out {run.kind}{better}",
        ),
        ("MIA accuracy", DASH if worst is None else decimal(mia[worst]), whose) if audit is None else audit.key_metric,
        (
            "Limits exceeded",
            cell(overall, certain, count),
            exceeded if audit is None else f"{exceeded}; by the run's own attack, not the audit's",
        ),
        ("Migrated", cell(overall, "migrated", count), everyone),
        ("Rounds", count(rounds), "of training"),
        ("Time", cell(overall, "seconds.total", format_duration), "in all"),
    )


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
