"""What updates and models will show of single records, predicted before anything is trained."""

from shoal.preflight.exposure_rule import Exposure, LayerShape, Moves, Verdict, exposure_rule, most_exposed
from shoal.preflight.filter_rule import ExampleTerms, InitialGradients, initial_gradients
from shoal.preflight.preflight_report import COLUMNS, Preflight, preflight
from shoal.preflight.visible_moves import RecognisedRisks, VisibleMoves, layer_shapes

__all__ = [
    "COLUMNS", "ExampleTerms", "Exposure", "InitialGradients", "LayerShape", "Moves", "Preflight", "RecognisedRisks",
    "Verdict", "VisibleMoves", "exposure_rule", "initial_gradients", "layer_shapes", "most_exposed", "preflight",
]  # fmt: skip
