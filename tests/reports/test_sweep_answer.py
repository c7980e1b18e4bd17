"""The answer that a sweep's page begins with, and its table of settings: pairs by seed, against scipy."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from shoal.reports.sweep.report_spec import Axes, Labels, ReportSpec, TableSpec
from shoal.reports.sweep.seed_statistics import Best, SeedStatistics
from shoal.reports.sweep.sweep_tables import (
    MOST_CONDITIONS,
    Settings,
    default_figure,
    settings_table,
    sweep_headlines,
)

SEEDS = (0, 1, 2, 3)
AXES: Axes = {"algorithm": ["IFCA", "IFCA-MIR"], "share": [0.1, 0.3]}
KEY = "accuracy.overall"


def results_of(axes: Axes = AXES, gain: float = 0.02) -> pd.DataFrame:
    """Seeds differ much, settings little: only pairs show it. Violations differ by 1 either way."""
    rng = np.random.default_rng(3)
    rows = []
    for settings in product(*axes.values()):
        second = settings[0] != next(iter(axes.values()))[0]
        for seed in SEEDS:
            accuracy = 0.5 + 0.1 * seed + gain * second + 0.001 * rng.random()
            violations = 10 + (second and (-1) ** seed)
            row = dict(zip(axes, settings, strict=True))
            rows.append({"run": str(len(rows)), **row, "seed": seed, KEY: accuracy, "violations.total": violations,
                         "violations.few": violations, "view": "client", "migrated": 3, "mia.few": 0.6, "mia_low.few":
                         0.55, "mia_high.few": 0.65})  # fmt: skip
    return pd.DataFrame(rows)


def settings_of(results: pd.DataFrame, axes: Axes = AXES, spec: ReportSpec | None = None) -> Settings:
    return Settings.of(SeedStatistics(results, axes, SEEDS), spec or ReportSpec(), Labels({}))


def said(results: pd.DataFrame, axes: Axes = AXES) -> dict[str, str]:
    return {question: text for question, text, _ in sweep_headlines(settings_of(results, axes))}


def cells(results: pd.DataFrame, axes: Axes = AXES, spec: ReportSpec | None = None) -> dict[str, list[str]]:
    """The rows of the table up to the second heading, by name."""
    table, found = settings_table(settings_of(results, axes, spec)), dict[str, list[str]]()
    for row in table.rows[bool(table.rows[0].style) :]:
        if row.style:
            break
        found[row.cells[0].text] = [f"{cell.text} {cell.small}".strip() for cell in row.cells[1:]]
    return found


def pairs(results: pd.DataFrame, key: str = KEY) -> tuple[pd.Series, pd.Series]:
    first, second = (results[results["algorithm"] == name].groupby("seed")[key].mean() for name in AXES["algorithm"])
    return first, second


@pytest.mark.parametrize(("gain", "best"), [(0.02, "IFCA-MIR"), (-0.02, "IFCA")])
def test_the_best_setting_flips_with_the_data_and_is_shown_as_scipy_pairs_seeds(gain: float, best: str) -> None:
    results = results_of(gain=gain)
    first, second = pairs(results)[:: 1 if gain > 0 else -1]
    test = stats.ttest_rel(second, first)
    low, high = test.confidence_interval(0.95)
    assert stats.ttest_ind(second, first).confidence_interval(0.95).low < 0, (
        "unpaired, the difference could not be seen"
    )
    answer = said(results)["Which algorithm has the highest accuracy? (accuracy, all clients)"]
    gap = f"{float((second - first).mean()):.3f} above"
    assert answer.startswith(f"{best} has the highest mean, {second.mean():.3f}, {gap} ")
    assert answer.endswith(f"The difference is shown (95 % interval +{low:.3f} to +{high:.3f}; 4 seeds).")


def test_of_several_settings_the_best_is_shown_only_by_intervals_that_hold_at_once() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.01, (8, 5))
    for gain in (0.0, 0.02, 0.1):
        by_seed = noise + gain * (np.arange(5) == 2)
        best = Best.of(by_seed, list("ABCDE"), KEY, "higher")
        assert best is not None
        for name, difference in best.others.items():
            test = stats.ttest_rel(by_seed[:, list("ABCDE").index(best.setting)], by_seed[:, "ABCDE".index(name)])
            assert (name in best.untold) == (test.confidence_interval(1 - 0.05 / 4).low <= 0)
            assert difference.tests == 4
    assert best.setting == "C"
    assert best.untold == []


def test_rows_have_the_means_and_the_differences_to_the_first_row() -> None:
    results = results_of()
    first, second = pairs(results)
    low, high = stats.ttest_rel(second, first).confidence_interval(0.95)
    rows = cells(results)
    assert rows["IFCA"][0].startswith(f"{first.mean():.3f} ± ")
    difference = f"+{(second - first).mean():.3f} (+{low:.3f} to +{high:.3f})"
    assert rows["IFCA-MIR"][0] == f"{second.mean():.3f} ± {second.std():.3f}; {difference}"
    assert rows["IFCA-MIR"][-1].endswith("0.0, not decided")


def test_metrics_of_the_tables_are_compared_too_and_what_never_differs_is_said_to() -> None:
    spec = ReportSpec(tables={"t": TableSpec(y=["mia.few", "migrated"], rows=["algorithm"], average=["share"])})
    assert [cell.partition("; ")[2] for cell in cells(results_of(), spec=spec)["IFCA-MIR"]][1::2] == [
        "the same in 4 seeds", "the same in 4 seeds",
    ]  # fmt: skip


def test_a_seed_counts_only_where_both_settings_are_whole() -> None:
    results = results_of()
    dropped = (results["algorithm"] == "IFCA") & (results["seed"] == 2) & (results["share"] == 0.3)
    left = results[~dropped].reset_index(drop=True)
    assert "(n = 3)" in cells(left)["IFCA"][0]
    assert "3 seeds)" in said(left)["Which algorithm has the highest accuracy? (accuracy, all clients)"]


def test_one_seed_has_no_interval_and_one_setting_no_best() -> None:
    results = results_of()
    answer = said(results[results["seed"] == 1].reset_index(drop=True))[
        "Which algorithm has the highest accuracy? (accuracy, all clients)"
    ]
    assert answer.startswith("Not decided by one seed: ")
    assert [*said(results[results["algorithm"] == "IFCA"].reset_index(drop=True))] == [
        "Who is exposed, to whom?",
        "Who is exposed, by share?",
    ]


@pytest.mark.parametrize(
    ("low", "words"),
    [
        ({}, "Few to another client: with IFCA exposed in 8 of 8 runs, with IFCA-MIR exposed in 8 of 8 runs."),
        (
            {"IFCA": 0.45},
            "Few to another client: with IFCA not decided in 8 of 8 runs, with IFCA-MIR exposed in 8 of 8 runs.",
        ),
    ],
)
def test_who_is_exposed_is_what_each_run_s_own_interval_shows(low: dict[str, float], words: str) -> None:
    results = results_of()
    results["mia_low.few"] = results["algorithm"].map(low).fillna(0.55)
    assert said(results)["Who is exposed, to whom?"] == words


def test_a_sweep_that_nobody_attacked_or_without_intervals_says_so() -> None:
    results = results_of()
    left = {name: said(results.drop(columns=[name]))["Who is exposed, to whom?"] for name in ("mia.few", "mia_low.few")}
    assert left["mia.few"] == "Unknown: no run was attacked."
    assert left["mia_low.few"].count("not decided in 8 of 8 runs") == 2


def test_every_axis_has_its_answers_as_if_it_were_the_first() -> None:
    results = results_of()
    swapped: Axes = {axis: AXES[axis] for axis in ("share", "algorithm")}
    answers, of_swapped = said(results), said(results, swapped)
    for question in ("Which share has the highest accuracy? (accuracy, all clients)",
                     "Which algorithm has the highest accuracy? (accuracy, all clients)"):  # fmt: skip
        assert answers[question] == of_swapped[question]
    assert answers["Who is exposed, by share?"] == of_swapped["Who is exposed, to whom?"]
    assert [settings.axis for settings in settings_of(results).by_axis] == [*AXES]


def test_the_minority_is_a_column_and_in_the_figure_of_a_file_that_asks_for_none() -> None:
    results = results_of().assign(**{"violations.many": 1, "members.few": 20, "members.many": 80})
    results = results.assign(**{"accuracy.few": 0.9, "accuracy.many": 0.7, "mia.many": 0.7})
    settings = settings_of(results)
    assert settings.keys[:5] == [KEY, "accuracy.few", "mia.few", "accuracy.many", "mia.many"]
    figure = default_figure(settings)["settings"]
    assert (figure.x, figure.average, figure.y) == ("algorithm", ["share"], [KEY, "accuracy.few", "mia.few"])
    assert default_figure(settings_of(results, {"fixed": ["x"]})) == {}
    alike = settings_of(results.assign(**{"members.few": 80}))
    assert "accuracy.few" not in alike.keys, "groups that are alike have no minority"


@pytest.mark.parametrize(("drawn", "shown"), [(0, True), (4, True), (5, False)])
def test_limits_are_a_column_where_a_client_set_one_even_if_none_is_exceeded(drawn: int, shown: bool) -> None:
    results = results_of().assign(**{"violations.total": 0, "thresholds_drawn": drawn})
    results = results.assign(**{"clusters.0.clients": 3, "clusters.1.clients": 2})
    assert ("violations.total" in settings_of(results).keys) == shown


def test_each_condition_of_the_further_axes_has_rows_of_its_own_unless_they_are_many() -> None:
    headings = [row.cells[0].text for row in settings_table(settings_of(results_of())).rows if row.style]
    assert headings == ["averaged over share", "share 0.1", "share 0.3"]
    many: Axes = {"algorithm": ["IFCA", "IFCA-MIR"], "n": list(range(MOST_CONDITIONS + 1))}
    table = settings_table(settings_of(results_of(many), many))
    assert [row.cells[0].text for row in table.rows] == ["averaged over n", "IFCA", "IFCA-MIR"]
    alone: Axes = {"fixed": ["x"]}
    assert [row.cells[0].text for row in settings_table(settings_of(results_of(alone), alone)).rows] == ["every run"]
