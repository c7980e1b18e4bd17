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

from shoal.config.kinds import name_of
from shoal.config.schema import Config
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError
from shoal.data import Group
from shoal.reports.frames import column
from shoal.reports.html import render
from shoal.reports.plotting import png
from shoal.reports.run import cluster_sizes, privacy_figures, round_curves, tables
from shoal.reports.run.property_section import inference
from shoal.reports.summary_text import NAMES, verdict

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
    groups = config.data.groups_with_clients
    others = [name for name in config.data.groups if name not in groups]
    estimated = not np.isin(np.nan_to_num(column(rounds, "risk"), nan=0.5), 0.5).all()
    cluster = column(clients, "cluster")
    clusters = int(max(column(rounds, "cluster").max(), cluster.max())) + 1
    algorithm, attack = config.algorithm.name, name_of(type(config.red_team.attack))
    page = {
        "title": f"{NAMES.get(algorithm, algorithm)} on {config.data.source}, seed {config.seed}",
        "verdict": _verdict(config, known),
        "drained": cluster_sizes.drained({k: int((cluster == k).sum()) for k in range(clusters)}),
        "key_figures": _key_figures(known, clients, groups),
        "attack": ATTACK_WORDS.get(attack, attack),
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
    write_text(path, render("run.html.j2", page))
    return path


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
) -> Iterator[round_curves.Drawing]:
    groups = config.data.groups_with_clients
    found = [
        round_curves.accuracy_by_cluster(rounds, groups),
        round_curves.accuracy_by_group(rounds, groups)
        if len(groups) > 1 or column(rounds, "cluster").max() > 0
        else None,
        round_curves.risk(rounds, known, estimated=estimated, estimator=config.red_team.estimator),
        cluster_sizes.sizes(rounds, groups, known),
        privacy_figures.violations(clients, groups),
        privacy_figures.roc_curves(roc, groups),
    ]
    yield from (drawing for drawing in found if drawing is not None)


def _samples(path: Path, groups: Mapping[str, Group]) -> list[Samples]:
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


def _shift(group: Group) -> str:
    """What was done to a group's images, in words."""
    told = [f"{100 * group.share:g} % of the clients" if group.share > 0 else "held-out images only, of no client"]
    if group.rotation is not None:
        told.append(f"rotated by {group.rotation[0]:g} to {group.rotation[1]:g} degrees")
    if group.brightness is not None:
        told.append(f"brightness times {group.brightness[0]:g} to {group.brightness[1]:g}")
    return "; ".join(told)
