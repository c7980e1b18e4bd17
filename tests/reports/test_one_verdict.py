"""One verdict: every page, file and command says the same of a group and a view, with the same interval."""

import json
import re
import runpy
from html import unescape
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from audit_of_any_shape import attack_row, audit_of
from run_of_any_shape import ROUNDS, finished, report_text, summary_of
from shoal.audit.audit import Audit
from shoal.audit.finding import (
    BY,
    Estimate,
    Finding,
    every_attack,
    exposure_summary,
    findings,
    most_exposed,
    run_findings,
    sentence,
)
from shoal.cli.displays import format_audit
from shoal.metrics.summary import parse_summary
from shoal.reports.sweep.report_spec import Labels, ReportSpec
from shoal.reports.sweep.seed_statistics import SeedStatistics
from shoal.reports.sweep.sweep_tables import Settings, sweep_headlines as sweep_answers
from shoal.runs.audits.audit_files import AboutAudited, AuditRequest, write_audit
from shoal.runs.audits.card import write_card
from shoal.runs.comparison import compare
from shoal.runs.result import read_tables

READER = Path(__file__).parents[2] / "docs" / "lessons" / "read.py"
ATTACKS = ("lira", "rmia", "gap", "trajectory", "fedmia-i")
"""Of an outsider, a client and the server."""


def made_up_audit(seed: int) -> Audit:
    """An audit of one to nine groups, with small groups, ties, attacks that are NaN and views without any attack."""
    rng = np.random.default_rng(seed)
    groups = [f"g{g}" for g in range(1 if seed % 5 == 0 else rng.integers(1, 10))]
    attacks = ATTACKS[: rng.integers(1, 6)]
    rows = []
    for name in groups:
        records, tie = int(rng.choice([8, 60, 400, 4000])), rng.uniform(0.45, 1.0)
        for attack in attacks:
            accuracy = nan if rng.random() < 0.2 else tie if seed % 4 == 0 else rng.uniform(0.45, 1.0)
            width = nan if rng.random() < 0.1 else 3.0 / np.sqrt(records)
            rows.append(attack_row(attack, "group", name, accuracy, width=width, records=records, tpr=rng.random()))
        rows[-len(attacks)]["chosen"] = True
    rows += [attack_row(attack, "all", "all", 0.6, records=500) for attack in attacks]
    return audit_of(rows=rows)


@pytest.fixture(params=range(20))
def made(request, tmp_path) -> tuple[Path, Audit, list[Finding]]:
    """A finished run with a made-up audit, and its findings."""
    out, audit = tmp_path, made_up_audit(request.param)
    finished(out, ["a", "b"])
    write_audit(out, audit, AboutAudited("title", run=out, rounds=ROUNDS), AuditRequest())
    return out, audit, findings(audit.attacks)


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub("<[^>]+>", " ", html)).split())


def row_of(one: Finding) -> str:
    """The row of a finding in the table of pages."""
    whose = "all records" if one.group == "all" else one.group
    return f"{whose} to {BY[one.view]} {one.verdict} {one.accuracy.text} {one.accuracy.interval}".strip()


def test_every_surface_says_the_same_of_each_group_and_view(made, monkeypatch, capsys) -> None:
    out, audit, found = made
    assert found
    monkeypatch.setattr("sys.argv", ["read.py", str(out)])
    runpy.run_path(str(READER))
    reader, terminal = capsys.readouterr().out.splitlines(), format_audit(audit).splitlines()
    listed = json.loads((out / "audit.json").read_text())["findings"]
    card = write_card(out)
    views, card_text = card.document["exposure"]["views"], text_of(card.page.read_text())
    pages = [text_of((out / "audit.html").read_text()), text_of(report_text(out))]
    compared = compare([out, out]).metrics
    for one, entry, line in zip(found, listed, reader, strict=True):
        figure, ends = one.accuracy.figure, (one.accuracy.low, one.accuracy.high)
        assert entry == one.json
        assert line.split() == [one.view, one.group, *figure.split(), *one.verdict.split()]
        rows = [row for row in terminal if re.match(rf"{one.view} +{one.group} ", row)]
        assert [one.verdict in row and figure in row for row in rows] == [True]
        of_card = views[one.view][one.group]
        assert (of_card["outcome"], of_card["accuracy"]) == (one.verdict, one.accuracy.value)
        assert (of_card.get("low", nan), of_card.get("high", nan)) == pytest.approx(ends, nan_ok=True)
        assert set(compared.loc[f"{one.group}, to {BY[one.view]}"]) == {f"{one.verdict}: {figure}"}
        for page in pages if one.accuracy.known else ():
            assert row_of(one) in page
    for page in (*pages, card_text):
        assert exposure_summary(found) in page
    # The title of the figure, and the box of both pages.
    assert exposure_summary(found, unasked=False).removesuffix(".") in pages[0]


def test_a_printed_audit_and_a_printed_run_give_the_answer_in_five_lines(made) -> None:
    out, audit, found = made
    shown = str(audit).splitlines()
    assert len(shown) <= 5
    assert shown[-1] == exposure_summary(found)
    lines = str(read_tables(out)).splitlines()
    assert len(lines) <= 5
    assert exposure_summary(found) in lines
    assert sentence(most_exposed(found)[0]) in lines


def test_tables_show_the_intervals_of_the_findings(made) -> None:
    """Also those of attacks that do not decide are inside [0, 1], with as many at once."""
    _, audit, found = made
    every = every_attack(audit.attacks, "group")
    for one in found:
        same = [other for other in every.get(one.group, []) if other.attack == one.attack]
        assert all(str(other.accuracy) == str(one.accuracy) for other in same)
    for one in (one for of_group in every.values() for one in of_group):
        for figure in (one.accuracy, one.auc, *one.tpr.values()):
            assert not figure.low < 0
            assert not figure.high > 1


def test_a_run_without_an_audit_has_one_finding_per_group_on_its_page_and_in_a_comparison(tmp_path) -> None:
    finished(tmp_path, ["a", "b"])
    found = run_findings(parse_summary(summary_of(["a", "b"], 2)))
    assert [(one.view, one.group, one.verdict) for one in found] == [
        ("outsider", "a", "exposed"),
        ("outsider", "b", "exposed"),
    ]
    page, compared = text_of(report_text(tmp_path)), compare([tmp_path, tmp_path]).metrics
    for one in found:
        assert row_of(one) in page
        assert set(compared.loc[f"{one.group}, to an outsider"]) == {f"exposed: {one.accuracy.figure}"}


def test_a_sweep_counts_the_verdicts_of_its_runs() -> None:
    ends = [(0.7, 0.65, 0.75), (0.52, 0.47, 0.57), (0.6, 0.4, 0.8)]
    rows = [
        {"run": str(s), "seed": s, "view": "server", "violations.few": 0}
        | dict(zip(("mia.few", "mia_low.few", "mia_high.few"), of, strict=True))
        for s, of in enumerate(ends)
    ]
    statistics = SeedStatistics(pd.DataFrame(rows), {}, range(3))
    said = sweep_answers(Settings.of(statistics, ReportSpec(), Labels({})))[-1].text
    expected = [Estimate(*of).verdict for of in ends]
    assert sorted(expected) == ["at chance", "exposed", "not decided"]
    assert said == ("Few to the server: exposed in 1 of 3 runs, not decided in 1 of 3 runs, at chance in 1 of 3 runs.")
