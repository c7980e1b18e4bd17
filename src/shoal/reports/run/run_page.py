"""The page of a run: one self-contained, reproducible HTML file."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from shlex import quote

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from shoal.audit.finding import BY, Finding, findings, most_exposed, run_findings
from shoal.config.schema import SIMULATION
from shoal.core.formats import ACCURACY, DASH, capitalize, count, decimal
from shoal.data import Group
from shoal.metrics import auc_interval
from shoal.metrics.metric_table import METRICS
from shoal.metrics.summary import Metrics, Summary
from shoal.reports.exposure import Headline, exposure_headlines, exposure_tile
from shoal.reports.page import Picture, Section, findings_section, render, section_of
from shoal.reports.plotting import png
from shoal.reports.run import run_charts, run_tables
from shoal.reports.run.coordinator_section import coordinator_section
from shoal.reports.run.description import RecordedUpdates, RunDescription
from shoal.reports.run.presence_section import event_marks, presence_section
from shoal.reports.run.run_tables import RunView, client_table, strongest_attacks
from shoal.reports.run.run_verdict import (
    chance_sentence,
    cluster_number_text,
    clustering_verdict,
    notes,
    own_accuracy,
    property_sentences,
)
from shoal.reports.table import metric_row, metric_table


def run_page(
    run: RunDescription,
    summary: Summary,
    samples: Mapping[str, NDArray[np.uint8]],
    *,
    directory: Path | None = None,
    rounds: pd.DataFrame,
    clients: pd.DataFrame,
    roc: pd.DataFrame,
    updates: pd.DataFrame | None = None,
    presence: pd.DataFrame | None = None,
    recorded: RecordedUpdates | None = None,
    audit: pd.DataFrame | None = None,
    warnings: Sequence[str] = (),
) -> str:
    """Render the page of a run; missing metrics are shown as dashes.

    ``rounds``, ``clients``, ``roc``, ``updates``, ``presence`` and ``audit`` are the rows of rounds.csv, clients.csv,
    roc.csv, property.csv, presence.csv and audit.csv.

    Args:
        samples: images by group, (B, channels, height, width) uint8; empty for other data.
    """
    view = RunView.of(run, summary, rounds, clients)
    groups, marks = view.groups, event_marks(presence)
    figures = (
        run_charts.accuracy_by_group(rounds, groups, run.kind, run.metric, marks),
        run_charts.cluster_sizes(rounds, groups, view.at_end) if view.clusters > 1 else None,
    )
    further = (
        run_charts.risk(rounds, summary, estimated=view.estimated, estimator=run.estimator, kind=run.kind, marks=marks),
        run_charts.violations(view.clients, groups) if view.limited else None,
        run_charts.roc_figure(roc, groups, configured=bool(strongest_attacks(summary))),
    )
    found = run_findings(summary) if audit is None else findings(audit)
    lead: list[tuple[str, str]] = []
    if audit is not None:
        lead.append(("", Markup(
            '<a href="audit.html">The audit of these models</a>: every attack, and the most exposed records.'
        )))  # fmt: skip
    lead += [("warning", f"{capitalize(warning)}.") for warning in warnings]
    lead += [("", f"{said}.") for said in notes(summary, found=audit is None)]
    leaks = [f"{said}." for said in property_sentences(summary)[:-1]]
    answers = [
        ("Does the property leak?", " ".join(leaks)),
        ("Do the models beat guessing?", chance_sentence(summary, run.kind)),
        ("Does clustering pay?", clustering_verdict(summary, run.metric)),
        ("How many clusters?", cluster_number_text(summary)),
    ]
    listed, repeatable = client_table(view), f"[{SIMULATION}]" not in run.settings
    describe = getattr(run.property_attack, "page", None)
    sections = (
        *(() if describe is None or updates is None else describe(run.task, summary, updates, view.clusters)),
        section_of("baselines", run_tables.baseline_table(summary, run.metric)),
        findings_section(found),
        Section("figures", "Over rounds", figures=[figure for figure in figures if figure is not None]),
        None if run.coordinator is None else coordinator_section(run.coordinator, rounds),
        None if presence is None else presence_section(summary.overall, presence),
        canary_section(summary.overall) if "canaries.members" in summary.overall else None,
        section_of("by-group", run_tables.group_table(view), folded="every figure"),
        section_of("by-attack", run_tables.by_attack(view), folded="by group"),
        section_of("by-cluster", run_tables.cluster_table(view), folded="every figure"),
        Section(
            "clients", "Clients", [listed.caption] if listed.caption else (), f"{len(listed.rows):,}",
            table=replace(listed, caption=""),
        ) if listed.rows else None,
        Section(
            "further", "More figures", folded="the run's own attack and its estimates",
            figures=[figure for figure in further if figure is not None],
        ) if any(further) else None,
        section_of("overall", run_tables.overall(view), folded="over all clients"),
        _samples(run.groups, samples) if samples else None,
        None if recorded is None else _recorded(recorded, directory),
        Section(
            "configuration", "Configuration", code=run.settings,
            folded="a file that repeats this run",
        ),
    )  # fmt: skip
    return render(
        "run.html.j2", run.title, lead, _key_metrics(view, found, audit), sections, style="run", kind=run.kind,
        viewer=BY.get(summary.view, summary.view),
        answers=[Headline(question, text) for question, text in answers if text]
        + exposure_headlines(found, directory if repeatable else None, audited=audit is not None),
    )  # fmt: skip


def _recorded(recorded: RecordedUpdates, directory: Path | None) -> Section:
    paragraph = f"{recorded.sentence} This command attacks the updates:"
    run = "RUN" if directory is None else quote(str(directory))
    return Section(
        "recorded", "Recorded updates", [paragraph], "what the server received", code=f"shoal audit --trace {run}"
    )


def _samples(groups: Mapping[str, Group], samples: Mapping[str, NDArray[np.uint8]]) -> Section:
    shown = [
        (name, _description(group), [Picture(png(image), f"A held-out image of {name}") for image in samples[name]])
        for name, group in groups.items()
        if name in samples
    ]
    return Section("samples", "Images of the groups", folded="held-out examples", pictures=shown)


def _key_metrics(view: RunView, found: Sequence[Finding], audit: pd.DataFrame | None) -> Sequence[tuple[str, str, str]]:
    """Return the key metrics, as triples of name, value and remark."""
    run, overall = view.run, view.summary.overall
    exposure = ("Attack accuracy", DASH, "no attack was measured")
    if worst := next(iter(most_exposed(found)), None):
        name, value, remark = exposure_tile(worst)
        exposure = (name, value, f"{worst.title}, view: {worst.view}, on {worst.group}; {remark}")
    better = "" if run.metric == ACCURACY else "; higher is better"
    accuracy, rounds = view.metric("accuracy"), int(view.rounds["round"].max())
    mean, own = overall.get("accuracy.overall"), own_accuracy(view.summary)
    whose = f"on the held-out {run.kind} of a client's group, mean over clients{better}"
    if not isnan(own) and run.metric == ACCURACY:
        mean, whose = own, f"on each client's own held-out {run.kind}"
    tiles = [(capitalize(accuracy.name), accuracy.text(mean), whose), exposure]
    if view.limited:
        point = METRICS["violations"].text(overall.get("violations.total"))
        limits = f"of {len(view.clients)} clients, at 95 % confidence; {point} by the point estimate"
        limits += "" if audit is None else "; by the run's own attack, not the audit's"
        tiles.append(_tile("exceeded", overall.get("exceeded.total"), limits))
    return (*tiles, ("Rounds", count(rounds), "of training"))


def _tile(key: str, value: float | None, remark: str) -> tuple[str, str, str]:
    return (capitalize(METRICS[key].name), METRICS[key].text(value), remark)


def _description(group: Group) -> str:
    """Describe a group's share and shift."""
    parts = [f"{100 * group.share:g} % of the clients" if group.share > 0 else "held-out images only, without clients"]
    if group.rotation is not None:
        parts.append(f"rotated by {group.rotation[0]:g} to {group.rotation[1]:g} degrees")
    if group.brightness is not None:
        parts.append(f"brightness times {group.brightness[0]:g} to {group.brightness[1]:g}")
    if group.label_shift:
        parts.append(f"labels shifted by {group.label_shift}")
    if group.shift_per == "client" and group.share > 0:
        parts.append("drawn for each client, and for each held-out image")
    return "; ".join(parts)


CANARIES = (
    "canaries.found", "canaries.tpr_at_fpr_0.1", "canaries.tpr_at_fpr_0.01", "canaries.auc", "canaries.epsilon_low",
)  # fmt: skip


def canary_section(metrics: Metrics) -> Section:
    """Create the section about a run's canaries, from metrics by their key in `summary.json`."""
    members, non_members = (metrics.get(f"canaries.{kind}", 0) for kind in ("members", "non_members"))
    rows = []
    for key in (key for key in CANARIES if key in metrics):
        ends = [metrics.get(f"{key}.{end}") for end in ("low", "high")]
        ends = [*auc_interval(metrics[key], members, non_members)] if key == "canaries.auc" else ends
        interval = " to ".join(METRICS[key].text(end) for end in ends if end is not None)
        rows.append(metric_row(METRICS[key], METRICS[key].text(metrics[key]), interval, family="canaries, "))
    about = (
        "Canaries are examples with a wrong label. By random draw, clients trained on "
        f"{count(members)} canaries and left out {count(non_members)}. The figures show how well the final models "
        "remember single, unusual examples, which are usually more exposed than the average record."
    )
    table = metric_table("Canaries", ("value", "95 % interval"), rows)
    return Section("canaries", table.title, (about, *_broken(metrics)), table=table)


def _broken(metrics: Metrics) -> tuple[str, ...]:
    """Explain a bound above the stated epsilon, if there is one."""
    low, stated = metrics.get("canaries.epsilon_low", 0.0), metrics.get("epsilon")
    if stated is None or low <= stated:
        return ()
    return (
        f"The canaries prove an epsilon of at least {decimal(low)}, above the stated {decimal(stated)}: either "
        "the guarantee is broken, or the bound is too high by chance (at most 5 in 100 are), or the attack uses "
        "information that epsilon does not cover, such as the choice of a model.",
    )
