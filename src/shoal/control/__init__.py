"""Closed loop: a coordinator that turns measured risk into directives for the local training of each cluster.

May import `engine` and below, never `algorithms`, `attacks` or `defenses`: the defences that it steers are values in
its knobs.
"""

from shoal.control.coordinator import (
    CHANCE,
    DIRECTIVE_COLUMN,
    ROUND_FIGURES,
    LimitController,
    RecordedDirectives,
    RiskPrediction,
    directives_of,
)
from shoal.control.knobs import Knob

__all__ = [
    "CHANCE", "DIRECTIVE_COLUMN", "ROUND_FIGURES", "Knob", "LimitController", "RecordedDirectives", "RiskPrediction",
    "directives_of",
]  # fmt: skip
