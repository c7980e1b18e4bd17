"""A run's report: one page that holds everything it shows, to look at, keep and send.

The same run gives the same bytes; nothing on the page is fetched from elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from shoal.core.checks import InputError, require
from shoal.core.files import write_text
from shoal.experiments import exposures, figures, sizes, tables
from shoal.experiments.config import Config, GroupSection, read_config
from shoal.experiments.frames import column, read_table
from shoal.experiments.pages import render
from shoal.experiments.properties import PROPERTY_COLUMNS
from shoal.experiments.property_section import inference
from shoal.experiments.result import CLIENT_COLUMNS
from shoal.experiments.svg import png
from shoal.experiments.verdict import NAMES, read_run, verdict

ROUND_COLUMNS = ("round", "cluster", "clients", "risk", "accuracy")
ROC_COLUMNS = ("group", "non_members", "fpr", "tpr")

ATTACK_WORDS = {
    "shadow": "an attack model, trained on the answers of shadow models: copies that the server trains on images of "
    "its own, so that it knows their members",
    "loss-threshold": "a threshold on the loss: images on which the model is surer are called members",
    "gap": "the gap attack: images that the model gets right are called members",
}
"""The configured attack in words."""


@dataclass(frozen=True)
class Samples:
    """A few images of a group."""

    group: str
    shift: str
    images: tuple[str, ...]


def write_report(
    out: Path,
    config: Config,
    summary: Mapping[str, Any],
    rounds: pd.DataFrame,
    clients: pd.DataFrame,
    roc: pd.DataFrame,
    *,
    updates: pd.DataFrame | None = None,
) -> Path:
    """Write ``out``/report.html, whole or not at all, and return its path.

    Args:
        out: the run's directory; its samples.safetensors, if there, has the images.
        config: of the run.
        summary: figures by key, as in summary.json. One that is missing or NaN is shown as a dash.
        rounds: a row a round and cluster, as in rounds.csv.
        clients: a row a client, as in clients.csv.
        roc: the attack's curves by group, as in roc.csv.
        updates: what a property attack found, as in property.csv; None where there was none.

    Raises:
        InputError: the samples cannot be read.
    """
    known = {key: value for key, value in summary.items() if not (isinstance(value, float) and isnan(value))}
    groups = config.data.populated
    others = [name for name in config.data.groups if name not in groups]
    estimated = not np.isin(np.nan_to_num(column(rounds, "risk"), nan=0.5), 0.5).all()
    cluster = column(clients, "cluster")
    clusters = int(max(column(rounds, "cluster").max(), cluster.max())) + 1
    page = {
        "title": f"{NAMES[config.algorithm.name]} on {config.data.source}, seed {config.seed}",
        "verdict": _verdict(config, known),
        "drained": sizes.drained({k: int((cluster == k).sum()) for k in range(clusters)}),
        "key_figures": _key_figures(known, clients, groups),
        "attack": ATTACK_WORDS[config.red_team.attack],
        "groups": tables.by_group(known, clients, groups, others),
        "clusters": tables.by_cluster(known, clients, groups, clusters, estimated=estimated),
        "inference": inference(config, known, updates),
        "drawings": list(_drawings(config, known=known, rounds=rounds, clients=clients, roc=roc, estimated=estimated)),
        "samples": _samples(out / "samples.safetensors", config.data.groups),
        "overall": tables.overall(known),
        "seconds": tables.seconds(known),
        "config": config.toml(),
    }
    path = out / "report.html"
    write_text(path, render("report.html.j2", page))
    return path


def report_of(out: Path) -> Path:
    """Write the report of the finished run in ``out`` again, from its files; returns the path of the page.

    Raises:
        InputError: ``out`` is not the directory of a finished run, or one of its files is missing or damaged.
    """
    summary = read_run(out)
    config = read_config(out / "config.toml")
    rounds = read_table(out / "rounds.csv", ROUND_COLUMNS)
    clients = read_table(out / "clients.csv", CLIENT_COLUMNS)
    roc = read_table(out / "roc.csv", ROC_COLUMNS)
    require((out / "samples.safetensors").exists(), f"{out / 'samples.safetensors'}: is missing")
    updates = None
    if config.property_attack is not None:
        updates = read_table(out / "property.csv", PROPERTY_COLUMNS, empty=True)
    return write_report(out, config, summary, rounds, clients, roc, updates=updates)


def _verdict(config: Config, known: Mapping[str, Any]) -> str:
    told = {"algorithm": config.algorithm.name} | dict(known)
    if not {"accuracy.overall", "violations.total"} <= set(told):
        return "The figures of this run are incomplete."
    return verdict(told)


def _key_figures(known: Mapping[str, Any], clients: pd.DataFrame, groups: Sequence[str]) -> list[tuple[str, str, str]]:
    """Name, value and a remark of what to see first."""
    exposed = {group: float(known[f"mia.{group}"]) for group in groups if f"mia.{group}" in known}
    worst = max(exposed, key=lambda group: exposed[group], default=None)
    whose = f"highest of the groups: {worst}" if worst is not None and len(groups) > 1 else "a coin: 0.500"
    everybody = f"of {len(clients)} clients"
    return [
        ("Accuracy", tables.shown(known, "accuracy.overall", tables.percent), "mean over clients, held-out images"),
        ("MIA accuracy", tables.DASH if worst is None else tables.decimal(exposed[worst]), whose),
        ("Limits exceeded", tables.shown(known, "violations.total", tables.count), everybody),
        ("Migrated", tables.shown(known, "migrated", tables.count), everybody),
        ("Rounds", tables.shown(known, "rounds", tables.count), "of training"),
        ("Time", tables.shown(known, "seconds.total", tables.duration), "in all"),
    ]


def _drawings(
    config: Config,
    *,
    known: Mapping[str, Any],
    rounds: pd.DataFrame,
    clients: pd.DataFrame,
    roc: pd.DataFrame,
    estimated: bool,
) -> Iterator[figures.Drawing]:
    groups = config.data.populated
    found = [
        figures.accuracy_by_cluster(rounds, groups),
        figures.accuracy_by_group(rounds, groups) if len(groups) > 1 or column(rounds, "cluster").max() > 0 else None,
        figures.risk(rounds, known, estimated=estimated, estimator=config.red_team.estimator),
        sizes.sizes(rounds, groups, known),
        exposures.violations(clients, groups),
        exposures.roc_curves(roc, groups),
    ]
    yield from (drawing for drawing in found if drawing is not None)


def _samples(path: Path, groups: Mapping[str, GroupSection]) -> list[Samples]:
    """Rows of images; none where the data are not images."""
    if not path.exists():
        return []
    try:
        found: dict[str, NDArray[Any]] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: is damaged: {error}") from error
    kept = {group: found[group] for group in groups if group in found and found[group].ndim == 4}
    return [
        Samples(group, _shift(groups[group]), tuple(png(image) for image in images.astype(np.uint8)))
        for group, images in kept.items()
    ]


def _shift(group: GroupSection) -> str:
    """What was done to a group's images, in words."""
    told = [f"{100 * group.share:g} % of the clients" if group.share > 0 else "held-out images only, of no client"]
    if group.rotation is not None:
        told.append(f"rotated by {group.rotation[0]:g} to {group.rotation[1]:g} degrees")
    if group.brightness is not None:
        told.append(f"brightness times {group.brightness[0]:g} to {group.brightness[1]:g}")
    return "; ".join(told)
