"""What is done with the models when clients leave a federation for good.

May import `core`, `data`, `models` and `engine`. A method is a frozen dataclass of settings with the methods of
`shoal.engine.Forgetting`, in a file of its own with its source. To add one: a file, and its class in `METHODS`.
"""

from shoal.forgetting.continue_training import Continue

METHODS = {method.name: method for method in (Continue,)}
"""The methods by their names in a file."""

__all__ = ["METHODS", "Continue"]
