"""Shoal: clustered federated learning with a red team in the loop.

The names below are the public interface; the command ``shoal`` is built on the same. See `docs/house.md` for where
everything is.
"""

from shoal.algorithms import IFCA, IFCAMIR, FedAvg, Redraw
from shoal.attacks import Gap, LossThreshold, PropertyAttack, RedTeam, ShadowModels, Shokri, active_attacker
from shoal.config.schema import Config, read_config
from shoal.core.errors import InputError, ShoalError
from shoal.core.randomness import Stream
from shoal.data import (
    Examples,
    Federation,
    Group,
    Holding,
    Images,
    Preferences,
    PropertySplit,
    Split,
    Texts,
    draw_preferences,
    load_images,
    split_images,
    split_property,
)
from shoal.defenses import DPSGD, L2, Defense, Dropout, NormClipping
from shoal.engine import Engine, LocalSGD, Training
from shoal.models import Model, Shape, TextShape, named_model
from shoal.runs.run import run
from shoal.simulation.result import Result
from shoal.simulation.simulation import simulate

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
    "Holding",
    "Images",
    "InputError",
    "LocalSGD",
    "LossThreshold",
    "Model",
    "NormClipping",
    "Preferences",
    "PropertyAttack",
    "PropertySplit",
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
    "active_attacker",
    "draw_preferences",
    "load_images",
    "named_model",
    "read_config",
    "run",
    "simulate",
    "split_images",
    "split_property",
]
