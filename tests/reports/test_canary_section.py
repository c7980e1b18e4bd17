"""What a run's page says of canaries and of recorded updates."""

from math import nan

import numpy as np
import pandas as pd

from html_page import page_of
from run_of_any_shape import config_of, frames_of, meanings_of, summary_of, texts_of, usual_page
from shoal.audit.canary_audit import CANARY_COLUMNS
from shoal.core.formats import DASH
from shoal.metrics.summary import parse_summary
from shoal.reports.run.canary_section import canary_section
from shoal.reports.run.description import RecordedUpdates, RunDescription
from shoal.reports.run.run_page import run_page
from unrendered import unrendered_figures

METRICS = {
    "canaries.members": 40, "canaries.non_members": 50, "canaries.auc": 0.9,
    "canaries.found": 0.5, "canaries.found.low": 0.34, "canaries.found.high": 0.66,
    "canaries.tpr_at_fpr_0.1": 0.75, "canaries.tpr_at_fpr_0.1.low": 0.59, "canaries.tpr_at_fpr_0.1.high": 0.87,
    "canaries.epsilon_low": 1.25, "canaries.delta": 1e-5,
}  # fmt: skip


def table(members=40, others=50):
    """Rows of canaries.csv: exposures of the trained ones are 0.01, 0.02 and so on; one was never scored."""
    exposure = [*np.arange(1, members + 1) / 100, *np.full(others, 0.5), nan]
    frame = pd.DataFrame({"exposure": exposure, "member": [True] * members + [False] * others + [True]})
    return frame.reindex(columns=[*CANARY_COLUMNS])


def cells(metrics, canaries):
    return texts_of(canary_section(metrics, canaries).table)


def test_each_figure_stands_with_its_interval():
    assert cells(METRICS, table()) == {
        "TPR without false positives": ("50.0 %", "34.0 % to 66.0 %"),
        "TPR at 10 % FPR": ("75.0 %", "59.0 % to 87.0 %"),
        "TPR at 1 % FPR": (DASH, DASH),
        "AUC": ("0.900", "0.809 to 0.948"),
        # The 14th smallest and the 14th largest of forty.
        "Exposure": ("0.205", "0.140 to 0.270"),
        "Epsilon, lower bound": ("1.250", "1.250 or more"),
    }
    rates = meanings_of(canary_section(METRICS, table()).table)
    assert "at least 100 left-out canaries are needed, 50 are there" in rates["TPR at 1 % FPR"]
    assert "are needed" not in rates["TPR at 10 % FPR"]


def test_what_was_not_measured_is_a_dash():
    found = cells({"canaries.members": 0, "canaries.non_members": 0}, table(0, 0))
    assert set(found.values()) == {(DASH, DASH)}


def test_a_bound_above_the_stated_epsilon_is_said_in_words():
    def words(**stated):
        return " ".join(canary_section(METRICS | stated, table()).paragraphs)

    assert "40 were trained on and 50 left out" in words()
    assert "the promise is broken" in words(epsilon=1.0)
    assert "the promise is broken" not in words(epsilon=1.5)
    assert "the promise is broken" not in words()


def test_canaries_and_recorded_updates_are_on_the_page_of_a_run_that_has_them():
    summary = parse_summary(summary_of(["a", "b"], 2) | METRICS)
    recorded = RecordedUpdates((2, 4), 1_250_000)
    described, more = RunDescription.of(config_of(["a", "b"], 2)), {"canaries": table(), "recorded": recorded}
    with unrendered_figures():
        page = page_of(run_page(described, summary, {}, **frames_of(["a", "b"], 2), **more))
    assert (
        page.ids.index("clients") < page.ids.index("canaries") < page.ids.index("recorded") < page.ids.index("figures")
    )
    assert "Canaries are examples with a wrong label." in page.text
    assert "in 2 rounds (2 and 4): 1.2 MB in the folder updates." in page.text
    assert "shoal audit --trace DIR" in page.text
    assert not {"canaries", "recorded"} & set(page_of(usual_page()).ids)
