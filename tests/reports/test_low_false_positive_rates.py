"""True positive rates at low false positive rates are numbers only where there are non-members enough for the rate."""

import pytest

from run_of_any_shape import clients_of, config_of, frames_of, meanings_of, summary_of, texts_of, view_of
from shoal.core.formats import DASH
from shoal.metrics.summary import parse_summary
from shoal.reports.run.description import RunDescription
from shoal.reports.run.run_page import run_page
from shoal.reports.run.run_tables import by_cluster, by_group

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
        assert (f"Guessing: {rate}." in meanings_of(table)[name]) == (set(cells) != {DASH})
        assert ("too few non-members" in meanings_of(table)[name]) == (DASH in cells)
    assert ("3,000 are needed, 299 are there" in meanings_of(table)["TPR at 0.1 % FPR"]) == (a == 299)


def test_a_cluster_s_non_members_count_by_their_weights() -> None:
    """Cluster 0: nine examples of a to one of b, which weigh like 366 of 300 and 300; cluster 1: only b."""
    places = {"group": ["a", "b", "b"], "cluster": [0, 0, 1], "examples": [9, 1, 5]}
    clients = clients_of(GROUPS, 2).head(3).assign(**places)
    for a, b, cells in ((245, 245, (DASH, DASH)), (246, 300, ("25.0 %", "25.0 %"))):
        table = by_cluster(view_of(GROUPS, 2, SUMMARY | non_members(a, b), clients=clients))
        assert texts_of(table)["TPR at 1 % FPR"] == cells


@pytest.mark.parametrize(("extra", "dashes"), [({}, True), ({"non_members.a": 300, "non_members.b": 300}, False)])
@pytest.mark.usefixtures("_unrendered_figures")
def test_the_page_takes_the_number_from_the_summary_or_else_from_the_configuration(
    extra: dict[str, int], dashes: bool
) -> None:
    """The configuration has 30 test examples, 15 for each group."""
    summary = parse_summary(summary_of(GROUPS, 2) | KNOWN | extra)
    text = run_page(RunDescription.of(config_of(GROUPS, 2)), summary, {}, **frames_of(GROUPS, 2))
    by_groups = text.partition('id="by-group"')[2].partition('id="by-cluster"')[0]
    line = next(line for line in by_groups.splitlines() if "TPR at 1 % FPR" in line)
    assert (f">{DASH}<" in line) == dashes
    assert ("15 are there" in line) == dashes
    assert "Guessing: 0.1 %" not in by_groups
