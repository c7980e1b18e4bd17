"""A coordinator, which adjusts each cluster's local training to measured risks.

This package may import `engine` and the layers below it, never `algorithms`, `attacks` or `defenses`.
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
