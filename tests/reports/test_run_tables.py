"""The tables of a run's page: rates at few false positives, the attack that decides, and a user's own metrics."""

import pytest

from run_of_any_shape import (
    clients_of,
    config_of,
    frames_of,
    meanings_of,
    samples_of,
    summary_of,
    texts_of,
    usual_page,
    view_of,
)
from shoal.config.schema import parse_config
from shoal.core.formats import DASH
from shoal.metrics import Metric
from shoal.metrics.summary import parse_summary
from shoal.reports.run import run_tables
from shoal.reports.run.description import RunDescription
from shoal.reports.run.run_page import run_page
from shoal.reports.run.run_tables import by_cluster, by_group, overall
from shoal.reports.run.run_verdict import verdict
from shoal.reports.run.run_view import strongest_attacks
from shoal.reports.run.time_section import seconds
from shoal.reports.sweep.labels import Labels
from unrendered import unrendered_figures

GROUPS = ["a", "b"]
KNOWN = {f"tpr_at_fpr_{rate}.{name}": 0.25 for rate in ("0.01", "0.001") for name in GROUPS}
OF_CLUSTERS = {f"clusters.{k}.tpr_at_fpr_{rate}": 0.25 for rate in ("0.01", "0.001") for k in range(2)}
SUMMARY = summary_of(GROUPS, 2) | KNOWN | OF_CLUSTERS


def non_members(a: int, b: int) -> dict[str, int]:
    return {"non_members.a": a, "non_members.b": b}


@pytest.mark.parametrize(
    ("a", "b", "at_1_percent", "at_01_percent"),
    [
        (299, 300, (DASH, "25.0 %"), (DASH, DASH)),
        (2999, 3000, ("25.0 %", "25.0 %"), (DASH, "25.0 %")),
        (3000, 3000, ("25.0 %", "25.0 %"), ("25.0 %", "25.0 %")),
    ],
)
def test_a_rate_below_three_non_members_is_a_dash(
    a: int, b: int, at_1_percent: tuple[str, str], at_01_percent: tuple[str, str]
) -> None:
    table = by_group(view_of(GROUPS, 2, SUMMARY | non_members(a, b)))
    for name, cells, rate in (("TPR at 1 % FPR", at_1_percent, "1 %"), ("TPR at 0.1 % FPR", at_01_percent, "0.1 %")):
        assert texts_of(table)[name] == cells
        assert (f"Chance: {rate}." in meanings_of(table)[name]) == (set(cells) != {DASH})
        assert ("too few non-members" in meanings_of(table)[name]) == (DASH in cells)
    assert ("3,000 are needed, 299 are there" in meanings_of(table)["TPR at 0.1 % FPR"]) == (a == 299)


def test_a_cluster_s_non_members_count_by_their_weights() -> None:
    """Cluster 0: nine examples of a to one of b, which weigh like 366 of 300 and 300; cluster 1: only b."""
    places = {"group": ["a", "b", "b"], "cluster": [0, 0, 1], "examples": [9, 1, 5]}
    clients = clients_of(GROUPS, 2).head(3).assign(**places)
    for a, b, cells in ((245, 245, (DASH, DASH)), (246, 300, ("25.0 %", "25.0 %"))):
        table = by_cluster(view_of(GROUPS, 2, SUMMARY | non_members(a, b), clients=clients))
        assert texts_of(table)["TPR at 1 % FPR"] == cells


FOUND = {"mia_by_gap.a": 0.52, "mia_by_rmia.a": 0.5625, "mia_by_rmia.b": 0.51, "mia_by_lira_offline.b": 0.5635,
         "mia_null_high.a": 0.531}  # fmt: skip


@pytest.fixture
def summary():
    return parse_summary(summary_of(["a", "b"], 2) | {"references": 4, "exceeded.total": 0} | FOUND)


def test_the_verdict_names_the_strongest_attacks(summary):
    text = verdict(summary)
    assert (
        "Records of a are exposed to an outsider: attack accuracy 0.562 (0.525 to 0.594), chance 0.5, by RMIA." in text
    )
    assert "chance 0.5, by offline LiRA." in text
    assert "by the point estimate of the attack that decides, 1 does" in text
    plain = verdict(parse_summary(summary_of(["a", "b"], 2)))
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
    assert "With what an outsider sees, and 4 reference federations." in page
    assert "those of 4 reference federations, the whole run again each" in page
    assert "offline LiRA, view: outsider, on b; exposed; 95 % interval 0." in page
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
    shown = [texts_of(seconds({"seconds.total": 60.0} | more)) for more in ({}, {"seconds.references": 30.0})]
    assert ["Reference federations" in each for each in shown] == [False, True]


def test_the_strongest_in_the_table_is_the_attack_that_decides_not_the_largest() -> None:
    given = {"mia.a": 0.55, "mia_by_rmia.a": 0.55, "mia_by_lira.a": 0.58}
    cells = texts_of(run_tables.by_attack(view_of(["a"], 1, summary_of(["a"], 1) | given)))
    assert cells["Attack that decides"] == ("RMIA",)


def test_a_metric_of_the_user_s_own_has_its_name_and_format_in_each_table():
    own = Metric("calibration", "calibration error", "Of images.", "percent", "lower")
    keys = {"calibration": 0.125, "calibration.a": 0.25, "clusters.1.calibration": 0.5, "undeclared": 2.0}
    view = view_of(GROUPS, 2, summary_of(GROUPS, 2) | keys, metrics=(own,), kind="rows")
    assert texts_of(overall(view))["calibration error"] == ("12.5 %",)
    assert texts_of(overall(view))["undeclared"] == ("2",)
    assert texts_of(by_group(view))["calibration error"] == ("25.0 %", DASH)
    assert texts_of(by_cluster(view))["calibration error"] == (DASH, "50.0 %")
    assert meanings_of(by_group(view))["calibration error"] == "Of images.", "the user's words stay as they are"
