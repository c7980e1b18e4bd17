"""Shoal: clustered federated learning with a red team in the loop.

The names below are the public interface; the command ``shoal`` is built on the same. See `docs/house.md` for where
everything is.
"""

from shoal.algorithms import IFCA, IFCAMIR, FedAvg, Redraw
from shoal.attacks import Gap, LossThreshold, RedTeam, ShadowModels, Shokri
from shoal.core.checks import InputError, ShoalError
from shoal.core.randomness import Stream
from shoal.data import (
    Examples,
    Federation,
    Group,
    Images,
    Preferences,
    Split,
    Texts,
    draw_preferences,
    load_images,
    split_images,
)
from shoal.defenses import DPSGD, L2, Defense, Dropout, NormClipping
from shoal.engine import Engine, LocalSGD, Training
from shoal.experiments.config import Config, read_config
from shoal.experiments.result import Result
from shoal.experiments.runs import run
from shoal.experiments.simulation import simulate
from shoal.models import Model, Shape, TextShape, named_model

__all__ = [
    "DPSGD",
    "IFCA",
    "IFCAMIR",
    "L2",
    "Config",
    "Defense",
    "Dropout",
    "Engine",
    "Examples",
    "FedAvg",
    "Federation",
    "Gap",
    "Group",
    "Images",
    "InputError",
    "LocalSGD",
    "LossThreshold",
    "Model",
    "NormClipping",
    "Preferences",
    "RedTeam",
    "Redraw",
    "Result",
    "ShadowModels",
    "Shape",
    "ShoalError",
    "Shokri",
    "Split",
    "Stream",
    "TextShape",
    "Texts",
    "Training",
    "draw_preferences",
    "load_images",
    "named_model",
    "read_config",
    "run",
    "simulate",
    "split_images",
]
