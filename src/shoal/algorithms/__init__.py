"""Federated algorithms, one paper a file, each a frozen dataclass that fills the engine's socket `Algorithm`.

May import `engine` and below, never `attacks`. To add one: a new file, and its class in `Algorithms`.
"""

from shoal.algorithms.fedavg import FedAvg
from shoal.algorithms.ifca import IFCA, Redraw
from shoal.algorithms.ifca_mir import IFCAMIR

Algorithms = FedAvg | IFCA | IFCAMIR
"""The algorithms that a file can name; the key `name` says which."""

__all__ = ["IFCA", "IFCAMIR", "Algorithms", "FedAvg", "Redraw"]
