"""What shapes and an initial model say of exposure, before anything is trained."""

from shoal.audit.preflight.exposure_rule import Exposure, LayerShape, Moves, Verdict, exposure_rule, most_exposed
from shoal.audit.preflight.filter_rule import ExampleTerms, InitialGradients, initial_gradients
from shoal.audit.preflight.network_shapes import layer_shapes

__all__ = [
    "ExampleTerms", "Exposure", "InitialGradients", "LayerShape", "Moves", "Verdict", "exposure_rule",
    "initial_gradients", "layer_shapes", "most_exposed",
]  # fmt: skip
