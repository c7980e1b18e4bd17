"""The tables and sentences of a run's page: rates, limits, clients, canaries, time, chance and epsilon."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from html_page import page_of
from run_of_any_shape import (
    clients_of,
    config_of,
    finished,
    frames_of,
    meanings_of,
    report_text,
    samples_of,
    summary_of,
    texts_of,
    usual_page,
    view_of,
)
from shoal.control import LimitController
from shoal.core.formats import DASH
from shoal.metrics import Metric
from shoal.metrics.summary import Summary, flatten, parse_summary
from shoal.reports.run import run_tables
from shoal.reports.run.description import RecordedUpdates, RunDescription
from shoal.reports.run.run_charts import violations
from shoal.reports.run.run_page import canary_section, run_page
from shoal.reports.run.run_tables import (
    client_table,
    cluster_table,
    group_table,
    overall,
    strongest_attacks,
    with_limits,
)
from shoal.reports.run.run_verdict import answer, limits
from shoal.reports.table import ReportTable
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
        (299, 300, (DASH, "0.250"), (DASH, DASH)),
        (2999, 3000, ("0.250", "0.250"), (DASH, "0.250")),
        (3000, 3000, ("0.250", "0.250"), ("0.250", "0.250")),
    ],
)
def test_a_rate_below_three_non_members_is_a_dash(
    a: int, b: int, at_1_percent: tuple[str, str], at_01_percent: tuple[str, str]
) -> None:
    table = group_table(view_of(GROUPS, 2, SUMMARY | non_members(a, b)))
    for name, cells, rate in (("TPR at 1 % FPR", at_1_percent, "1 %"), ("TPR at 0.1 % FPR", at_01_percent, "0.1 %")):
        assert texts_of(table)[name] == cells
        assert (f"Chance: {rate}." in meanings_of(table)[name]) == (set(cells) != {DASH})
        assert ("too few non-members" in meanings_of(table)[name]) == (DASH in cells)
    assert ("need at least 3,000 (got 299)" in meanings_of(table)["TPR at 0.1 % FPR"]) == (a == 299)


def test_a_cluster_s_non_members_count_by_their_weights() -> None:
    """Cluster 0: nine examples of a to one of b, which weigh like 366 of 300 and 300; cluster 1: only b."""
    places = {"group": ["a", "b", "b"], "cluster": [0, 0, 1], "examples": [9, 1, 5]}
    clients = clients_of(GROUPS, 2).head(3).assign(**places)
    for a, b, cells in ((245, 245, (DASH, DASH)), (246, 300, ("0.250", "0.250"))):
        table = cluster_table(view_of(GROUPS, 2, SUMMARY | non_members(a, b), clients=clients))
        assert texts_of(table)["TPR at 1 % FPR"] == cells


FOUND = {"mia_by_gap.a": 0.52, "mia_by_rmia.a": 0.5625, "mia_by_rmia.b": 0.51, "mia_by_lira_offline.b": 0.5635,
         "mia_null_high.a": 0.531}  # fmt: skip


@pytest.fixture
def summary():
    return parse_summary(summary_of(["a", "b"], 2) | {"references": 4, "exceeded.total": 0} | FOUND)


def test_the_answer_names_the_strongest_attack(summary):
    text = answer(summary)
    assert "Exposed: a and b to an outsider." in text
    assert "chance 0.5, by offline LiRA." in text
    assert "by the point estimate of the deciding attack, 1 does" in text
    plain = answer(parse_summary(summary_of(["a", "b"], 2)))
    assert "reference" not in plain


def test_a_table_has_every_attack_the_strongest_first(summary):
    cells = texts_of(run_tables.by_attack(view_of(["a", "b"], 2, summary)))
    assert [*cells.items()] == [
        ("Deciding attack", ("RMIA", "Offline LiRA")),
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
    assert "Attacks by an outsider, with 4 reference federations." in page
    assert "offline LiRA, view: outsider, on b; exposed; 95 % interval 0." in page
    assert "<td>RMIA</td>" in page
    assert "This is the configured attack, not the deciding attack." in page
    assert "reference federation" not in usual_page()


def test_the_strongest_in_the_table_is_the_attack_that_decides_not_the_largest() -> None:
    given = {"mia.a": 0.55, "mia_by_rmia.a": 0.55, "mia_by_lira.a": 0.58}
    cells = texts_of(run_tables.by_attack(view_of(["a"], 1, summary_of(["a"], 1) | given)))
    assert cells["Deciding attack"] == ("RMIA",)


def test_a_metric_of_the_user_s_own_has_its_name_and_format_in_each_table():
    own = Metric("calibration", "calibration error", "Of images.", "percent", "lower")
    keys = {"calibration": 0.125, "calibration.a": 0.25, "clusters.1.calibration": 0.5, "undeclared": 2.0}
    view = view_of(GROUPS, 2, summary_of(GROUPS, 2) | keys, metrics=(own,), kind="rows")
    assert texts_of(overall(view))["calibration error"] == ("12.5 %",)
    assert texts_of(overall(view))["undeclared"] == ("2",)
    assert texts_of(group_table(view))["calibration error"] == ("25.0 %", DASH)
    assert texts_of(cluster_table(view))["calibration error"] == (DASH, "50.0 %")
    assert meanings_of(group_table(view))["calibration error"] == "Of images.", "the user's words stay as they are"


def with_intervals() -> pd.DataFrame:
    """Limits 0.5, 0.56, ... 0.8: client 0 is over for certain by LiRA, 1 by the point estimate alone, 5 unmeasured."""
    exposure = np.array([0.70, 0.60, 0.55, 0.52, 0.52, np.nan])
    frame = clients_of(GROUPS, 2).assign(
        violated=[True, True, False, False, False, False], exposure=exposure, exposure_low=exposure - 0.05,
        attack=["lira", "loss", "loss", "shadow", "shadow", None],
    )  # fmt: skip
    return frame.assign(exceeded=frame["exposure_low"] > frame["threshold"])


def many(count: int, over: int) -> pd.DataFrame:
    ids = np.arange(count)
    frame = pd.concat([clients_of(GROUPS, 1)] * (count // 6 + 1), ignore_index=True).head(count)
    mia = np.where(ids < over, 0.61 + ids / 1e4, 0.5)
    return frame.assign(
        client=ids, threshold=0.6, exposure=mia, exposure_low=mia, violated=ids < over, exceeded=ids < over
    )


def table_of(clients: pd.DataFrame) -> ReportTable:
    return client_table(view_of(GROUPS, 2, clients=clients))


def column(table: ReportTable, head: str) -> list[str]:
    return table.frame()[head].tolist()


def test_rows_are_sorted_by_how_far_the_limit_is_exceeded_and_name_the_attack() -> None:
    table = table_of(with_intervals())
    assert column(table, "client") == ["0", "1", "2", "3", "4", "5"]
    assert column(table, "limit is") == ["exceeded", "above, not certain", "within", "within", "within", DASH]
    assert column(table, "over by") == [
        "+0.150",
        "\N{MINUS SIGN}0.010",
        "\N{MINUS SIGN}0.120",
        "\N{MINUS SIGN}0.210",
        "\N{MINUS SIGN}0.270",
        DASH,
    ]
    assert column(table, "attack") == ["lira", "loss", "loss", "shadow", "shadow", DASH]
    assert column(table, "exposure, low end")[0] == "0.650"
    assert table.sorted_by is not None
    assert table.columns[table.sorted_by].head == "over by"
    assert [row.style for row in table.rows] == ["over", *[""] * 5]


def test_numbers_sort_as_numbers_also_where_they_are_undefined_or_infinite() -> None:
    table = table_of(with_intervals().assign(epsilon=[np.inf, 2.5, 2.5, 2.5, 2.5, np.nan]))
    texts, numbers = column(table, "epsilon"), table.frame(lambda cell: cell.sort)["epsilon"].tolist()
    assert [texts[i] for i in (0, 1, 5)] == ["\N{INFINITY}", "2.500", DASH]
    assert [numbers[i] for i in (0, 1, 5)] == ["Infinity", "2.5", ""]


@pytest.mark.parametrize(("count", "over", "rows"), [(200, 3, 200), (201, 3, 3), (201, 0, 0), (3000, 1500, 1000)])
def test_of_many_clients_only_those_over_their_limit_have_a_row(count: int, over: int, rows: int) -> None:
    table = table_of(many(count, over))
    assert len(table.rows) == rows
    assert column(table, "client")[:2] == [str(over - 1), str(over - 2)][:rows]
    assert ("; clients.csv has all." in table.caption) == (rows < count)
    assert ("no limit is exceeded" in table.caption) == (over == 0)
    assert ("over their limit (the first 1,000);" in table.caption) == (rows < over)


@pytest.mark.usefixtures("_unrendered_figures")
def test_the_page_has_the_table_from_the_file(tmp_path: Path) -> None:
    finished(tmp_path, GROUPS)
    with_intervals().to_csv(tmp_path / "clients.csv", index=False)
    new = report_text(tmp_path)
    text = page_of(new).text
    assert "0 a 0 exceeded +0.150 0.500 0.700 0.650 lira" in text
    assert 'aria-sort="descending">over by<' in new
    listed = new.partition('<section aria-labelledby="clients">')[2].partition("</section>")[0]
    assert listed.count('<tr class="over">') == 1
    assert page_of(new).tags.count("script") == 1


@pytest.mark.usefixtures("_unrendered_figures")
def test_names_in_the_table_are_escaped() -> None:
    config, summary = config_of(GROUPS, 2), parse_summary(summary_of(GROUPS, 2))
    frames = frames_of(GROUPS, 2)
    frames["clients"] = with_intervals().assign(attack=["<script>alert(1)</script>", *["loss"] * 5])
    page = page_of(run_page(RunDescription.of(config), summary, {}, **frames))
    assert page.tags.count("script") == 1
    assert "<script>alert(1)</script>" in page.text


@pytest.mark.usefixtures("_unrendered_figures")
def test_the_answer_and_headline_say_both_numbers() -> None:
    flat = summary_of(GROUPS, 2) | {"violations.total": 3, "exceeded.total": 1, "exceeded.a": 1, "exceeded.b": 0}
    summary = parse_summary(flat)
    assert summary.overall["exceeded.total"] == 1
    assert summary.by_group["a"]["exceeded"] == 1
    assert flatten(summary) == flat
    said = limits(summary)
    assert said.startswith("1 of 6 clients exceeds its limit at 95 % confidence")
    assert said.endswith("by the point estimate of the configured attack, 3 do")
    page = page_of(run_page(RunDescription.of(config_of(GROUPS, 2)), summary, {}, **frames_of(GROUPS, 2)))
    assert "Limits exceeded 1 of 6 clients, at 95 % confidence; 3 by the point estimate" in page.text


def test_the_figure_tells_those_who_are_certainly_over_from_those_who_may_be() -> None:
    figure = violations(with_limits(with_intervals()), GROUPS)
    assert figure is not None
    assert "1 of 5 limits is exceeded at 95 % confidence" in figure.image
    assert "Above the limit by the point estimate, but not at 95 % confidence: 1." in figure.image


METRICS = {
    "canaries.members": 40, "canaries.non_members": 50, "canaries.auc": 0.9,
    "canaries.found": 0.5, "canaries.found.low": 0.34, "canaries.found.high": 0.66,
    "canaries.tpr_at_fpr_0.1": 0.75, "canaries.tpr_at_fpr_0.1.low": 0.59, "canaries.tpr_at_fpr_0.1.high": 0.87,
    "canaries.epsilon_low": 1.25, "canaries.delta": 1e-5,
}  # fmt: skip


def cells(metrics):
    return texts_of(canary_section(metrics).table)


def test_each_figure_stands_with_its_interval():
    assert cells(METRICS) == {
        "TPR without false positives": ("0.500", "0.340 to 0.660"),
        "TPR at 10 % FPR": ("0.750", "0.590 to 0.870"),
        "AUC": ("0.900", "0.809 to 0.948"),
        "Epsilon, lower bound": ("1.250", ""),
    }


def test_a_bound_above_the_stated_epsilon_is_said_in_words():
    def words(**stated):
        return " ".join(canary_section(METRICS | stated).paragraphs)

    assert "clients trained on 40 canaries and left out 50." in words()
    assert "the guarantee is broken" in words(epsilon=1.0)
    assert "the guarantee is broken" not in words(epsilon=1.5)
    assert "the guarantee is broken" not in words()


def test_canaries_recorded_updates_and_a_coordinator_are_on_the_page_of_a_run_that_has_them():
    summary, frames = parse_summary(summary_of(["a", "b"], 2) | METRICS), frames_of(["a", "b"], 2)
    steered = {"directive.l2": frames["rounds"]["round"].gt(1) / 2, "over_limit": 0.3, "limit_unmet": 0.0}
    more = {"recorded": RecordedUpdates((2, 4), 1_250_000)}
    more |= frames | {"rounds": frames["rounds"].assign(**steered)}
    described = replace(RunDescription.of(config_of(["a", "b"], 2)), coordinator=LimitController(target=0.25))
    with unrendered_figures():
        page = page_of(run_page(described, summary, {}, **more))
    ids = ["figures", "coordinated", "canaries", "clients", "recorded"]
    assert [each for each in page.ids if each in ids] == ids
    assert "The updates of 2 rounds from 2 to 4 are recorded: 1.2 MB in the folder updates." in page.text
    assert not {"canaries", "recorded", "coordinated"} & set(page_of(usual_page()).ids)


def said(clusters: int = 2, /, **more: float) -> str:
    named = {key.replace("__", "."): value for key, value in more.items()}
    return answer(parse_summary(summary_of(GROUPS, clusters) | named))


def test_with_one_group_a_clients_own_examples_decide_whether_clusters_beat_guessing() -> None:
    """Clusters of one group fit different clients, so each model fails on the others' examples."""
    one = {"a": {"accuracy": 0.5, "most_frequent_class": 0.55, "test_examples": 400}}
    overall = {"accuracy.overall": 0.5, "violations.total": 0}
    own = overall | {"baseline.clusters.accuracy": 0.7}
    assert "not shown to beat guessing" in answer(Summary({"view": "outsider"}, overall, one))
    text = answer(Summary({"view": "outsider"}, own, one))
    assert "guessing" not in text
    assert "0.700 on each client's own test images, 0.500 on the test images of all clients" in text
    assert "guessing" in answer(Summary({"view": "outsider"}, own | {"baseline.clusters.accuracy": 0.56}, one))


def test_an_accuracy_that_is_the_share_of_the_most_frequent_class_is_not_below_it() -> None:
    share = 361 / 400
    single = float(np.float32(share))
    assert single != share
    text = said(accuracy__a=share, most_frequent_class__a=single, most_frequent_class__b=0.5)
    assert "not shown to beat guessing" in text


@pytest.mark.parametrize("share", [{}, {"most_frequent_class__a": 0.7, "most_frequent_class__b": 0.5}])
def test_an_accuracy_above_it_or_compared_with_nothing_is_not(share: dict[str, float]) -> None:
    assert "beat guessing" not in said(**share)


@pytest.mark.parametrize(("clusters", "chosen"), [(1, False), (2, True)])
def test_epsilon_is_said_with_what_it_does_not_cover(clusters: int, chosen: bool) -> None:
    text = said(clusters, epsilon=3.5, delta=1e-5)
    assert "epsilon 3.50 at delta 1e-05" in text
    assert "all examples of a client together" in text
    assert ("the choice of a model" in text) == chosen


def test_the_limit_on_every_attack_stands_beside_what_was_found_in_its_view() -> None:
    bounds = {"bound__outsider__accuracy": 0.85, "bound__outsider__auc": 0.9, "bound__server__accuracy": 0.95}
    text = said(epsilon=9.5, delta=1e-5, mia__a=0.61, mia__b=0.55, **bounds)
    assert "by an outsider has accuracy 0.610; no attack on one record can exceed 0.850 (AUC 0.900)" in text
    assert "0.950" not in text
    assert "no attack noticeably" in said(epsilon=90.0, **bounds | {"bound__outsider__accuracy": 0.999})
    assert "no attack" not in said(epsilon=9.5, delta=1e-5)


def test_without_noise_nothing_is_guaranteed_and_without_private_steps_nothing_is_said() -> None:
    assert "guarantees nothing" in said(delta=1e-5)
    assert "ifferential privacy" not in said()


def test_the_share_of_the_most_frequent_class_is_found_on_few_examples_too() -> None:
    assert "a 0.460 against 0.530" in said(accuracy__a=0.46, most_frequent_class__a=0.53)
