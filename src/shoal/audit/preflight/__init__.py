"""What shapes alone say of exposure, before anything is trained."""

from shoal.audit.preflight.exposure_rule import Exposure, LayerShape, Moves, Verdict, exposure_rule, most_exposed
from shoal.audit.preflight.network_shapes import layer_shapes

__all__ = ["Exposure", "LayerShape", "Moves", "Verdict", "exposure_rule", "layer_shapes", "most_exposed"]
