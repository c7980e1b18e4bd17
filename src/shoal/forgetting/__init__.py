"""What is done with the models when clients leave a federation for good.

May import `core`, `data`, `models` and `engine`. A method is a frozen dataclass of settings with the methods of
`shoal.engine.Forgetting`, in a file of its own with its source. To add one: a file, and its class in `METHODS`.
"""

from shoal.forgetting.continue_training import Continue
from shoal.forgetting.exact import Exact
from shoal.forgetting.fed_eraser import FedEraser
from shoal.forgetting.gradient_ascent import ProjectedGradientAscent

METHODS = {"continue": Continue, "exact": Exact, "fed-eraser": FedEraser, "gradient-ascent": ProjectedGradientAscent}
"""The methods by their names in a file."""

__all__ = ["METHODS", "Continue", "Exact", "FedEraser", "ProjectedGradientAscent"]
