"""A run's report: one HTML page that holds everything it shows. The same run gives the same bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from shoal.audit.finding import BY, Finding, findings, most_exposed, run_findings
from shoal.config.schema import SIMULATION
from shoal.core.formats import ACCURACY, DASH, capitalized, count, decimal, name_examples
from shoal.data import Group
from shoal.metrics import auc_interval, median_interval
from shoal.metrics.metric_table import METRICS
from shoal.metrics.summary import Metrics, Summary
from shoal.reports.exposure import Headline, exposure_headlines, exposure_tile
from shoal.reports.page import Picture, Section, render, section_of
from shoal.reports.plotting import png
from shoal.reports.run import run_charts, run_tables
from shoal.reports.run.coordinator_section import coordinator_section
from shoal.reports.run.description import RecordedUpdates, RunAudit, RunDescription
from shoal.reports.run.presence_section import event_marks, presence_section
from shoal.reports.run.run_tables import RunView, client_table, strongest_attacks
from shoal.reports.run.run_verdict import cluster_number_text, clustering_verdict, verdict
from shoal.reports.table import Cell, TableRow, metric_row, metric_table, row

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
    presence: pd.DataFrame | None = None,
    recorded: RecordedUpdates | None = None,
    audit: RunAudit | None = None,
    warnings: Sequence[str] = (),
) -> str:
    """The page, in HTML; nothing on it is fetched from elsewhere. A metric that is missing is shown as a dash.

    ``samples`` are (B, channels, height, width) images of each group, empty where the data are not images. The frames
    are rounds.csv, clients.csv, roc.csv and, with a property attack, property.csv, with canaries canaries.csv, with
    events presence.csv;
    ``recorded`` are the updates in the run's directory, and ``audit`` is the audit there, if there is one; ``warnings``
    are sentences that were said while it ran.
    """
    view = RunView.of(run, summary, rounds, clients)
    groups, several = view.groups, len(view.groups) > 1 or view.clusters > 1
    marks = event_marks(presence)
    figures = (
        run_charts.accuracy_by_cluster(rounds, run.kind, run.metric, marks),
        run_charts.accuracy_by_group(rounds, groups, run.kind, run.metric, marks) if several else None,
        run_charts.risk(rounds, summary, estimated=view.estimated, estimator=run.estimator, kind=run.kind, marks=marks),
        run_charts.cluster_sizes(rounds, groups, view.at_end),
        run_charts.violations(view.clients, groups),
        run_charts.roc_figure(roc, groups, configured=bool(strongest_attacks(summary))),
    )
    found = run_findings(summary) if audit is None else findings(audit.attacks)
    sentences = verdict(summary, run.kind, run.metric, () if audit is None else found, run.algorithm_title)
    lead: list[tuple[str, str]] = []
    if audit is not None:
        lead.append(("", Markup(
            '<a href="audit.html">The audit of these models</a>: every attack, and the most exposed records.'
        )))  # fmt: skip
    lead += [("warning", f"{capitalized(warning)}.") for warning in warnings]
    answers = [
        ("Does clustering pay?", clustering_verdict(summary)),
        ("How many clusters?", cluster_number_text(summary)),
    ]
    pays = [Headline(title, f"{text}.") for title, text in answers if text]
    listed = client_table(view)
    describe = getattr(run.property_attack, "page", None)
    sections = (
        section_of("baselines", run_tables.baseline_table(summary)),
        section_of("by-group", run_tables.group_table(view)),
        section_of("by-attack", run_tables.by_attack(view)),
        section_of("by-cluster", run_tables.cluster_table(view)),
        Section("clients", "Clients", [listed.caption], table=replace(listed, caption="") if listed.rows else None),
        None if run.coordinator is None else coordinator_section(run.coordinator, rounds),
        None if describe is None or updates is None else describe(run.task, summary, updates, view.clusters),
        None if presence is None else presence_section(summary.overall, presence),
        None if canaries is None else canary_section(summary.overall, canaries),
        None if recorded is None else _recorded(recorded),
        Section("figures", "Figures", figures=[figure for figure in figures if figure is not None]),
        _samples(run.groups, samples) if samples else None,
        section_of("overall", run_tables.overall(view)),
        section_of("time", run_tables.time_table(summary.overall)),
        Section(
            "configuration", "Configuration", code=run.settings,
            folded="Everything that decides this run, as a file that runs it again",
        ),
    )  # fmt: skip
    return render(
        "run.html.j2", run.title, lead, _key_metrics(view, found, audit), sections, style="run", kind=run.kind,
        attack=_attack(view), viewer=BY.get(summary.view, summary.view),
        answers=pays + exposure_headlines(found, audited=audit is not None, run=f"[{SIMULATION}]" not in run.settings),
        in_full=[("verdict", f"{sentences} {run_charts.drained(view.at_end)}".strip())],
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
    if not strongest_attacks(view.summary):
        return name_examples(ATTACKS[run.attack], run.kind) if run.attack in ATTACKS else f"the attack {run.attack}"
    retrained = f" and {references} reference federations (the run again, with other {run.kind})" if references else ""
    return (
        "one chosen beforehand, or one that is certain to find more, on each group and each model, among those that "
        f"use what {BY[view.summary.view]} sees{retrained}"
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


_LEAST = {"canaries.found": 0, "canaries.tpr_at_fpr_0.1": 10, "canaries.tpr_at_fpr_0.01": 100}
"""Rates, and the left-out canaries below which there is no such rate; see `shoal.metrics.canary_rate`."""


def canary_section(metrics: Metrics, canaries: pd.DataFrame) -> Section:
    """The section on the canaries of a run.

    Args:
        metrics: of the whole run, by their keys in `summary.json`.
        canaries: one row per canary, as in canaries.csv.
    """
    members, non_members = (metrics.get(f"canaries.{kind}", 0) for kind in ("members", "non_members"))
    auc, low = metrics.get("canaries.auc"), _text(metrics, "canaries.epsilon_low")
    between = DASH if auc is None else _interval(*auc_interval(auc, members, non_members))
    delta = f" At delta = {_text(metrics, 'canaries.delta')}."
    rows = (
        *(_rate(metrics, key, least, non_members) for key, least in _LEAST.items()),
        _row(metrics, "canaries.auc", between),
        _exposure(canaries),
        _row(metrics, "canaries.epsilon_low", DASH if low == DASH else f"{low} or more", delta),
    )
    about = (
        "Canaries are examples with a wrong label. A random draw decided for each whether its client trains on it: "
        f"{_text(metrics, 'canaries.members')} were trained on and {_text(metrics, 'canaries.non_members')} left out, "
        "and nothing else tells the two apart. So the figures say what the final models remember of single, unusual "
        "examples, which are usually more exposed than the average record."
    )
    table = metric_table("Canaries", ("value", "95 % interval"), rows)
    return Section("canaries", table.title, (about, *_broken(metrics)), table=table)


def _broken(metrics: Metrics) -> tuple[str, ...]:
    """What a bound above the stated epsilon means; nothing where there is none."""
    low, stated = metrics.get("canaries.epsilon_low", 0.0), metrics.get("epsilon")
    if stated is None or low <= stated:
        return ()
    return (
        f"The canaries prove an epsilon of at least {decimal(low)}, above the stated {decimal(stated)}: the promise is "
        "broken, unless chance made the bound too high (at most 5 in 100 are) or the reason is what epsilon does not "
        "cover, such as the choice of a model.",
    )


def _text(metrics: Metrics, key: str) -> str:
    return METRICS[key.removesuffix(".low").removesuffix(".high")].text(metrics.get(key))


def _row(metrics: Metrics, key: str, interval: str, remark: str = "") -> TableRow:
    return metric_row(METRICS[key], _text(metrics, key), interval, remark=remark, family="canaries, ")


def _interval(low: float, high: float) -> str:
    return DASH if isnan(low + high) else f"{decimal(low)} to {decimal(high)}"


def _rate(metrics: Metrics, key: str, least: int, non_members: float) -> TableRow:
    dash = f" A dash: at least {count(least)} left-out canaries are needed, {count(non_members)} are there."
    ends = [_text(metrics, f"{key}.{end}") for end in ("low", "high")]
    return _row(metrics, key, DASH if DASH in ends else " to ".join(ends), dash * (non_members < least))


def _exposure(canaries: pd.DataFrame) -> TableRow:
    """The median exposure of the canaries that were trained on."""
    meaning = (
        "Median, over the trained canaries, of the share of left-out ones that score at least as high, the canary "
        "itself counted. About 0.5: no trace; close to 0: it stands out. Each canary's is in canaries.csv."
    )
    exposures = canaries.loc[canaries["member"].astype(bool), "exposure"].dropna()
    texts = DASH, DASH
    if len(exposures):
        texts = decimal(float(exposures.median())), _interval(*median_interval(exposures.to_numpy()))
    return row(Cell("Exposure", meaning), *texts)
