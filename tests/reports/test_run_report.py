"""The report: what is on the page, for runs of any shape, and what it says of damaged ones."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from html_page import Page
from shoal.config.schema import Config, parse_config
from shoal.core.errors import InputError
from shoal.reports.run.page import write_report
from shoal.reports.run.tables import DASH
from shoal.runs.report import report_of
from shoal.simulation.result import CLIENT_COLUMNS

ROUNDS = 4
NASTY = "<b>&"


def config_of(groups: list[str], clusters: int, **red_team: object) -> Config:
    share = 1.0 / len(groups)
    shifts = [{"rotation": [0.0, 25.0]}, {"brightness": [0.5, 0.8]}, {}]
    table = {
        "data": {
            "source": "digits",
            "clients": 6,
            "examples_per_client": 5,
            "test_examples": 30,
            "groups": {name: {"share": share, **shifts[g % 3]} for g, name in enumerate(groups)},
        },
        "model": {"name": "digits-cnn"},
        "algorithm": {"name": "ifca-mir" if clusters > 1 else "fedavg", "clusters": clusters, "rounds": ROUNDS},
        "red_team": red_team,
    }
    return parse_config(table, "test")


def clients_of(groups: list[str], clusters: int) -> pd.DataFrame:
    ids = np.arange(6)
    mia = 0.5 + 0.08 * (ids % clusters)
    threshold = np.linspace(0.5, 0.8, 6)
    frame = pd.DataFrame(
        {
            "client": ids,
            "group": [groups[i % len(groups)] for i in ids],
            "cluster": ids % clusters,
            "examples": 5,
            "threshold": threshold,
            "alpha": 0.5,
            "beta": 0.5,
            "loss": 0.1,
            "accuracy": 0.8,
            "mia": mia,
            "violated": mia > threshold,
        }
    )
    assert tuple(frame) == CLIENT_COLUMNS
    return frame


def rounds_of(groups: list[str], clusters: int, risks: bool = True) -> pd.DataFrame:
    rows = []
    for played in range(1, ROUNDS + 1):
        for k in range(clusters):
            row = {
                "round": played,
                "cluster": k,
                "clients": 6 // clusters,
                "examples": 30 // clusters,
                "risk": 0.5 if played < 3 or not risks else 0.53 + 0.02 * k,
                "train_loss": 1.0 / played,
                "accuracy": 0.2 * played,
            }
            for name in groups:
                row |= {f"accuracy.{name}": 0.2 * played, f"clients.{name}": max(1, 6 // clusters // len(groups))}
            rows.append(row)
    return pd.DataFrame(rows)


def roc_of(groups: list[str]) -> pd.DataFrame:
    rates = np.geomspace(0.001, 1.0, 20)
    curves = [
        pd.DataFrame({"group": name, "non_members": kind, "fpr": [0, *rates], "tpr": [0, *np.sqrt(rates)]})
        for name in groups
        for kind in ("group", "population")
    ]
    return pd.concat(curves, ignore_index=True)


def summary_of(groups: list[str], clusters: int) -> dict[str, float | int | str]:
    summary: dict[str, float | int | str] = {
        "algorithm": "ifca-mir" if clusters > 1 else "fedavg",
        "dataset": "digits",
        "seed": 0,
        "rounds": ROUNDS,
        "accuracy.overall": 0.8,
        "violations.total": 1,
        "migrated": 2,
        "adjusted_rand_index": 0.25,
        "fairness.demographic_parity": 0.0625,
        "seconds.total": 61.5,
    }
    for g, name in enumerate(groups):
        summary |= {f"accuracy.{name}": 0.8, f"train_accuracy.{name}": 0.9, f"mia.{name}": 0.5625 + g / 1000}
        summary |= {f"gap.{name}": 0.55, f"tpr_at_fpr_0.01.{name}": 0.0375, f"violations.{name}": 0}
    for k in range(clusters):
        summary |= {f"clusters.{k}.clients": 6 // clusters, f"clusters.{k}.mia": 0.5 + 0.08 * k}
        summary |= {f"clusters.{k}.accuracy": 0.8, f"clusters.{k}.risk": 0.53 + 0.02 * k}
    return summary


def save_samples(out: Path, groups: list[str], channels: int = 1) -> None:
    images = np.arange(2 * channels * 16, dtype=np.uint8).reshape(2, channels, 4, 4)
    save_file(dict.fromkeys(groups, images), out / "samples.safetensors")


def page_of(path: Path) -> Page:
    """The page, after the checks that every page must pass."""
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert len(page.ids) == len(set(page.ids))
    assert set(page.pointers) <= set(page.ids)
    assert {each[1:] for each in page.addresses if each.startswith("#")} <= set(page.ids)
    assert all(each.startswith(("#", "data:image/png;base64,")) for each in page.addresses)
    assert "://" not in text
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "nan" not in page.text.split()
    return page


def written(out: Path, groups: list[str], clusters: int) -> Page:
    save_samples(out, groups)
    summary, rounds = summary_of(groups, clusters), rounds_of(groups, clusters)
    config = config_of(groups, clusters)
    return page_of(write_report(out, config, summary, rounds, clients_of(groups, clusters), roc_of(groups)))


def finished(out: Path, groups: list[str], clusters: int = 2) -> None:
    """A run directory, as `shoal run` leaves it."""
    save_samples(out, groups)
    (out / "config.toml").write_text(config_of(groups, clusters).toml(), encoding="utf-8")
    rounds_of(groups, clusters).to_csv(out / "rounds.csv", index=False)
    clients_of(groups, clusters).to_csv(out / "clients.csv", index=False)
    roc_of(groups).to_csv(out / "roc.csv", index=False)
    (out / "summary.json").write_text(json.dumps(summary_of(groups, clusters)), encoding="utf-8")


@pytest.mark.parametrize(
    ("groups", "clusters", "figures"),
    [(["a", "b"], 2, 6), (["all"], 1, 5), (["a", "b", "c"], 3, 6), (["a", "b"], 6, 6)],
    ids=["usual", "fedavg", "three", "many clusters"],
)
def test_page_of_any_shape(tmp_path: Path, groups: list[str], clusters: int, figures: int) -> None:
    page = written(tmp_path, groups, clusters)
    assert page.tags.count("svg") == page.tags.count("figure") == figures
    assert page.tags.count("img") == 2 * len(groups)
    assert page.tags.count("details") == 1
    assert "An attacker tells members from others" in page.text
    assert 'source = "digits"' in page.text
    for word in [*groups, *(f"cluster {k}" for k in range(clusters))]:
        assert word in page.text


def test_figures_are_shown_with_their_meaning(tmp_path: Path) -> None:
    text = written(tmp_path, ["small", "large"], 2).text
    for shown in ("0.562", "3.8 %", "0.250", "0.062", "1 min 1 s", "IFCA-MIR on digits, seed 0"):
        assert shown in text
    assert "rotated by 0 to 25 degrees" in text
    assert "brightness times 0.5 to 0.8" in text
    assert "taken on shadow models" in text
    assert "held-out images of the same group" in text
    assert "Clusters 0, 1 end with at most 3 clients" in text


def test_labels_say_how_it_ended(tmp_path: Path) -> None:
    labels = " ".join(written(tmp_path, ["a", "b"], 2).labels)
    assert "cluster 0 0.530; cluster 1 0.550; cluster 0 measured 0.500; cluster 1 measured 0.580" in labels
    assert "At the end: a 0.800, b 0.800." in labels
    assert "6 clients; 1 are over their limit" in labels


def test_names_are_escaped(tmp_path: Path) -> None:
    page = written(tmp_path, [NASTY, "$x$ \\frac", "a very long name of a group that no legend can hold"], 2)
    assert "b" not in page.tags
    assert NASTY in page.text
    assert "$x$ \\frac" in page.text


def test_names_in_other_scripts(tmp_path: Path) -> None:
    assert "少数" in written(tmp_path, ["少数", "多数"], 2).text


def test_two_writes_are_identical(tmp_path: Path) -> None:
    written(tmp_path, ["a", "b"], 2)
    first = (tmp_path / "report.html").read_bytes()
    written(tmp_path, ["a", "b"], 2)
    assert (tmp_path / "report.html").read_bytes() == first


def test_undefined_figures_become_dashes(tmp_path: Path) -> None:
    groups = ["a", "b"]
    clients, rounds, roc = clients_of(groups, 2), rounds_of(groups, 2, risks=False), roc_of(groups)
    clients["mia"], clients["violated"] = np.nan, False
    clients["cluster"] = 0
    rounds.loc[rounds["cluster"] == 1, ["accuracy", "train_loss"]] = np.nan
    rounds.loc[rounds["round"] == 2, ["accuracy", "accuracy.a", "accuracy.b"]] = np.nan
    roc[["fpr", "tpr"]] = np.nan
    summary = {"accuracy.overall": 0.8, "violations.total": 0, "mia.a": float("nan"), "clusters.1.clients": 0}
    page = page_of(write_report(tmp_path, config_of(groups, 2, every=0), summary, rounds, clients, roc))
    assert page.tags.count("svg") == 3
    assert "No attack was measured." in page.text
    assert DASH in page.text
    assert "Nobody ends in cluster 1" in page.text
    assert "img" not in page.tags


def test_run_that_was_never_evaluated(tmp_path: Path) -> None:
    groups = ["a"]
    rounds = rounds_of(groups, 1, risks=False)
    rounds[["accuracy", "accuracy.a"]] = np.nan
    page = page_of(
        write_report(tmp_path, config_of(groups, 1), {}, rounds, clients_of(groups, 1), roc_of(groups).head(1))
    )
    assert "The figures of this run are incomplete." in page.text


def test_risk_that_was_never_estimated_leaves_what_was_measured(tmp_path: Path) -> None:
    groups = ["a", "b"]
    rounds = rounds_of(groups, 2, risks=False)
    page = page_of(
        write_report(
            tmp_path, config_of(groups, 2), summary_of(groups, 2), rounds, clients_of(groups, 2), roc_of(groups)
        )
    )
    assert "The red team estimated no risk" in page.text
    assert "0.530" not in page.text


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_one_and_three_channels(tmp_path: Path, channels: int) -> None:
    finished(tmp_path, ["a", "b"])
    save_samples(tmp_path, ["a", "b"], channels)
    page = page_of(report_of(tmp_path))
    assert len([each for each in page.addresses if each.startswith("data:image/png;base64,")]) == 4


def test_run_read_back_gives_the_same_page(tmp_path: Path) -> None:
    groups = ["NA", "1"]
    finished(tmp_path, groups)
    page = page_of(report_of(tmp_path))
    before = (tmp_path / "report.html").read_bytes()
    assert "NA" in page.text
    written(tmp_path, groups, 2)
    assert (tmp_path / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    "name", ["summary.json", "config.toml", "rounds.csv", "clients.csv", "roc.csv", "samples.safetensors"]
)
def test_missing_file_is_an_error(tmp_path: Path, name: str) -> None:
    finished(tmp_path, ["a", "b"])
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match=name) as caught:
        report_of(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()


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
    ],
)
def test_damaged_file_is_an_error(tmp_path: Path, name: str, content: bytes) -> None:
    finished(tmp_path, ["a", "b"])
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name) as caught:
        report_of(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_directory_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a finished run"):
        report_of(tmp_path / "nowhere")
