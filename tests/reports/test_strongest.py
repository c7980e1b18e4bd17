"""What pages, verdicts and sweeps say of a run that its strongest attack judges."""

import pytest

from run_of_any_shape import (
    clients_of,
    config_of,
    frames_of,
    samples_of,
    summary_of,
    texts_of,
    usual_page,
    view_of,
)
from shoal.config.schema import parse_config
from shoal.core.formats import DASH
from shoal.metrics.summary import parse_summary
from shoal.reports.run import run_tables
from shoal.reports.run.description import RunDescription
from shoal.reports.run.run_page import run_page
from shoal.reports.run.run_verdict import verdict
from shoal.reports.run.run_view import strongest_attacks
from shoal.reports.sweep.labels import Labels
from unrendered import unrendered_figures

FOUND = {"mia_by_gap.a": 0.52, "mia_by_rmia.a": 0.5625, "mia_by_rmia.b": 0.51, "mia_by_lira_offline.b": 0.5635,
         "mia_null_high.a": 0.531}  # fmt: skip


@pytest.fixture
def summary():
    return parse_summary(summary_of(["a", "b"], 2) | {"references": 4, "exceeded.total": 0} | FOUND)


def test_the_verdict_names_the_strongest_attacks(summary):
    text = verdict(summary)
    assert (
        "The attack chosen beforehand with 4 reference federations, or one that is certain to find more, tell" in text
    )
    assert "0.562 (0.525 to 0.594; 95 % of tests at chance: at most 0.531) for a by RMIA; 0.564 (0." in text
    assert "for b by offline LiRA" in text
    assert "by the point estimate of the attack that decides, 1 does" in text
    plain = verdict(parse_summary(summary_of(["a", "b"], 2)))
    assert "beforehand" not in plain
    assert "reference" not in plain


def test_a_table_has_every_attack_the_strongest_first(summary):
    cells = texts_of(run_tables.by_attack(view_of(["a", "b"], 2, summary)))
    assert [*cells.items()] == [
        ("Attack that decides", ("RMIA", "Offline LiRA")),
        ("Offline LiRA", (DASH, "0.564")),
        ("RMIA", ("0.562", "0.510")),
        ("Gap", ("0.520", DASH)),
    ]
    assert strongest_attacks(summary) == {"a": "RMIA", "b": "offline LiRA"}
    assert run_tables.by_attack(view_of(["a"], 1)) is None


def test_the_page_says_how_many_reference_federations_were_asked(summary):
    config = config_of(["a", "b"], 2)
    frames = frames_of(["a", "b"], 2)
    frames["clients"] = clients_of(["a", "b"], 2).assign(
        exposure=0.56, exposure_low=0.5, attack=["rmia", "none", "lira-offline"] * 2, exceeded=False
    )
    with unrendered_figures():
        page = run_page(RunDescription.of(config), summary, samples_of(["a", "b"]), **frames)
    assert "4 reference federations were asked for." in page
    assert "those of 4 reference federations, the whole run again each" in page
    assert "highest of the groups: b; by offline LiRA; guessing: 0.500" in page
    assert "<td>RMIA</td>" in page
    assert "It is the configured attack, not the one that decides." in page
    assert "reference federation" not in usual_page()


@pytest.mark.usefixtures("_unrendered_figures")
def test_a_page_says_where_they_were_asked_for_in_vain():
    config = config_of(["a"], 1)
    table = config.table() | {"evaluation": {"reference_federations": 3}}
    described = RunDescription.of(parse_config(table, "test"))
    assert described.reference_federations == 3
    page = run_page(described, parse_summary(summary_of(["a"], 1)), {}, **frames_of(["a"], 1))
    assert "the 3 reference federations that were asked for have no members to be asked about" in page


def test_sweeps_have_names_for_the_new_metrics():
    labels = Labels({})
    assert labels.key("mia_by_other_clusters.far") == "MIA accuracy, other clusters' models, far"
    assert labels.key("mia.far") == "MIA accuracy, far"
    assert labels.key("references") == "reference federations"


def test_times_of_reference_federations_are_shown_where_there_are_some():
    shown = [
        texts_of(run_tables.seconds({"seconds.total": 60.0} | more)) for more in ({}, {"seconds.references": 30.0})
    ]
    assert ["Time, reference federations" in each for each in shown] == [False, True]


def test_the_strongest_in_the_table_is_the_attack_that_decides_not_the_largest() -> None:
    given = {"mia.a": 0.55, "mia_by_rmia.a": 0.55, "mia_by_lira.a": 0.58}
    cells = texts_of(run_tables.by_attack(view_of(["a"], 1, summary_of(["a"], 1) | given)))
    assert cells["Attack that decides"] == ("RMIA",)
