"""The configurations and sweeps that are shipped can be run where their data are."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.config.toml_files import read_toml
from shoal.data import ImageDataset, TextDataset, load_dataset
from shoal.sweeps import read_sweep
from shoal.sweeps.plan import plan_runs

FOLDER = Path(__file__).parents[2] / "experiments"
SIZES = {
    "fashion-mnist": (70_000, 60_000, 1, 28, 10),
    "mnist": (70_000, 60_000, 1, 28, 10),
    "emnist-byclass": (814_255, 697_932, 1, 28, 62),
    "cifar10": (60_000, 50_000, 3, 32, 10),
}
LFW_ROWS = 9_000
"""Rows of the official 13,143 that a task surely leaves: how many its attributes leave cannot be known here."""
BOARD = (FOLDER / "board" / "board.toml", *FOLDER.glob("board/defences/*.toml"))
"""Files of the board, which test_board.py reads."""
FILES = {path: read_toml(path) for path in sorted(FOLDER.rglob("*.toml")) if path not in BOARD}
CONFIGS = [path for path, table in FILES.items() if "model" in table]
SWEEPS = [path for path, table in FILES.items() if "grid" in table]


def named(path):
    return str(path.relative_to(FOLDER))


def importable_from(path, monkeypatch):
    """Sources of one's own are beside the file, or beside its folder."""
    for folder in (path.parents[1], path.parent):
        monkeypatch.syspath_prepend(folder)


def blank(source, task=None):
    """A set of the official size in no memory: one blank image, or one empty text, behind all rows."""
    if source in ("lfw", "yelp"):
        count = LFW_ROWS if source == "lfw" else 16_207
        classes = {"lfw": 3 if task and task.startswith("race") else 2, "yelp": 5}[source]
        labels, holds = torch.arange(count) % classes, torch.arange(count) % 10 == 3
        if source == "yelp":
            return TextDataset(
                "yelp", torch.zeros(1, 200).long().expand(count, -1), 3_000, labels, count, classes, holds
            )
        pixels = torch.zeros(1, 3, 62, 47, dtype=torch.uint8).expand(count, -1, -1, -1)
        return ImageDataset("lfw", pixels, 255, labels, count, classes, holds)
    count, train, channels, side, classes = SIZES[source]
    pixels = torch.zeros(1, channels, side, side, dtype=torch.uint8).expand(count, -1, -1, -1)
    return ImageDataset(source, pixels, 255, torch.arange(count) % classes, train, classes)


@pytest.fixture(autouse=True)
def _neither_weights_nor_pixels(monkeypatch):
    """Networks keep their shapes but not their random weights, and images are not turned: nothing here reads them."""
    for name in ("kaiming_uniform_", "uniform_"):
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    monkeypatch.setattr("shoal.data.partition.shift_inputs", lambda _, rows, *__: torch.zeros(len(rows), 1, 1, 1))


def test_every_file_is_a_configuration_or_a_sweep_or_what_sweeps_show():
    left = [path for path in FILES if path not in CONFIGS and path not in SWEEPS]
    used = {(path.parent / FILES[path]["shown"]).resolve() for path in SWEEPS if "shown" in FILES[path]}
    assert {path.resolve() for path in left} == used


@pytest.mark.parametrize("path", CONFIGS, ids=named)
def test_a_shipped_configuration_fits_the_official_data(path, monkeypatch):
    importable_from(path, monkeypatch)
    config = read_config(path)
    if config.data.source != "digits" and ":" not in config.data.source:
        images = blank(config.data.source, config.data.task)
        monkeypatch.setattr("shoal.config.build.load_dataset", lambda *_, **__: images)
    decided, simulation = build(config)
    assert len(simulation.federation) == config.data.partition.clients
    assert decided.model.classes == simulation.federation.classes
    assert decided.engine.backend in ("loop", "vmap")


@pytest.mark.parametrize("path", SWEEPS, ids=named)
def test_every_run_of_a_sweep_fits_the_official_data(path, monkeypatch):
    def load(source, task, **_):
        return load_dataset(source, task=task) if source == "digits" else blank(source, task)

    monkeypatch.setattr("shoal.config.build.load_dataset", load)
    importable_from(path, monkeypatch)
    sweep = read_sweep(path)
    assert len(sweep.seeds) >= 5
    assert len(sweep.runs) == len(sweep.seeds) * math.prod(len(settings) for settings in sweep.axes.values())
    # Seeds change which examples are drawn, and no size: all settings with one seed, and all seeds with one setting.
    first = sweep.runs[0]
    runs = tuple(run for run in sweep.runs if run.seed == first.seed or run.settings == first.settings)
    assert len(runs) == len(sweep.runs) // len(sweep.seeds) + len(sweep.seeds) - 1
    assert len(plan_runs(replace(sweep, runs=runs))) == len(runs)
