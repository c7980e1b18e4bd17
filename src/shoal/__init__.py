"""Shoal: clustered federated learning with a red team in the loop.

The names below are the public interface; the command ``shoal`` is built on the same. See `docs/house.md` for where
everything is.
"""

from shoal.algorithms import IFCA, IFCAMIR, Ditto, FedAvg, FedOpt, FedProx, Redraw, Scaffold
from shoal.attacks import (
    Gap,
    LossHistograms,
    LossThreshold,
    Population,
    PropertyAttack,
    RedTeam,
    ReferenceScores,
    ShadowModelAttack,
    ShadowModels,
    active_property_attacker,
    logit_confidence,
)
from shoal.config.schema import Config, read_config
from shoal.core.errors import InputError, ShoalError
from shoal.core.randomness import Stream
from shoal.data import (
    Columns,
    Examples,
    Federation,
    Group,
    ImageDataset,
    MislabelledCanaries,
    Partition,
    Preferences,
    PropertyPartition,
    PropertySchedule,
    TextDataset,
    draw_preferences,
    load_dataset,
    partition_by_property,
    partition_dataset,
)
from shoal.defenses import (
    CCL,
    DPSGD,
    L2,
    Augmentation,
    Defense,
    Dropout,
    Flooding,
    Mixup,
    NormClipping,
    RelaxLoss,
    ShorterTraining,
)
from shoal.engine import Engine, LocalSGD, TorchOptimizer, Training
from shoal.models import Model, Shape, TextShape, VectorShape, create_model, squared_error
from shoal.runs.audit import audit_run, audit_scores, audit_trace
from shoal.runs.result import Result, load
from shoal.runs.run import run
from shoal.runs.simulate import simulate
from shoal.simulation.audit import Audit, AuditRecords, audit_records

__all__ = [
    "CCL",
    "DPSGD",
    "IFCA",
    "IFCAMIR",
    "L2",
    "Audit",
    "AuditRecords",
    "Augmentation",
    "Columns",
    "Config",
    "Defense",
    "Ditto",
    "Dropout",
    "Engine",
    "Examples",
    "FedAvg",
    "FedOpt",
    "FedProx",
    "Federation",
    "Flooding",
    "Gap",
    "Group",
    "ImageDataset",
    "InputError",
    "LocalSGD",
    "LossHistograms",
    "LossThreshold",
    "MislabelledCanaries",
    "Mixup",
    "Model",
    "NormClipping",
    "Partition",
    "Population",
    "Preferences",
    "PropertyAttack",
    "PropertyPartition",
    "PropertySchedule",
    "RedTeam",
    "Redraw",
    "ReferenceScores",
    "RelaxLoss",
    "Result",
    "Scaffold",
    "ShadowModelAttack",
    "ShadowModels",
    "Shape",
    "ShoalError",
    "ShorterTraining",
    "Stream",
    "TextDataset",
    "TextShape",
    "TorchOptimizer",
    "Training",
    "VectorShape",
    "active_property_attacker",
    "audit_records",
    "audit_run",
    "audit_scores",
    "audit_trace",
    "create_model",
    "draw_preferences",
    "load",
    "load_dataset",
    "logit_confidence",
    "partition_by_property",
    "partition_dataset",
    "read_config",
    "run",
    "simulate",
    "squared_error",
]
