"""Methods that remove a client's influence from the models when the client leaves a federation for good.

This package may import `core`, `data`, `models` and `engine`. A method is a frozen dataclass that implements
`shoal.engine.Forgetting`. To add a method, write a new file and add the class to `METHODS`.
"""

from shoal.forgetting.continue_training import Continue
from shoal.forgetting.exact import Exact
from shoal.forgetting.fed_eraser import FedEraser
from shoal.forgetting.gradient_ascent import ProjectedGradientAscent

METHODS = {"continue": Continue, "exact": Exact, "fed-eraser": FedEraser, "gradient-ascent": ProjectedGradientAscent}
"""The methods by their names in a configuration."""

__all__ = ["METHODS", "Continue", "Exact", "FedEraser", "ProjectedGradientAscent"]
