"""Any optimizer of `torch.optim` as a value."""

import inspect
from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from shoal.core.errors import InputError, nearest, require
from shoal.core.settings import settings

_UNFIT = ("Optimizer", "LBFGS", "SparseAdam")
"""LBFGS evaluates the loss several times in a step; SparseAdam needs sparse gradients."""

_OPTIMIZERS = sorted(
    name
    for name, each in vars(torch.optim).items()
    if isinstance(each, type) and issubclass(each, torch.optim.Optimizer) and name not in _UNFIT
)


@settings
class TorchOptimizer:
    """An optimizer of `torch.optim`, which every client starts anew in every round.

    Learning rate and weight decay are those of `LocalSGD`.

    Args:
        name: such as "AdamW".
        options: further arguments of the optimizer, such as ``{"betas": [0.9, 0.99]}``.

    Raises:
        InputError: an optimizer that `torch.optim` does not have, or options that it does not take.

    Example:
        >>> import torch
        >>> from shoal import TorchOptimizer
        >>> TorchOptimizer("Adam").made([torch.zeros(2)], 0.1, 0.0).defaults["lr"]
        0.1
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(
            self.name in _OPTIMIZERS, f"torch.optim has no optimizer '{self.name}'; {nearest(self.name, _OPTIMIZERS)}"
        )
        for taken in ("lr", "weight_decay", "params"):
            require(taken not in self.options, f"'options' must not have '{taken}': local training says it")
        # Lists are how TOML writes PyTorch's tuples.
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in self.options.items()}
        object.__setattr__(self, "options", options)
        self.made([torch.zeros(1)], 0.1, 0.0)

    def made(self, parameters: list[Tensor], learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
        """A new optimizer of ``parameters``."""
        made, options = getattr(torch.optim, self.name), self.options
        # Also 0, which is not the default of all, such as AdamW.
        if weight_decay or "weight_decay" in inspect.signature(made).parameters:
            options = options | {"weight_decay": weight_decay}
        try:
            return made(parameters, lr=learning_rate, **options)
        except (TypeError, ValueError, LookupError) as error:
            raise InputError(f"torch.optim.{self.name} cannot be made: {error}") from error
