"""A coordinator that turns measured risks into directives for the local training of each cluster.

This package may import `engine` and the layers below it, never `algorithms`, `attacks` or `defenses`. A coordinator
receives defences as values of its knobs.
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
