"""Finished runs of any number of groups and clusters, made up without training: their frames, files and page."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import save_file

from shoal.config.schema import Config, parse_config
from shoal.metrics.summary import parse_summary
from shoal.reports.run.description import RunDescription
from shoal.reports.run.run_page import run_page
from shoal.reports.run.run_tables import RunView, with_limits
from shoal.reports.table import ReportTable
from shoal.runs.result import report_of
from shoal.simulation.measure import CLIENT_COLUMNS

ROUNDS = 4


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
        "algorithm": {"rounds": ROUNDS}
        | ({"name": "ifca-mir", "clusters": clusters} if clusters > 1 else {"name": "fedavg"}),
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
    exposure = {"exposure": mia, "exposure_low": mia, "exposure_null_high": 0.55, "attack": "shadow"}
    return frame.assign(**exposure, exceeded=frame["violated"])


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
        "exceeded.total": 1,
        "migrated": 2,
        "adjusted_rand_index": 0.25,
        "fairness.demographic_parity": 0.0625,
        "seconds.total": 61.5,
    }
    for g, name in enumerate(groups):
        summary |= {f"accuracy.{name}": 0.8, f"train_accuracy.{name}": 0.9, f"mia.{name}": 0.5625 + g / 1000}
        summary |= {f"mia_low.{name}": 0.53, f"mia_high.{name}": 0.59, f"test_examples.{name}": 400}
        summary |= {f"gap.{name}": 0.55, f"tpr_at_fpr_0.01.{name}": 0.0375, f"violations.{name}": 0}
    for k in range(clusters):
        summary |= {f"clusters.{k}.clients": 6 // clusters, f"clusters.{k}.mia": 0.5 + 0.08 * k}
        summary |= {f"clusters.{k}.accuracy": 0.8, f"clusters.{k}.risk": 0.53 + 0.02 * k}
    return summary


def samples_of(groups: list[str], channels: int = 1) -> dict[str, np.ndarray]:
    images = np.arange(2 * channels * 16, dtype=np.uint8).reshape(2, channels, 4, 4)
    return dict.fromkeys(groups, images)


def frames_of(groups: list[str], clusters: int, risks: bool = True) -> dict[str, pd.DataFrame]:
    rounds = rounds_of(groups, clusters, risks)
    return {"rounds": rounds, "clients": clients_of(groups, clusters), "roc": roc_of(groups)}


@cache
def usual_page() -> str:
    """The page of groups a and b and two clusters, drawn once for the tests that only read it."""
    return html_of(["a", "b"], 2)


def view_of(groups: list[str], clusters: int, summary: Mapping[str, Any] | None = None, **given: Any) -> RunView:
    """What tables are made of; ``given`` are fields of the description, or ``clients``."""
    clients = given.pop("clients", clients_of(groups, clusters))
    run = replace(RunDescription.of(config_of(groups, clusters)), **given)
    flat = summary_of(groups, clusters) if summary is None else summary
    return RunView(run, parse_summary(flat), rounds_of(groups, clusters), with_limits(clients))


def texts_of(table: ReportTable | None) -> dict[str, tuple[str, ...]]:
    """The texts of a table's cells, by those of the first."""
    assert table is not None
    return {row.cells[0].text: tuple(cell.text for cell in row.cells[1:]) for row in table.rows}


def meanings_of(table: ReportTable | None) -> dict[str, str]:
    """The small texts of a table's first cells, by their texts."""
    assert table is not None
    return {row.cells[0].text: row.cells[0].small for row in table.rows}


def html_of(groups: list[str], clusters: int, directory: Path | None = None) -> str:
    config, summary = config_of(groups, clusters), parse_summary(summary_of(groups, clusters))
    frames = frames_of(groups, clusters)
    return run_page(RunDescription.of(config), summary, samples_of(groups), directory=directory, **frames)


def report_text(out: Path) -> str:
    """The report, made from the files in ``out``."""
    return report_of(out).read_text(encoding="utf-8")


def finished(out: Path, groups: list[str], clusters: int = 2) -> None:
    """A run directory, as `shoal run` leaves it."""
    save_file(samples_of(groups), out / "samples.safetensors")
    (out / "config.toml").write_text(config_of(groups, clusters).toml(), encoding="utf-8")
    rounds_of(groups, clusters).to_csv(out / "rounds.csv", index=False)
    clients_of(groups, clusters).to_csv(out / "clients.csv", index=False)
    roc_of(groups).to_csv(out / "roc.csv", index=False)
    (out / "summary.json").write_text(json.dumps(summary_of(groups, clusters)), encoding="utf-8")
