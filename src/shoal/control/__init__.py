"""Closed loop: a coordinator that turns measured risk into directives for the local training of each cluster.

May import `engine` and below, never `algorithms`, `attacks` or `defenses`: the defences that it steers are values in
its knobs.
"""

from shoal.control.coordinator import CHANCE, SHOWN, Coordinator
from shoal.control.knobs import Knob
from shoal.control.recorded_directives import COLUMN, RecordedDirectives, directives_of
from shoal.control.risk_prediction import RiskPrediction

__all__ = [
    "CHANCE", "COLUMN", "SHOWN", "Coordinator", "Knob", "RecordedDirectives", "RiskPrediction", "directives_of",
]  # fmt: skip
