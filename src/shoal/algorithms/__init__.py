"""Federated algorithms, one paper a file, each a frozen dataclass that fills the engine's socket `Algorithm`.

May import `engine` and below, never `attacks`. To add one: a new file, its name in `ALGORITHMS` and in the config.
"""

from shoal.algorithms.fedavg import FedAvg
from shoal.algorithms.ifca import IFCA, Redraw
from shoal.algorithms.ifca_mir import IFCAMIR

ALGORITHMS = ("fedavg", "ifca", "ifca-mir")

__all__ = ["ALGORITHMS", "IFCA", "IFCAMIR", "FedAvg", "Redraw"]
