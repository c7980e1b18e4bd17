"""The report: what is on the page, for runs of any shape, and what it says of damaged ones."""

from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest

from html_page import PNG, figures_on, page_of
from run_of_any_shape import (
    config_of,
    finished,
    frames_of,
    html_of,
    report_text,
    summary_of,
    usual_page,
)
from shoal.audit.red_team import Estimator
from shoal.core.errors import InputError
from shoal.core.formats import DASH
from shoal.metrics.summary import Summary, parse_summary
from shoal.reports.run.description import RunDescription
from shoal.reports.run.run_charts import ESTIMATORS, accuracy_by_group, risk
from shoal.reports.run.run_page import run_page
from shoal.runs.result import report_of
from unrendered import unrendered_figures

NASTY = "<b>&"


@pytest.mark.parametrize(
    ("groups", "clusters", "figures"),
    [(["a", "b"], 2, 5), (["all"], 1, 4), (["a", "b", "c"], 6, 5)],
    ids=["usual", "fedavg", "three groups and many clusters"],
)
def test_page_of_any_shape(groups: list[str], clusters: int, figures: int) -> None:
    page = page_of(usual_page() if (groups, clusters) == (["a", "b"], 2) else html_of(groups, clusters))
    assert len(figures_on(page)) == page.tags.count("figure") == figures
    assert sum(each.startswith(PNG) for each in page.addresses) == 2 * len(groups)
    assert page.tags.count("details") == 8
    assert f"{groups[0]} to an outsider exposed 0.562".removeprefix("all ") in page.text
    assert 'source = "digits"' in page.text
    for word in [*groups, *(f"cluster {k}" for k in range(clusters))]:
        assert word in page.text


def test_metrics_are_shown_with_their_meaning() -> None:
    text = page_of(usual_page()).text
    for shown in ("0.562", "0.037", "0.250", "0.062", "IFCA-MIR on digits, seed 0"):
        assert shown in text
    assert "rotated by 0 to 25 degrees" in text
    assert "brightness times 0.5 to 0.8" in text
    assert "taken on shadow models" in text
    assert "held-out images of the same group" in text


def test_labels_say_how_it_ended() -> None:
    labels = " ".join(page_of(usual_page()).labels)
    assert "cluster 0 0.530, cluster 1 0.550." in labels
    assert "At the end: a 0.800, b 0.800." in labels
    assert "1 of 6 limits is exceeded" in labels


def test_names_are_escaped_and_may_be_in_other_scripts() -> None:
    names = [NASTY, "$x$ frac", "少数", "a very long name of a group that no legend can hold"]
    page = page_of(html_of(names, 2))
    assert "b" not in page.tags
    figures = figures_on(page)
    for name in names[:3]:
        assert name in page.text
    for name in names[1:3]:
        assert any(name in figure for figure in figures)


def test_two_pages_are_identical() -> None:
    assert html_of(["a", "b"], 2) == usual_page()


def test_undefined_metrics_become_dashes() -> None:
    groups = ["a", "b"]
    frames = frames_of(groups, 2, risks=False)
    frames["clients"][["mia", "exposure", "exposure_low"]] = np.nan
    frames["clients"][["violated", "exceeded"]] = False
    frames["clients"]["cluster"] = 0
    frames["rounds"].loc[frames["rounds"]["cluster"] == 1, ["accuracy", "train_loss"]] = np.nan
    frames["rounds"].loc[frames["rounds"]["round"] == 2, ["accuracy", "accuracy.a", "accuracy.b"]] = np.nan
    frames["roc"][["fpr", "tpr"]] = np.nan
    known = {"algorithm": "ifca-mir", "accuracy.overall": 0.8, "violations.total": 0}
    summary = parse_summary(known | {"mia.a": float("nan"), "clusters.1.clients": 0})
    page = page_of(run_page(RunDescription.of(config_of(groups, 2, every=0)), summary, {}, **frames))
    assert len(figures_on(page)) == 2
    assert "no attack was measured" in page.text
    assert DASH in page.text
    assert PNG not in " ".join(page.addresses)


def test_run_that_was_never_evaluated() -> None:
    groups = ["a"]
    frames = frames_of(groups, 1, risks=False)
    frames["roc"] = frames["roc"].head(1)
    frames["rounds"][["accuracy", "accuracy.a"]] = np.nan
    page = page_of(run_page(RunDescription.of(config_of(groups, 1)), Summary(), {}, **frames))
    assert "The metrics of this run are incomplete." in page.text


def test_risk_that_was_never_estimated_leaves_what_was_measured() -> None:
    groups = ["a", "b"]
    frames = frames_of(groups, 2, risks=False)
    described = RunDescription.of(config_of(groups, 2))
    page = page_of(run_page(described, parse_summary(summary_of(groups, 2)), {}, **frames))
    assert "The red team estimated no risk" in page.text
    assert "0.530" not in page.text


def test_accuracy_by_group_is_the_mean_over_clients() -> None:
    """One round in which three clients of a chose a model that is right on 0.5 of a's images, one a model on 0.9."""
    rounds = pd.DataFrame({"round": 1, "cluster": [0, 1], "clients": [3, 3], "accuracy": [0.5, 0.8]})
    rounds = rounds.assign(**{"accuracy.a": [0.5, 0.9], "clients.a": [3, 1], "accuracy.b": [0.4, 0.7], "clients.b": 0})
    figure = accuracy_by_group(rounds, ["a", "b"])
    assert figure is not None
    assert "At the end: a 0.600, b unknown." in figure.image


def test_the_interval_of_an_estimate_is_shaded_where_it_is_known() -> None:
    rounds = pd.DataFrame({"round": [1, 2], "cluster": 0, "risk": [0.5, 0.6]})
    ends = {"risk_low": [np.nan, 0.55], "risk_high": [np.nan, 0.65]}
    plain, shaded, unknown = (
        risk(each, Summary(), estimated=True, estimator="shadow")
        for each in (rounds, rounds.assign(**ends), rounds.assign(**dict.fromkeys(ends, np.nan)))
    )
    assert plain is not None
    assert shaded is not None
    assert unknown is not None
    assert "Shaded: its 95 % interval." in shaded.caption
    assert "Shaded" not in plain.caption + unknown.caption
    assert shaded.image.count("<path") > plain.image.count("<path") == unknown.image.count("<path")


def test_run_read_back_gives_the_same_page(tmp_path: Path) -> None:
    groups = ["NA", "1"]
    finished(tmp_path, groups)
    with unrendered_figures():
        text = report_text(tmp_path)
        assert text.replace(str(tmp_path), "RUN") == html_of(groups, 2, directory=Path("RUN"))
    assert "NA" in page_of(text).text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", b"{"),
        ("summary.json", b"[1]"),
        ("summary.json", b'{"accuracy.overall": "high"}'),
        ("rounds.csv", b""),
        ("rounds.csv", b"round,cluster\n1,0\n"),
        ("rounds.csv", b"round,cluster,clients,risk,accuracy\n"),
        ("rounds.csv", b"round,cluster,clients,risk,accuracy\n1,,1,0.5,0.5\n"),
        ("clients.csv", b"\xff\xfe\x00"),
        ("roc.csv", b"group,non_members,fpr,tpr\na,group,0,high\n"),
        ("roc.csv", b'group,non_members,fpr,tpr\n"a,group,0,1\n'),
        ("samples.safetensors", b"short"),
        *((name, None) for name in ("summary.json", "config.toml", "rounds.csv", "clients.csv", "roc.csv")),
        ("samples.safetensors", None),
    ],
)
def test_a_missing_or_damaged_file_is_an_error(tmp_path: Path, name: str, content: bytes | None) -> None:
    finished(tmp_path, ["a", "b"])
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name) as caught:
        report_of(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_directory_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a finished run"):
        report_of(tmp_path / "nowhere")


def test_every_estimator_has_words():
    assert set(ESTIMATORS) == set(get_args(Estimator))
