"""The answer that a sweep's page begins with: differences paired by seed, with intervals, against scipy."""

from itertools import product

import numpy as np
import pandas as pd
from scipy import stats

from html_page import Page
from shoal.reports.sweep.answer import MOST_SETTINGS, answer, reading
from shoal.reports.sweep.labels import Labels
from shoal.reports.sweep.report_spec import Axes, ReportSpec, TableSpec
from shoal.reports.sweep.seed_statistics import SeedStatistics
from shoal.reports.sweep.sweep_page import sweep_page

SEEDS = (0, 1, 2, 3)
AXES: Axes = {"algorithm": ["IFCA", "IFCA-MIR"], "share": [0.1, 0.3]}


def results_of(axes: Axes = AXES) -> pd.DataFrame:
    """Seeds differ much, settings little: only pairs show it. Violations differ by 1 either way."""
    rng = np.random.default_rng(3)
    rows = []
    for settings in product(*axes.values()):
        second = settings[0] != next(iter(axes.values()))[0]
        for seed in SEEDS:
            accuracy = 0.5 + 0.1 * seed + 0.02 * second + 0.001 * rng.random()
            violations = 10 + (second and (-1) ** seed)
            row = dict(zip(axes, settings, strict=True))
            rows.append({"run": str(len(rows)), **row, "seed": seed, "accuracy.overall": accuracy,
                         "violations.total": violations, "migrated": 3, "mia.few": 0.6})  # fmt: skip
    return pd.DataFrame(rows)


def said(results: pd.DataFrame, axes: Axes = AXES, spec: ReportSpec | None = None) -> tuple[str, ...]:
    return answer(SeedStatistics(results, axes, SEEDS), spec or ReportSpec(), Labels({}))


def test_differences_are_paired_by_seed_as_scipy_pairs_them() -> None:
    results = results_of()
    (paragraph,) = said(results)
    first, second = (
        results[results["algorithm"] == name].groupby("seed")["accuracy.overall"].mean() for name in AXES["algorithm"]
    )
    test = stats.ttest_rel(second, first)
    low, high = test.confidence_interval(0.95)
    mean = float((second - first).mean())
    assert low > 0
    words = f"accuracy, all clients higher by {mean:.3f} (95 % interval +{low:.3f} to +{high:.3f}, 4 seeds)"
    assert paragraph.startswith(f"algorithm, IFCA-MIR against IFCA: {words}; ")
    assert not stats.ttest_ind(second, first).pvalue < 0.05, "unpaired, the difference could not be seen"


def test_an_interval_that_covers_0_is_open() -> None:
    (paragraph,) = said(results_of())
    half = stats.sem([1, -1, 1, -1]) * stats.t.ppf(0.975, 3)
    interval = f"95 % interval \N{MINUS SIGN}{half:.1f} to +{half:.1f}, 4 seeds"
    assert f"limits exceeded, point estimate, all clients open: 0.0 ({interval})." in paragraph


def test_metrics_of_the_tables_are_compared_too_and_what_never_differs_is_said_to() -> None:
    spec = ReportSpec(tables={"t": TableSpec(y=["mia.few", "migrated"], rows=["algorithm"], average=["share"])})
    (paragraph,) = said(results_of(), spec=spec)
    assert "MIA accuracy, few the same in all 4 seeds; migrated clients the same in all 4 seeds." in paragraph


def test_a_seed_counts_only_where_both_settings_are_whole() -> None:
    results = results_of()
    dropped = (results["algorithm"] == "IFCA") & (results["seed"] == 2) & (results["share"] == 0.3)
    (paragraph,) = said(results[~dropped].reset_index(drop=True))
    assert "3 seeds" in paragraph
    assert "4 seeds" not in paragraph


def test_one_seed_has_no_interval_and_no_seed_no_sentence() -> None:
    results = results_of()
    (paragraph,) = said(results[results["seed"] == 1].reset_index(drop=True))
    assert "in one seed, open without an interval" in paragraph
    assert said(results[results["algorithm"] == "IFCA"].reset_index(drop=True)) == ()
    assert said(results.head(0)) == ()


def test_only_an_axis_that_varies_is_compared_and_each_setting_with_the_first() -> None:
    axes: Axes = {"fixed": ["x"], "share": [0.1, 0.2, 0.3]}
    assert [each.partition(":")[0] for each in said(results_of(axes), axes)] == [
        "share, 0.2 against 0.1", "share, 0.3 against 0.1",
    ]  # fmt: skip
    alone: Axes = {"fixed": ["x"]}
    assert said(results_of(alone), alone) == ()
    many: Axes = {"n": list(range(20))}
    paragraphs = said(results_of(many), many)
    assert len(paragraphs) == MOST_SETTINGS
    assert paragraphs[-1].startswith("n, 19 against 0: ")


def test_the_page_begins_with_the_answer_and_says_how_to_read_it() -> None:
    statistics = SeedStatistics(results_of(), AXES, SEEDS)
    text = Page(sweep_page("Title", ReportSpec(), statistics, [], [], missing=(), source="")).text
    found = [
        text.index(each) for each in ("Algorithm, IFCA-MIR against IFCA", "paired by seed", "All 16 runs are finished")
    ]
    assert found == sorted(found)
    assert "each seed averaged over share" in reading(statistics, Labels({}))


def test_a_sweep_says_with_how_many_reference_federations_runs_are_judged() -> None:
    results = results_of()
    assert "reference federations" not in reading(SeedStatistics(results, AXES, SEEDS), Labels({}))
    judged = results.assign(references=4)
    assert "with 4 reference federations a run" in reading(SeedStatistics(judged, AXES, SEEDS), Labels({}))
    some = results.assign(references=[np.nan] + [4] * (len(results) - 1))
    assert "with 0 or 4 reference federations a run" in reading(SeedStatistics(some, AXES, SEEDS), Labels({}))
