"""Titles of figures: a finding flips with the data, and an order is said only where intervals hold it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from audit_of_any_shape import records_frame
from run_of_any_shape import clients_of, roc_of, rounds_of, summary_of
from shoal.control import LimitController
from shoal.metrics.summary import parse_summary
from shoal.reports import plotting
from shoal.reports.audit.audit_charts import exposure_of_records
from shoal.reports.run.coordinator_section import coordinator_section
from shoal.reports.run.run_charts import accuracy_by_group, cluster_sizes, risk, roc_figure, violations
from shoal.reports.run.run_tables import with_limits
from shoal.reports.sweep.report_spec import FigureSpec, Labels
from shoal.reports.sweep.seed_statistics import SeedStatistics
from shoal.reports.sweep.sweep_charts import FigureData, chart_content

pytestmark = pytest.mark.usefixtures("_unrendered_figures")
GROUPS = ["a", "b"]


def title(figure: plotting.Figure | None) -> str:
    assert figure is not None
    return figure.title


def test_a_model_is_called_by_the_group_that_most_of_its_clients_are_of() -> None:
    rounds = rounds_of(GROUPS, 2)
    rounds.loc[rounds["cluster"] == 1, "clients.a"] = 0
    summary = parse_summary(summary_of(GROUPS, 2))
    assert title(risk(rounds, summary, estimated=True, estimator="shadow")).endswith(
        "0.500 (cluster 0), 0.580 (cluster 1, b) at the end"
    )


def test_limits_that_are_exceeded_are_counted_by_group() -> None:
    clients = with_limits(clients_of(GROUPS, 2))
    assert title(violations(clients, GROUPS)) == (
        "1 of 6 limits is exceeded at 95 % confidence, by the run's attack: 1 of 3 in b"
    )
    within = with_limits(clients_of(GROUPS, 2).assign(exceeded=False))
    assert title(violations(within, GROUPS)).startswith("None of 6 limits is exceeded")


def test_the_area_under_the_curves_is_that_of_the_points() -> None:
    diagonal = pd.DataFrame({"group": "a", "non_members": "group", "fpr": [0.0, 0.5, 1.0], "tpr": [0.0, 0.5, 1.0]})
    assert title(roc_figure(diagonal, ["a"])) == "The run's attack has AUC 0.500 (a); chance is 0.5"
    assert title(roc_figure(diagonal.assign(tpr=[0.0, 1.0, 1.0]), ["a"], configured=True)).startswith(
        "The configured attack has AUC 0.750 (a)"
    )
    assert "AUC 0.6" in title(roc_figure(roc_of(GROUPS), GROUPS))


def test_a_plain_trace_states_its_ends() -> None:
    rounds = rounds_of(GROUPS, 2)
    assert title(accuracy_by_group(rounds, GROUPS)) == "Accuracy by group ends at 0.800 (a), 0.800 (b)"
    assert title(cluster_sizes(rounds, GROUPS, {0: 4, 1: 2})) == "Clients by cluster after round 4: 4 and 2"
    many = rounds_of(GROUPS, 7)
    sizes = dict(enumerate([0, 1, 1, 1, 1, 1, 1]))
    assert title(cluster_sizes(many, GROUPS, sizes)) == "Clients by cluster after round 4: 0 to 1 of 6"


@pytest.mark.parametrize(
    ("shares", "changes", "words"),
    [
        ([0.6, 0.4, 0.2], {}, "The share of clients over their limit falls from 0.600 to 0.200, round 2 to round 4"),
        ([0.2, 0.4, 0.6], {}, "The share of clients over their limit rises from 0.200 to 0.600, round 2 to round 4"),
        ([0.4, 0.6, 0.4], {}, "Share of clients over their limit: 0.400 in round 2 and in round 4"),
        ([0.6, 0.4, 0.2], {"vote_epsilon": 1.0},
         "Share of clients over their limit, estimated from noisy answers: 0.600 to 0.200, round 2 to round 4"),
        ([np.nan] * 3, {}, "Risk was never estimated, so the coordinator asked for nothing"),
    ],
)  # fmt: skip
def test_votes_fall_or_rise_as_they_do(shares: list[float], changes: dict[str, Any], words: str) -> None:
    rounds = rounds_of(GROUPS, 2)
    rounds["over_limit"] = rounds["round"].map(dict(zip((2, 3, 4), shares, strict=True)))
    rounds["limit_unmet"] = 0.0
    section = coordinator_section(replace(LimitController(), **changes), rounds)
    assert section is not None
    assert section.figures[0].title == words


def test_single_records_are_exposed_where_their_lower_ends_are_above_chance() -> None:
    records = records_frame()
    members = records["member"] & records["exposure"].notna()
    none = exposure_of_records(records.assign(**{"exposure.low": 0.4}), ["majority", "minority"], 16)
    assert title(none).endswith(f"with 17 models: 0 of {members.sum()}")
    some = exposure_of_records(records.assign(**{"exposure.low": 0.6}), ["majority", "minority"], 16)
    assert title(some).endswith(f"with 17 models: {members.sum()} of {members.sum()}")


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (0.2, "accuracy, few: Y is highest, 0.7"),
        (-0.2, "accuracy, few: X is highest, 0.5"),
        (0.001, "accuracy, few: no algorithm is shown to be highest (0.5"),
        (0.0, "accuracy, few: the same with every algorithm"),
    ],
)
def test_a_sweep_s_figure_says_what_pairs_of_seeds_show(gain: float, words: str) -> None:
    noise = np.random.default_rng(1).normal(0, 0.02, 5) if gain else np.zeros(5)
    rows = [
        {"run": f"{name}{seed}", "algorithm": name, "seed": seed, "accuracy.few": 0.5 + seed / 50 + change}
        for name, changes in (("X", np.zeros(5)), ("Y", gain + noise))
        for seed, change in enumerate(changes)
    ]
    statistics = SeedStatistics(pd.DataFrame(rows), {"algorithm": ["X", "Y"]}, range(5))
    spec = FigureSpec(kind="bars", x="algorithm", y=["accuracy.few"])
    assert chart_content(FigureData(spec, statistics, Labels({}))).finding.startswith(words)
