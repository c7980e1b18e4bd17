"""What clients and the server can do against those who learn from updates: values that change a `TrainingSetup`.

May import `engine` and the rooms below it. To add a defence: a frozen dataclass with a method `applied`.
"""

from shoal.defenses import accounting
from shoal.defenses.defense import Defense, TrainingSetup, defended
from shoal.defenses.dp_sgd import DPSGD
from shoal.defenses.dropout import Dropout
from shoal.defenses.l2 import L2
from shoal.defenses.norm_clipping import NormClipping

__all__ = ["DPSGD", "L2", "Defense", "Dropout", "NormClipping", "TrainingSetup", "accounting", "defended"]
