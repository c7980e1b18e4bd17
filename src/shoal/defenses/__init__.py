"""Defences of clients and server against inference from updates: values that change a `TrainingSetup`.

May import `engine` and the packages below it. To add one: settings with a method `applied`, and its field in
`shoal.config.schema.DefensesSection`.
"""

from shoal.defenses import accounting
from shoal.defenses.augmentation import Augmentation
from shoal.defenses.defense import Defense, TrainingSetup, defended
from shoal.defenses.dp_sgd import DPSGD
from shoal.defenses.dropout import Dropout
from shoal.defenses.l2 import L2
from shoal.defenses.norm_clipping import NormClipping

__all__ = [
    "DPSGD",
    "L2",
    "Augmentation",
    "Defense",
    "Dropout",
    "NormClipping",
    "TrainingSetup",
    "accounting",
    "defended",
]
