"""The configurations that are shipped can be run where their data are."""

from pathlib import Path

import pytest
import torch

from shoal.data import Images
from shoal.experiments.build import build
from shoal.experiments.config import read_config

FOLDER = Path(__file__).parents[2] / "experiments"
SIZES = {
    "mnist": (70_000, 60_000, 1, 28, 10),
    "emnist-byclass": (814_255, 697_932, 1, 28, 62),
    "cifar10": (60_000, 50_000, 3, 32, 10),
}


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.toml")), ids=lambda path: path.stem)
def test_it_fits_the_official_data(path, monkeypatch):
    config = read_config(path)
    if config.data.source in SIZES:
        count, train, channels, side, classes = SIZES[config.data.source]
        labels = torch.arange(count) % classes
        # One blank image behind all rows: a set of the official size in no memory.
        pixels = torch.zeros(1, channels, side, side, dtype=torch.uint8).expand(count, -1, -1, -1)
        blank = Images(config.data.source, pixels, 255, labels, train, classes)
        monkeypatch.setattr("shoal.experiments.build.load_images", lambda *_, **__: blank)
        monkeypatch.setattr("shoal.data.split._Shifter.pixels", lambda _, rows, __: torch.zeros(len(rows), 1, 1, 1))
    decided, simulation = build(config)
    assert len(simulation.federation) == config.data.clients
    assert decided.model.classes == simulation.federation.classes
    assert decided.engine.backend in ("loop", "vmap")
